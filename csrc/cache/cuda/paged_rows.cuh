// Where a token's row lies in a paged cache, and by what its codes are to be multiplied.
#pragma once

#include <cstdint>

#include "../../common/cuda/fast_divide.h"
#include "../params.h"

namespace pagedattn {

struct Slot {
  int64_t block;
  int32_t offset;
};

// The blocks of one sequence.
struct BlockTable {
  const int32_t* blocks;
  FastDivide block_size;

  __device__ __forceinline__ Slot slot(int32_t position) const {
    const int32_t column = block_size.quotient(position);
    return {blocks[column], position - column * block_size.divisor};
  }
};

// The rows of one kv head in one half of the cache.
template <typename T>
struct HeadRows {
  T* data;
  int64_t block_stride;
  int64_t token_stride;

  __device__ __forceinline__ HeadRows(const CacheView& view, int head)
      : data(static_cast<T*>(view.data) + head * view.head_stride),
        block_stride(view.block_stride),
        token_stride(view.token_stride) {}

  __device__ __forceinline__ T* row(Slot slot) const {
    return data + slot.block * block_stride + slot.offset * token_stride;
  }
};

// The scales of the same rows. Whatever their kind, strides say it all: those of what it does not
// index by are 0.
struct HeadScale {
  float* data;
  int64_t block_stride;
  int64_t token_stride;

  __device__ __forceinline__ HeadScale(const ScaleView& view, int head)
      : data(view.data + head * view.head_stride),
        block_stride(view.block_stride),
        token_stride(view.token_stride) {}

  __device__ __forceinline__ float* address(Slot slot) const {
    return data + slot.block * block_stride + slot.offset * token_stride;
  }

  __device__ __forceinline__ float at(Slot slot) const {
    return data == nullptr ? 1.0f : *address(slot);
  }
};

}  // namespace pagedattn
