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
constexpr int kMaxReduceDim = 256;

// One warp per (token, head). It takes 32 partitions at a time: lane i computes the weight of the
// i-th and hands it out while the warp adds up the outputs, four elements of a row per lane.
// `aligned`: partial.out starts at a multiple of 16 bytes.
__global__ void __launch_bounds__(kReduceWarps* kWarpSize)
    reduce_partitions_kernel(const __grid_constant__ AttentionParams params, const bool aligned) {
  constexpr int kVec = 4;
  constexpr int kPieces = kMaxReduceDim / (kWarpSize * kVec);
  const int64_t index = int64_t{blockIdx.x} * kReduceWarps + threadIdx.x / kWarpSize;
  if (index >= int64_t{params.num_seqs} * params.num_q_heads) return;
  const int seq = static_cast<int>(index / params.num_q_heads);
  const int head = static_cast<int>(index % params.num_q_heads);
  const int lane = threadIdx.x % kWarpSize;
  const int head_dim = params.cache.head_dim;

  // Only partitions with a visible key were written.
  const KvRange range = decode_range(params, seq);
  const int partition_size = params.partial.partition_size;
  const int begin = range.begin / partition_size;
  const int end = range.begin < range.end ? (range.end - 1) / partition_size + 1 : begin;
  const float* const lse = params.partial.lse + index * params.partial.num_partitions;
  const float* const partials =
      params.partial.out + index * params.partial.num_partitions * head_dim + lane * kVec;

  OnlineSoftmax softmax;
  float out[kPieces][kVec] = {};
  for (int first = begin; first < end; first += kWarpSize) {
    const int count = min(kWarpSize, end - first);
    const float lane_lse = lane < count ? lse[first + lane] : -INFINITY;
    const float factor = softmax.raise_max(warp_max(lane_lse));
    const float lane_weight = softmax.weight(lane_lse);
    softmax.sum += warp_sum(lane_weight);
#pragma unroll
    for (auto& piece : out) {
#pragma unroll
      for (float& element : piece) element *= factor;
    }
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float weight = __shfl_sync(kFullWarp, lane_weight, i);
      const float* const partial = partials + int64_t{first + i} * head_dim;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int offset = piece * kWarpSize * kVec;
        if (offset + lane * kVec >= head_dim) continue;
        Vec<float, kVec> vec;
        if (aligned) {
          vec = load_vec<kVec>(partial + offset);
        } else {
#pragma unroll
          for (int e = 0; e < kVec; ++e) vec[e] = partial[offset + e];
        }
#pragma unroll
        for (int e = 0; e < kVec; ++e) out[piece][e] += weight * vec[e];
      }
    }
  }

  float normalizer = 1.0f;
  if (params.masks.sinks != nullptr) normalizer = softmax.add(params.masks.sinks[head]);
  normalizer *= softmax.normalizer();
  const int64_t row = seq * params.out.token_stride + head * params.out.head_stride;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int dim = (piece * kWarpSize + lane) * kVec;
    if (dim >= head_dim) continue;
#pragma unroll
    for (int e = 0; e < kVec; ++e) {
      store_float(params.out.data, row + dim + e, params.dtype, out[piece][e] * normalizer);
    }
  }
  if (lane == 0 && params.lse != nullptr) {
    params.lse[seq * params.lse_token_stride + head * params.lse_head_stride] = softmax.lse();
  }
}

}  // namespace pagedattn
