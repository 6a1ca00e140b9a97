// Software prefetch of rows that the block table scatters: hardware prefetchers stop at every jump.
#pragma once

#include "../../common/cpu/simd.h"
#include "prefetch_plan.h"

namespace pagedattn::PAGEDATTN_ISA {

// The rows of a unit in the order in which they are read. Whoever reads row i asks for rows some
// way ahead of it.
class RowStream {
 public:
  RowStream() = default;  // asks for nothing
  // `rows` points at row 0; kMaxPrefetchDistance rows past the last one that is read must be valid.
  template <typename T>
  RowStream(const T* const* rows, int head_dim)
      : rows_(reinterpret_cast<const char* const*>(rows)),
        row_bytes_(head_dim * static_cast<int>(sizeof(T))) {}

  // To be called while rows [first, first + count) are read.
  PAGEDATTN_ALWAYS_INLINE void reading(int first, int count) const {
    if (rows_ == nullptr) return;
    for (int i = first; i < first + count; ++i) {
      for (int j = 0; j < plan_.count; ++j) ask_for(rows_[i + plan_.distances[j]]);
    }
  }

  RowStream from(int first) const {
    RowStream stream = *this;
    if (rows_) stream.rows_ += first;
    return stream;
  }

 private:
  // Into the L2 cache: a request for the L1 cache would hold one of its few line fill buffers,
  // which the loads of the products need, until memory answers.
  PAGEDATTN_ALWAYS_INLINE void ask_for(const char* row) const {
    constexpr int kCacheLine = 64;
    constexpr int kLocality = 2;
    int i = 0;
    for (; i + 4 * kCacheLine <= row_bytes_; i += 4 * kCacheLine) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) __builtin_prefetch(row + i + j * kCacheLine, 0, kLocality);
    }
    for (; i < row_bytes_; i += kCacheLine) __builtin_prefetch(row + i, 0, kLocality);
  }

  const char* const* rows_ = nullptr;
  int row_bytes_ = 0;
  PrefetchPlan plan_ = prefetch_plan();
};

}  // namespace pagedattn::PAGEDATTN_ISA
