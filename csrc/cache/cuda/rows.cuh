// Work on cache rows by the warp: one warp per (token, kv head).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../common/cuda/vector.cuh"
#include "../../common/cuda/warp_reduce.cuh"
#include "../params.h"

namespace pagedattn {

constexpr int kRowWarps = 4;

struct TokenHead {
  int64_t token;
  int head;
};

__device__ __forceinline__ TokenHead warp_token_head(int num_heads) {
  const int64_t index = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarpSize;
  return {index / num_heads, static_cast<int>(index % num_heads)};
}

inline int64_t num_row_ctas(int64_t num_tokens, int num_heads) {
  return (num_tokens * num_heads + kRowWarps - 1) / kRowWarps;
}

// Byte address of a row.
__device__ __forceinline__ unsigned char* row_bytes(const TokenView& view, TokenHead at,
                                                    int element_bytes) {
  return static_cast<unsigned char*>(view.data) +
         (at.token * view.token_stride + at.head * view.head_stride) * element_bytes;
}

__device__ __forceinline__ unsigned char* row_bytes(const CacheView& view, int64_t block,
                                                    int64_t offset, int head, int element_bytes) {
  return static_cast<unsigned char*>(view.data) +
         (block * view.block_stride + offset * view.token_stride + head * view.head_stride) *
             element_bytes;
}

// Copies the key row and the value row of one (token, head), kBytes at a time: a warp's lanes
// cover both at once, as a row of 16-bit elements seldom fills them.
template <int kBytes>
__device__ __forceinline__ void copy_row_pair(unsigned char* key_to, const unsigned char* key_from,
                                              unsigned char* value_to,
                                              const unsigned char* value_from, int row_bytes) {
  for (int at = threadIdx.x % kWarpSize * kBytes; at < 2 * row_bytes; at += kWarpSize * kBytes) {
    const bool is_key = at < row_bytes;
    const int offset = is_key ? at : at - row_bytes;
    store_vec((is_key ? key_to : value_to) + offset,
              load_vec<kBytes>((is_key ? key_from : value_from) + offset));
  }
}

}  // namespace pagedattn
