// The exact combination of two partial attentions over disjoint keys (cascade attention; the
// associative merge of FlashInfer, Ye et al. 2025).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../common/cuda/convert.cuh"
#include "../../common/cuda/online_softmax.cuh"
#include "../../common/cuda/vector.cuh"
#include "../../common/cuda/warp_reduce.cuh"
#include "../params.h"

namespace pagedattn {

constexpr int kMergeWarps = 4;

// One warp per (token, head), kVec elements per lane at a time. out may be one of the inputs: each
// lane reads what it overwrites, and the row's lse is read by all lanes before it is written.
template <typename T, int kVec>
__global__ void __launch_bounds__(kMergeWarps* kWarpSize)
    merge_states_kernel(const __grid_constant__ MergeParams params) {
  const int64_t index = int64_t{blockIdx.x} * kMergeWarps + threadIdx.x / kWarpSize;
  const int64_t token = index / params.num_heads;
  const int64_t head = index % params.num_heads;
  if (token >= params.num_tokens) return;

  const float prefix_lse =
      params.prefix_lse[token * params.prefix_lse_strides[0] + head * params.prefix_lse_strides[1]];
  const float suffix_lse =
      params.suffix_lse[token * params.suffix_lse_strides[0] + head * params.suffix_lse_strides[1]];
  OnlineSoftmax softmax;
  softmax.add(prefix_lse);
  softmax.add(suffix_lse);
  const float prefix_weight = softmax.weight(prefix_lse) * softmax.normalizer();
  const float suffix_weight = softmax.weight(suffix_lse) * softmax.normalizer();

  T* const out = static_cast<T*>(params.out.data) + token * params.out.token_stride +
                 head * params.out.head_stride;
  const T* const prefix = static_cast<const T*>(params.prefix_out.data) +
                          token * params.prefix_out.token_stride +
                          head * params.prefix_out.head_stride;
  const T* const suffix = static_cast<const T*>(params.suffix_out.data) +
                          token * params.suffix_out.token_stride +
                          head * params.suffix_out.head_stride;
  for (int dim = threadIdx.x % kWarpSize * kVec; dim < params.head_dim; dim += kWarpSize * kVec) {
    // An empty side may hold anything, so it is not read.
    auto a = zero_vec<T, kVec>();
    auto b = zero_vec<T, kVec>();
    if (prefix_lse != -INFINITY) a = load_vec<kVec>(prefix + dim);
    if (suffix_lse != -INFINITY) b = load_vec<kVec>(suffix + dim);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      a[i] = from_float<T>(prefix_weight * to_float(a[i]) + suffix_weight * to_float(b[i]));
    }
    store_vec(out + dim, a);
  }

  __syncwarp();
  if (params.out_lse != nullptr && threadIdx.x % kWarpSize == 0) {
    params.out_lse[token * params.out_lse_strides[0] + head * params.out_lse_strides[1]] =
        softmax.lse();
  }
}

}  // namespace pagedattn
