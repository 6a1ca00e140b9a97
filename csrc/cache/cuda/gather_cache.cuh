// The cached keys and values of whole sequences as packed tensors.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../common/cuda/convert.cuh"
#include "../../common/cuda/vector.cuh"
#include "../../common/cuda/warp_reduce.cuh"
#include "../params.h"
#include "paged_rows.cuh"
#include "rows.cuh"

namespace pagedattn {

// The last sequence that begins at or before `token`: the one that holds it, as empty sequences end
// where they begin.
__device__ __forceinline__ int sequence_of(const int32_t* cu_seq_lens, int num_seqs,
                                           int64_t token) {
  int low = 0;
  int high = num_seqs;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (cu_seq_lens[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// False for a token of no sequence, and for one past the columns of the block table.
__device__ __forceinline__ bool find_slot(const GatherParams& params, int64_t token,
                                          FastDivide block_size, Slot& slot) {
  const int seq = sequence_of(params.cu_seq_lens, params.num_seqs, token);
  const int64_t position = token - params.cu_seq_lens[seq];
  const int64_t capacity = int64_t{params.max_blocks_per_seq} * block_size.divisor;
  const bool found = token < params.cu_seq_lens[seq + 1] && position < capacity;
  if (found) {
    const BlockTable table{params.block_tables + seq * params.block_table_stride, block_size};
    slot = table.slot(static_cast<int32_t>(position));
  }
  return found;
}

template <int kBytes>
__global__ void __launch_bounds__(kRowWarps* kWarpSize)
    gather_rows_kernel(const __grid_constant__ GatherParams params, const FastDivide block_size,
                       const int element_bytes) {
  const TokenHead at = warp_token_head(params.cache.num_kv_heads);
  Slot slot;
  if (at.token >= params.num_tokens || !find_slot(params, at.token, block_size, slot)) return;
  copy_row_pair<kBytes>(
      row_bytes(params.key, at, element_bytes),
      row_bytes(params.cache.key, slot.block, slot.offset, at.head, element_bytes),
      row_bytes(params.value, at, element_bytes),
      row_bytes(params.cache.value, slot.block, slot.offset, at.head, element_bytes),
      params.cache.head_dim * element_bytes);
}

template <typename Word>
__device__ __forceinline__ void convert_row(void* to, DType to_dtype, const CacheView& cache,
                                            DType dtype, Slot slot, int head, int head_dim) {
  constexpr int kVec = 4;
  const Word* const from = HeadRows<const Word>(cache, head).row(slot);
  float scale = 1.0f;
  if constexpr (sizeof(Word) == 1) scale = HeadScale(cache.scale, head).at(slot);
  for (int dim = threadIdx.x % kWarpSize * kVec; dim < head_dim; dim += kWarpSize * kVec) {
    float elements[kVec];
    widen(elements, load_vec<kVec>(from + dim), dtype);
    // The output's strides are unknown, and its rows are written once.
#pragma unroll
    for (int i = 0; i < kVec; ++i) store_float(to, dim + i, to_dtype, elements[i] * scale);
  }
}

template <typename Word>
__global__ void __launch_bounds__(kRowWarps* kWarpSize)
    gather_converted_rows_kernel(const __grid_constant__ GatherParams params,
                                 const FastDivide block_size) {
  const TokenHead at = warp_token_head(params.cache.num_kv_heads);
  Slot slot;
  if (at.token >= params.num_tokens || !find_slot(params, at.token, block_size, slot)) return;
  const KvCacheView& cache = params.cache;
  const int to_bytes = element_size(params.dtype);
  convert_row<Word>(row_bytes(params.key, at, to_bytes), params.dtype, cache.key, cache.dtype, slot,
                    at.head, cache.head_dim);
  convert_row<Word>(row_bytes(params.value, at, to_bytes), params.dtype, cache.value, cache.dtype,
                    slot, at.head, cache.head_dim);
}

}  // namespace pagedattn
