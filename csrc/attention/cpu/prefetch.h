// Software prefetch of rows that the block table scatters: hardware prefetchers stop at every jump.
#pragma once

#include "../../common/cpu/simd.h"

namespace pagedattn::PAGEDATTN_ISA {

// Walks over a list of rows and asks for a few at each step, so that requests spread over the
// arithmetic that hides them: only so many can be in flight.
template <typename T>
class RowPrefetcher {
 public:
  RowPrefetcher() = default;
  RowPrefetcher(const T* const* rows, int count, int head_dim)
      : rows_(rows), end_(rows + count), row_bytes_(head_dim * static_cast<int>(sizeof(T))) {}

  bool done() const { return rows_ == end_; }

  void advance_rows(int count) {
    constexpr int kCacheLine = 64;
    for (; count > 0 && rows_ != end_; --count, ++rows_) {
      const char* const row = reinterpret_cast<const char*>(*rows_);
      for (int i = 0; i < row_bytes_; i += kCacheLine) __builtin_prefetch(row + i);
    }
  }

 private:
  const T* const* rows_ = nullptr;
  const T* const* end_ = nullptr;
  int row_bytes_ = 0;
};

// Asks a second time for rows that are about to be used: CPUs drop prefetches under load, and one
// from a tile ahead is often lost. Only while there is something to ask for ahead, which is when
// the tile itself comes from memory.
template <typename T, typename Ahead>
inline RowPrefetcher<T> repeat_ahead(const T* const* rows, int count, int head_dim,
                                     const RowPrefetcher<Ahead>& ahead) {
  constexpr int kDistance = 8;  // rows
  if (ahead.done() || count <= kDistance) return {};
  return {rows + kDistance, count - kDistance, head_dim};
}

}  // namespace pagedattn::PAGEDATTN_ISA
