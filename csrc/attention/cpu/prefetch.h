// Software prefetch of rows that the block table scatters: hardware prefetchers stop at every jump.
#pragma once

#include "../../common/cpu/simd.h"

namespace pagedattn::PAGEDATTN_ISA {

constexpr int kCacheLine = 64;

// Walks over the cache lines of a list of rows and asks for a few at each step, so that requests
// spread over the arithmetic that hides them: memory has a limited number of them in flight.
template <typename T>
class RowPrefetcher {
 public:
  RowPrefetcher() = default;
  RowPrefetcher(const T* const* rows, int count, int head_dim)
      : rows_(rows), end_(rows + count), row_bytes_(head_dim * static_cast<int>(sizeof(T))) {}

  int lines_per_row() const { return (row_bytes_ + kCacheLine - 1) / kCacheLine; }

  void advance(int lines) {
    for (; lines > 0 && rows_ != end_; --lines) {
      __builtin_prefetch(reinterpret_cast<const char*>(*rows_) + offset_);
      offset_ += kCacheLine;
      if (offset_ < row_bytes_) continue;
      offset_ = 0;
      ++rows_;
    }
  }

 private:
  const T* const* rows_ = nullptr;
  const T* const* end_ = nullptr;
  int row_bytes_ = 0;
  int offset_ = 0;
};

}  // namespace pagedattn::PAGEDATTN_ISA
