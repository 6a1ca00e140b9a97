// New keys and values into their slots.
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

__device__ __forceinline__ Slot slot_of(int64_t index, int block_size) {
  const int64_t block = index / block_size;
  return {block, static_cast<int32_t>(index - block * block_size)};
}

// A cache of the inputs' own dtype takes bytes as they are.
template <int kBytes>
__global__ void __launch_bounds__(kRowWarps* kWarpSize)
    store_rows_kernel(const __grid_constant__ ReshapeParams params, const int element_bytes) {
  const TokenHead at = warp_token_head(params.cache.num_kv_heads);
  if (at.token >= params.num_tokens) return;
  const int64_t index = params.slot_mapping[at.token];
  if (index < 0) return;
  const Slot slot = slot_of(index, params.cache.block_size);
  copy_row_pair<kBytes>(
      row_bytes(params.cache.key, slot.block, slot.offset, at.head, element_bytes),
      row_bytes(params.key, at, element_bytes),
      row_bytes(params.cache.value, slot.block, slot.offset, at.head, element_bytes),
      row_bytes(params.value, at, element_bytes), params.cache.head_dim * element_bytes);
}

constexpr int kQuantizeVec = 4;  // head_dim is a multiple of 8

template <typename From>
__device__ __forceinline__ Vec<From, kQuantizeVec> load_elements(const From* from, bool aligned) {
  if (aligned) return load_vec<kQuantizeVec>(from);
  Vec<From, kQuantizeVec> vec;
#pragma unroll
  for (int i = 0; i < kQuantizeVec; ++i) vec[i] = from[i];
  return vec;
}

// The scale that a row gets for itself: its largest magnitude becomes the largest code.
template <typename From, typename To>
__device__ __forceinline__ float row_scale(const From* row, int head_dim, bool aligned) {
  float largest = 0.0f;
  for (int dim = threadIdx.x % kWarpSize * kQuantizeVec; dim < head_dim;
       dim += kWarpSize * kQuantizeVec) {
    const auto elements = load_elements(row + dim, aligned);
#pragma unroll
    for (int i = 0; i < kQuantizeVec; ++i) largest = fmaxf(largest, fabsf(to_float(elements[i])));
  }
  return warp_max(largest) / max_code<To>();
}

// Writes the codes of one row, and its scale where rows have their own.
template <typename From, typename To>
__device__ __forceinline__ void quantize_row(const CacheView& cache, Slot slot, int head,
                                             const From* row, int head_dim, bool aligned) {
  const HeadScale head_scale(cache.scale, head);
  const bool own_scale = cache.scale.kind == ScaleKind::kPerTokenHead;
  float scale;
  if (own_scale) {
    scale = row_scale<From, To>(row, head_dim, aligned);
    if (threadIdx.x % kWarpSize == 0) *head_scale.address(slot) = scale;
  } else {
    scale = head_scale.at(slot);
  }
  // A row of zeros has scale 0 and codes 0; its NaNs stay what they are.
  const bool all_zero = own_scale && scale == 0.0f;
  To* const to = HeadRows<To>(cache, head).row(slot);
  for (int dim = threadIdx.x % kWarpSize * kQuantizeVec; dim < head_dim;
       dim += kWarpSize * kQuantizeVec) {
    const auto elements = load_elements(row + dim, aligned);
    Vec<To, kQuantizeVec> codes;
#pragma unroll
    for (int i = 0; i < kQuantizeVec; ++i) {
      const float element = to_float(elements[i]);
      const bool is_nan = element != element;
      codes[i] = from_float<To>(all_zero ? (is_nan ? element : 0.0f) : element / scale);
    }
    store_vec(to + dim, codes);
  }
}

template <typename From, typename To>
__global__ void __launch_bounds__(kRowWarps* kWarpSize, 1)
    quantize_rows_kernel(const __grid_constant__ ReshapeParams params, const bool aligned) {
  const TokenHead at = warp_token_head(params.cache.num_kv_heads);
  if (at.token >= params.num_tokens) return;
  const int64_t index = params.slot_mapping[at.token];
  if (index < 0) return;
  const Slot slot = slot_of(index, params.cache.block_size);
  const int head_dim = params.cache.head_dim;
  quantize_row<From, To>(params.cache.key, slot, at.head,
                         reinterpret_cast<const From*>(row_bytes(params.key, at, sizeof(From))),
                         head_dim, aligned);
  quantize_row<From, To>(params.cache.value, slot, at.head,
                         reinterpret_cast<const From*>(row_bytes(params.value, at, sizeof(From))),
                         head_dim, aligned);
}

}  // namespace pagedattn
