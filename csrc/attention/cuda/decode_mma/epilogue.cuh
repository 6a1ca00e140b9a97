// The end of a CTA: its warps' softmax states and outputs become the group's rows of the output,
// or of one partition of it.
#pragma once

#include <cuda_runtime.h>
#include <math.h>

#include <cstdint>

#include "../../../common/cuda/convert.cuh"
#include "../../../common/cuda/ptx.cuh"
#include "../../params.h"
#include "masks.cuh"
#include "tile.h"

namespace pagedattn::decode_mma {

// Of warps that have seen different tokens of a head, there are kWarps, or in teams 1 or 2.
template <bool kTeams>
inline constexpr int kMaxParts = kTeams ? kWarps / 2 : kWarps;

// What they have seen; logits are in units of log2. Part p of a head is in entry
// head * num_parts + p.
template <int kNumStates>
struct WarpStates {
  float reference[kNumStates];  // merge_states() turns it into the weight of the warp's output
  float sum[kNumStates];
};

// Elements of a row that a thread writes at a time, where rows are aligned to as many.
constexpr int kOutVec = 4;

// Where the rows of the group's heads go: V1's output, or one of V2's partitions in fp32.
struct OutputRows {
  void* data;
  DType dtype;
  int64_t first;
  int64_t head_stride;
  float* lse;  // or null
  int64_t lse_head_stride;

  __device__ __forceinline__ OutputRows(const AttentionParams& params, int seq, int first_head,
                                        int partition) {
    if (params.partial.partition_size == 0) {
      data = params.out.data;
      dtype = params.dtype;
      head_stride = params.out.head_stride;
      first = seq * params.out.token_stride + first_head * head_stride;
      lse = params.lse;
      lse_head_stride = params.lse_head_stride;
      if (lse != nullptr) lse += seq * params.lse_token_stride + first_head * lse_head_stride;
    } else {
      const int64_t num_partitions = params.partial.num_partitions;
      const int64_t row =
          (int64_t{seq} * params.num_q_heads + first_head) * num_partitions + partition;
      data = params.partial.out;
      dtype = DType::kFloat32;
      head_stride = num_partitions * params.cache.head_dim;
      first = row * params.cache.head_dim;
      lse = params.partial.lse + row;
      lse_head_stride = num_partitions;
    }
  }

  // Elements from `dim` on; their address is a multiple of their size.
  template <int kVec>
  __device__ __forceinline__ void write(int head, int dim, const float (&values)[kVec]) const {
    store_floats(data, first + head * head_stride + dim, dtype, values);
  }

  __device__ __forceinline__ void write_lse(int head, float value) const {
    if (lse != nullptr) lse[head * lse_head_stride] = value;
  }
};

// visit(head, dim) for the pieces of the group's rows that are this thread's.
template <int kHeadDim, int kVec, typename Visit>
__device__ __forceinline__ void for_each_piece(int num_heads, int head_dim, Visit&& visit) {
  constexpr unsigned kPieces = kHeadDim / kVec;
  for (unsigned i = threadIdx.x; i < num_heads * kPieces; i += kThreads) {
    const int dim = i % kPieces * kVec;
    if (dim < head_dim) visit(i / kPieces, dim);
  }
}

// The logit that joins the head's denominator; in V2 the reduce kernel adds it.
__device__ __forceinline__ float sink_of(const AttentionParams& params, int head) {
  const bool absent = params.masks.sinks == nullptr || params.partial.partition_size != 0;
  return absent ? -INFINITY : params.masks.sinks[head];
}

// Turns the warps' references into the weights of their outputs, and writes the lse. One thread per
// head. `output_scale`: what the warps' outputs are to be multiplied by.
template <int kMaxParts, int kNumStates>
__device__ __forceinline__ void merge_states(WarpStates<kNumStates>& states,
                                             const AttentionParams& params, const OutputRows& rows,
                                             int first_head, int num_heads, int num_parts,
                                             float output_scale) {
  const int head = threadIdx.x;
  if (head >= num_heads) return;
  float* const weights = states.reference + head * num_parts;
  const float* const sums = states.sum + head * num_parts;
  const float sink = sink_of(params, first_head + head) * kLog2E;
  float largest = sink;
#pragma unroll
  for (int t = 0; t < num_parts; ++t) largest = fmaxf(largest, weights[t]);
  // With nothing seen, 2^(-inf + inf) would be NaN.
  const float shift = largest == -INFINITY ? 0.0f : largest;
  float sum = ptx::exp2_approx(sink - shift);
#pragma unroll
  for (int t = 0; t < num_parts; ++t) {
    weights[t] = ptx::exp2_approx(weights[t] - shift);
    sum += weights[t] * sums[t];
  }
  const float normalizer = sum == 0.0f ? 0.0f : output_scale / sum;
#pragma unroll
  for (int t = 0; t < num_parts; ++t) weights[t] *= normalizer;
  rows.write_lse(head, sum == 0.0f ? -INFINITY : (shift + log2f(sum)) * kLn2);
}

// Adds up the warps' outputs, warp w's at outputs + w * kWarpFloats, with the weights of
// merge_states().
template <typename Tile, typename Layout, int kHeadDim, int kMaxParts, int kVec, int kNumStates>
__device__ __forceinline__ void write_rows(const OutputRows& rows, int num_heads, int head_dim,
                                           const float* outputs,
                                           const WarpStates<kNumStates>& states, int num_parts) {
  constexpr int kWarpFloats = Tile::kWarpBytes / sizeof(float);
  static_assert(Layout::kHeads * Layout::kMergeStride <= kWarpFloats);
  const int part_floats = kWarps / num_parts * kWarpFloats;
  for_each_piece<kHeadDim, kVec>(num_heads, head_dim, [&](unsigned head, int dim) {
    // Where every warp has a part of every head, head / kHeads is 0.
    const unsigned member = kMaxParts == kWarps ? 0 : head / Layout::kHeads;
    const float* const first = outputs + member * kWarpFloats +
                               (head - member * Layout::kHeads) * Layout::kMergeStride + dim;
    const float* const weights = states.reference + head * num_parts;
    float values[kVec];
#pragma unroll
    for (int p = 0; p < kMaxParts && p < num_parts; ++p) {
      const Vec<float, kVec> part = load_vec<kVec>(first + p * part_floats);
#pragma unroll
      for (int e = 0; e < kVec; ++e) {
        values[e] = p == 0 ? weights[p] * part[e] : fmaf(weights[p], part[e], values[e]);
      }
    }
    rows.write(head, dim, values);
  });
}

// V1's rows of a sequence without a visible key.
template <int kHeadDim>
__device__ __forceinline__ void write_unseen(const AttentionParams& params, const OutputRows& rows,
                                             int first_head, int num_heads) {
  for_each_piece<kHeadDim, 1>(num_heads, params.cache.head_dim,
                              [&](int head, int dim) { rows.write<1>(head, dim, {0.0f}); });
  if (const int head = threadIdx.x; head < num_heads) {
    rows.write_lse(head, sink_of(params, first_head + head));
  }
}

}  // namespace pagedattn::decode_mma
