// V2's second pass: a row's partitions become its output.
#pragma once

#include <cuda_runtime.h>

#include "../../common/cuda/convert.cuh"
#include "../../common/cuda/online_softmax.cuh"
#include "../../common/cuda/warp_reduce.cuh"
#include "../params.h"
#include "sequence.cuh"

namespace pagedattn {

constexpr int kReduceWarps = 4;
constexpr int kMaxReduceDim = 256;

// One CTA per (token, head). Warp w takes the partitions p with p % kReduceWarps == w, lane i the
// elements i, i + 32, ...; then the warps' states meet in shared memory.
__global__ void __launch_bounds__(kReduceWarps* kWarpSize)
    reduce_partitions_kernel(const __grid_constant__ AttentionParams params) {
  constexpr int kLaneDims = kMaxReduceDim / kWarpSize;
  const int seq = blockIdx.x / params.num_q_heads;
  const int head = blockIdx.x % params.num_q_heads;
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int head_dim = params.cache.head_dim;
  const int64_t first_partial = int64_t{blockIdx.x} * params.partial.num_partitions;

  // Only partitions with a visible key were written.
  const KvRange range = decode_range(params, seq);
  const int partition_size = params.partial.partition_size;
  const int begin = range.begin / partition_size;
  const int end = range.begin < range.end ? (range.end - 1) / partition_size + 1 : begin;

  OnlineSoftmax softmax;
  float out[kLaneDims] = {};
  const int start = begin + (warp + kReduceWarps - begin % kReduceWarps) % kReduceWarps;
#pragma unroll 2
  for (int p = start; p < end; p += kReduceWarps) {
    const float lse = params.partial.lse[first_partial + p];
    const float* const partial = params.partial.out + (first_partial + p) * head_dim;
    const float factor = softmax.raise_max(lse);
    const float weight = softmax.weight(lse);
    softmax.sum += weight;
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) {
      const int dim = i * kWarpSize + lane;
      if (dim < head_dim) out[i] = out[i] * factor + weight * partial[dim];
    }
  }

  __shared__ float shared_out[kReduceWarps][kMaxReduceDim];
  __shared__ float shared_max[kReduceWarps];
  __shared__ float shared_sum[kReduceWarps];
#pragma unroll
  for (int i = 0; i < kLaneDims; ++i) shared_out[warp][i * kWarpSize + lane] = out[i];
  if (lane == 0) {
    shared_max[warp] = softmax.max;
    shared_sum[warp] = softmax.sum;
  }
  __syncthreads();

  for (int dim = threadIdx.x; dim < head_dim; dim += kReduceWarps * kWarpSize) {
    OnlineSoftmax total;
    float value = 0.0f;
#pragma unroll
    for (int other = 0; other < kReduceWarps; ++other) {
      value *= total.raise_max(shared_max[other]);
      const float weight = total.weight(shared_max[other]);
      total.sum += weight * shared_sum[other];
      value += weight * shared_out[other][dim];
    }
    if (params.masks.sinks != nullptr) value *= total.add(params.masks.sinks[head]);
    value *= total.normalizer();
    const int64_t row = seq * params.out.token_stride + head * params.out.head_stride;
    store_float(params.out.data, row + dim, params.dtype, value);
    if (dim == 0 && params.lse != nullptr) {
      params.lse[seq * params.lse_token_stride + head * params.lse_head_stride] = total.lse();
    }
  }
}

}  // namespace pagedattn
