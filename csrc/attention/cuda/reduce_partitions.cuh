// V2's second pass: a row's partitions become its output.
#pragma once

#include <cuda_runtime.h>
#include <math.h>

#include "../../common/cuda/convert.cuh"
#include "../../common/cuda/online_softmax.cuh"
#include "../../common/cuda/vector.cuh"
#include "../../common/cuda/warp_reduce.cuh"
#include "../params.h"
#include "sequence.cuh"

namespace pagedattn {

constexpr int kReduceWarps = 4;

// One warp per piece of 32 * kVec elements of a (token, head)'s row, num_pieces per row. It takes
// 32 partitions at a time: lane i computes the weight of the i-th and hands it out while the warp
// adds up the outputs, kVec elements per lane. partial.out and out allow accesses of kVec elements.
template <int kVec>
__global__ void __launch_bounds__(kReduceWarps* kWarpSize)
    reduce_partitions_kernel(const __grid_constant__ AttentionParams params,
                             const unsigned num_pieces) {
  const unsigned index = blockIdx.x * kReduceWarps + threadIdx.x / kWarpSize;
  const unsigned row = index / num_pieces;
  const int seq = row / params.num_q_heads;
  if (seq >= params.num_seqs) return;
  const int head = row - seq * params.num_q_heads;
  const int lane = threadIdx.x % kWarpSize;
  const int head_dim = params.cache.head_dim;
  const int dim = ((index - row * num_pieces) * kWarpSize + lane) * kVec;

  // Only partitions with a visible key were written.
  const KvRange range = decode_range(params, seq);
  const int partition_size = params.partial.partition_size;
  const int begin = range.begin / partition_size;
  const int end = range.begin < range.end ? (range.end - 1) / partition_size + 1 : begin;
  const int64_t first = int64_t{row} * params.partial.num_partitions + begin;
  const float* lse = params.partial.lse + first;
  // Lanes past the end of the row read its last elements again.
  const float* partial = params.partial.out + first * head_dim + min(dim, head_dim - kVec);

  OnlineSoftmax softmax;
  float out[kVec] = {};
  for (int rest = end - begin; rest > 0; rest -= kWarpSize) {
    const int count = min(kWarpSize, rest);
    const float lane_lse = lane < count ? lse[lane] : -INFINITY;
    lse += kWarpSize;
    const float factor = softmax.raise_max(warp_max(lane_lse));
    const float lane_weight = softmax.weight(lane_lse);
    softmax.sum += warp_sum(lane_weight);
#pragma unroll
    for (float& element : out) element *= factor;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float weight = __shfl_sync(kFullWarp, lane_weight, i);
      const Vec<float, kVec> vec = load_vec<kVec>(partial);
#pragma unroll
      for (int e = 0; e < kVec; ++e) out[e] += weight * vec[e];
      partial += head_dim;
    }
  }

  float normalizer = 1.0f;
  if (params.masks.sinks != nullptr) normalizer = softmax.add(params.masks.sinks[head]);
  normalizer *= softmax.normalizer();
#pragma unroll
  for (float& element : out) element *= normalizer;
  if (dim < head_dim) {
    store_floats(params.out.data,
                 seq * params.out.token_stride + head * params.out.head_stride + dim, params.dtype,
                 out);
  }
  if (dim == 0 && params.lse != nullptr) {
    params.lse[seq * params.lse_token_stride + head * params.lse_head_stride] = softmax.lse();
  }
}

}  // namespace pagedattn
