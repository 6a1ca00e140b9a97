// The end of a CTA: its warps' softmax states and outputs become the group's rows of the output,
// or of one partition of it.
#pragma once

#include <cuda_runtime.h>
#include <math.h>

#include <cstdint>

#include "../../../common/cuda/convert.cuh"
#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/vector.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "masks.cuh"
#include "tile.h"

namespace pagedattn::decode_mma {

// One head as one warp has seen it; logits are in units of log2.
struct HeadState {
  float reference;
  float sum;
};

// A warp writes a row in pieces of 4 elements per lane.
constexpr int kOutVec = 4;
constexpr int kOutStep = kOutVec * kWarpSize;

// Where the rows of the group's heads go: V1's output in T, or one of V2's partitions in fp32.
template <typename T>
struct OutputRows {
  bool whole;
  bool aligned;  // rows start at multiples of kOutVec elements
  T* out;
  float* partial;
  int64_t head_stride;
  float* lse;  // or null
  int64_t lse_head_stride;

  __device__ __forceinline__ OutputRows(const AttentionParams& params, int seq, int first_head,
                                        int partition, bool aligned)
      : whole(params.partial.partition_size == 0), aligned(aligned) {
    if (whole) {
      head_stride = params.out.head_stride;
      out = static_cast<T*>(params.out.data) + seq * params.out.token_stride +
            first_head * head_stride;
      lse_head_stride = params.lse_head_stride;
      lse = params.lse == nullptr
                ? nullptr
                : params.lse + seq * params.lse_token_stride + first_head * lse_head_stride;
    } else {
      const int64_t row =
          (int64_t{seq} * params.num_q_heads + first_head) * params.partial.num_partitions +
          partition;
      head_stride = int64_t{params.partial.num_partitions} * params.cache.head_dim;
      partial = params.partial.out + row * params.cache.head_dim;
      lse_head_stride = params.partial.num_partitions;
      lse = params.partial.lse + row;
    }
  }

  // Elements dim to dim + 3 of a row; `row_lse` is written with the first.
  __device__ __forceinline__ void write(int head, int dim, const float4& value,
                                        float row_lse) const {
    const int64_t offset = head * head_stride + dim;
    if (whole) {
      Vec<T, kOutVec> vec;
      vec[0] = from_float<T>(value.x);
      vec[1] = from_float<T>(value.y);
      vec[2] = from_float<T>(value.z);
      vec[3] = from_float<T>(value.w);
      store(out + offset, vec);
    } else {
      store(partial + offset, Vec<float, kOutVec>{value.x, value.y, value.z, value.w});
    }
    if (dim == 0 && lse != nullptr) lse[head * lse_head_stride] = row_lse;
  }

 private:
  template <typename Element>
  __device__ __forceinline__ void store(Element* to, const Vec<Element, kOutVec>& vec) const {
    if (aligned) {
      store_vec(to, vec);
    } else {
#pragma unroll
      for (int e = 0; e < kOutVec; ++e) to[e] = vec[e];
    }
  }
};

// visit(head, dim) for the pieces of the group's rows that are this thread's; a warp has whole
// rows.
template <int kHeadDim, typename Visit>
__device__ __forceinline__ void for_each_piece(int num_heads, int head_dim, Visit&& visit) {
  for (int head = threadIdx.x / kWarpSize; head < num_heads; head += kWarps) {
#pragma unroll
    for (int first = 0; first < kHeadDim; first += kOutStep) {
      const int dim = first + threadIdx.x % kWarpSize * kOutVec;
      if (dim < head_dim) visit(head, dim);
    }
  }
}

// The logit that joins the head's denominator; in V2 the reduce kernel adds it.
__device__ __forceinline__ float sink_of(const AttentionParams& params, int head) {
  const bool absent = params.masks.sinks == nullptr || params.partial.partition_size != 0;
  return absent ? -INFINITY : params.masks.sinks[head];
}

// Turns the warps' states of every head of the group into the weights of their outputs, in place:
// `reference` becomes the warp's weight and the first warp's `sum` the head's lse. Head h is in
// states[h], states[h + kMaxWarpHeads * team_warps], ..., of warps that have seen different tokens.
// One thread per head.
__device__ __forceinline__ void merge_states(const AttentionParams& params, int first_head,
                                             int num_heads, HeadState* states, int team_warps) {
  const int head = threadIdx.x;
  if (head >= num_heads) return;
  const float sink = sink_of(params, first_head + head) * kLog2E;
  float largest = sink;
#pragma unroll
  for (int w = 0; w < kWarps; w += team_warps) {
    largest = fmaxf(largest, states[w * kMaxWarpHeads + head].reference);
  }
  // With nothing seen, 2^(-inf + inf) would be NaN.
  const float shift = largest == -INFINITY ? 0.0f : largest;
  float sum = ptx::exp2_approx(sink - shift);
#pragma unroll
  for (int w = 0; w < kWarps; w += team_warps) {
    HeadState& state = states[w * kMaxWarpHeads + head];
    state.reference = ptx::exp2_approx(state.reference - shift);
    sum += state.reference * state.sum;
  }
  const float normalizer = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
  for (int w = 0; w < kWarps; w += team_warps) {
    states[w * kMaxWarpHeads + head].reference *= normalizer;
  }
  states[head].sum = sum == 0.0f ? -INFINITY : (shift + log2f(sum)) * kLn2;
}

// Adds up the warps' outputs, warp w's at outputs + w * kWarpFloats, with the weights of
// merge_states().
template <typename T, typename Layout, int kHeadDim, int kMaxTeams>
__device__ __forceinline__ void write_rows(const OutputRows<T>& rows, int num_heads, int head_dim,
                                           const float* outputs, const HeadState* states,
                                           int team_warps) {
  constexpr int kWarpFloats = Tile<kHeadDim>::kWarpBytes / sizeof(float);
  static_assert(Layout::kHeads * Layout::kMergeStride <= kWarpFloats);
  for_each_piece<kHeadDim>(num_heads, head_dim, [&](int head, int dim) {
    const float* const first = outputs + head / Layout::kHeads * kWarpFloats +
                               head % Layout::kHeads * Layout::kMergeStride + dim;
    float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int team = 0; team < kMaxTeams; ++team) {
      const int w = team * team_warps;
      if (w >= kWarps) break;
      const float weight = states[w * kMaxWarpHeads + head].reference;
      const float4 part = *reinterpret_cast<const float4*>(first + w * kWarpFloats);
      value.x += weight * part.x;
      value.y += weight * part.y;
      value.z += weight * part.z;
      value.w += weight * part.w;
    }
    rows.write(head, dim, value, states[head].sum);
  });
}

// V1's rows of a sequence without a visible key.
template <typename T, int kHeadDim>
__device__ __forceinline__ void write_unseen(const AttentionParams& params,
                                             const OutputRows<T>& rows, int first_head,
                                             int num_heads) {
  for_each_piece<kHeadDim>(num_heads, params.cache.head_dim, [&](int head, int dim) {
    rows.write(head, dim, make_float4(0.0f, 0.0f, 0.0f, 0.0f), sink_of(params, first_head + head));
  });
}

}  // namespace pagedattn::decode_mma
