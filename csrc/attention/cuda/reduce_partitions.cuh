// A row's partitions become its output: the second pass of V2, and of varlen's split sequences.
#pragma once

#include <cuda_runtime.h>
#include <math.h>

#include <cstdint>

#include "../../common/cuda/convert.cuh"
#include "../../common/cuda/online_softmax.cuh"
#include "../../common/cuda/vector.cuh"
#include "../../common/cuda/warp_reduce.cuh"
#include "../params.h"
#include "../visibility.h"
#include "sequence.cuh"
#include "varlen_split.h"

namespace pagedattn {

constexpr int kReduceWarps = 4;

// The work of a warp: a piece of 32 * kVec elements of a head's rows, num_pieces per row.
// partial.out and out allow accesses of kVec elements.
template <int kVec>
struct ReduceWork {
  int seq;
  int head;
  int dim;  // this lane's first

  __device__ __forceinline__ ReduceWork(const AttentionParams& params, unsigned num_pieces) {
    const unsigned index = blockIdx.x * kReduceWarps + threadIdx.x / kWarpSize;
    const unsigned row = index / num_pieces;
    seq = row / params.num_q_heads;
    head = row - seq * params.num_q_heads;
    dim = ((index - row * num_pieces) * kWarpSize + threadIdx.x % kWarpSize) * kVec;
  }
};

// Reduces the partitions of a row that have keys in `visible`, as only they were written. `first`:
// where its partitions begin. The warp takes 32 of them at a time: lane i computes the weight of
// the i-th and hands it out while the warp adds up the outputs, kVec elements per lane.
template <int kVec>
__device__ __forceinline__ void reduce_row(const AttentionParams& params, int64_t first,
                                           int partition_size, KvRange visible, int64_t token,
                                           int head, int dim) {
  const int lane = threadIdx.x % kWarpSize;
  const int head_dim = params.cache.head_dim;
  const int begin = visible.begin / partition_size;
  const int end = visible.begin < visible.end ? (visible.end - 1) / partition_size + 1 : begin;
  first += begin;
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
                 token * params.out.token_stride + head * params.out.head_stride + dim,
                 params.dtype, out);
  }
  if (dim == 0 && params.lse != nullptr) {
    params.lse[token * params.lse_token_stride + head * params.lse_head_stride] = softmax.lse();
  }
}

template <int kVec>
__global__ void __launch_bounds__(kReduceWarps* kWarpSize)
    reduce_partitions_kernel(const __grid_constant__ AttentionParams params,
                             const unsigned num_pieces) {
  const ReduceWork<kVec> work(params, num_pieces);
  if (work.seq >= params.num_seqs) return;
  const int64_t row = int64_t{work.seq} * params.num_q_heads + work.head;
  reduce_row<kVec>(params, row * params.partial.num_partitions, params.partial.partition_size,
                   decode_range(params, work.seq), work.seq, work.head, work.dim);
}

// A warp has the rows of all tokens of a sequence.
template <int kVec>
__global__ void __launch_bounds__(kReduceWarps* kWarpSize)
    reduce_varlen_partitions_kernel(const __grid_constant__ AttentionParams params,
                                    const unsigned num_pieces) {
  const ReduceWork<kVec> work(params, num_pieces);
  if (work.seq >= params.num_seqs) return;
  const int32_t first_token = params.cu_seqlens_q[work.seq];
  const int32_t query_len = params.cu_seqlens_q[work.seq + 1] - first_token;
  const int32_t seq_len = clamped_seq_len(params, work.seq);
  const int64_t num_rows = int64_t{query_len} * (params.num_q_heads / params.cache.num_kv_heads);
  const VarlenSplit split = split_varlen(query_len, num_rows, seq_len);
  if (split.num_partitions == 1) return;
  const int64_t pair =
      first_varlen_partial(work.seq, first_token, max_varlen_partitions(longest_sequence(params)));
  for (int32_t token = 0; token < query_len; ++token) {
    const int64_t row = int64_t{token} * params.num_q_heads + work.head;
    const int32_t q_pos = query_position(token, query_len, seq_len);
    reduce_row<kVec>(params, pair * params.num_q_heads + row * split.num_partitions,
                     split.partition_size, visible_range(params.masks, q_pos, seq_len),
                     int64_t{first_token} + token, work.head, work.dim);
  }
}

}  // namespace pagedattn
