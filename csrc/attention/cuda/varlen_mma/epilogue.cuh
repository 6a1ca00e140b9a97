// The end of a CTA: softmax states and accumulators become rows of out and lse.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>

#include <cstdint>
#include <cstring>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/vector.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "../mma_operands.cuh"
#include "../varlen_rows.cuh"
#include "cta_state.cuh"
#include "fragments.cuh"
#include "main_loop.cuh"
#include "partition.cuh"
#include "query.cuh"
#include "scales.cuh"
#include "softmax.cuh"
#include "tile.h"

namespace pagedattn::varlen_mma {

// The reduce adds it where the row has partitions.
__device__ __forceinline__ float row_sink(const AttentionParams& params, const Partition& partition,
                                          int head) {
  const bool has_sink = params.masks.sinks != nullptr && !partition.is_partial();
  return has_sink ? params.masks.sinks[head] * kLog2E : -INFINITY;
}

// Turns what kParts warps have seen of a row into the weights of their accumulators, times
// `value_scale`, in place of the references; returns the row's lse. `sink`, in units of log2, is a
// logit without a value.
template <int kParts>
__device__ __forceinline__ float merge_states(RowState (&parts)[kParts], float sink,
                                              float value_scale) {
  float largest = sink;
#pragma unroll
  for (const RowState& part : parts) largest = fmaxf(largest, part.reference);
  float sum = ptx::exp2_approx(sink - largest);
#pragma unroll
  for (RowState& part : parts) {
    part.reference = ptx::exp2_approx(part.reference - largest);
    sum += part.reference * part.sum;
  }
  const float normalizer = sum == 0.0f ? 0.0f : value_scale / sum;
#pragma unroll
  for (RowState& part : parts) part.reference *= normalizer;
  return sum == 0.0f ? -INFINITY : (largest + log2f(sum)) * kLn2;
}

__device__ __forceinline__ void write_lse(const AttentionParams& params, const VarlenWork& work,
                                          const Partition& partition, const QueryRow& at,
                                          float lse) {
  if (partition.is_partial()) {
    params.partial.lse[partition.partial(params, work, at)] = lse;
    return;
  }
  if (params.lse == nullptr) return;
  params.lse[(int64_t{work.first_token} + at.token) * params.lse_token_stride +
             at.head * params.lse_head_stride] = lse;
}

// Two elements of out. Over an 8-bit cache its type is known at run time only.
template <typename T>
__device__ __forceinline__ uint32_t pack_out(const AttentionParams& params, float low, float high) {
  if constexpr (is_8bit<T>) {
    if (params.dtype == DType::kBFloat16) return pack<__nv_bfloat16>(low, high);
  }
  return pack<Element<T>>(low, high);
}

// Elements of out from `dim` on, as bits. `aligned`: rows start at multiples of the size of the
// vector.
template <int kVec>
__device__ __forceinline__ void write_out(const AttentionParams& params, const VarlenWork& work,
                                          const QueryRow& at, int dim,
                                          const Vec<uint16_t, kVec>& vec, bool aligned) {
  uint16_t* const to =
      static_cast<uint16_t*>(params.out.data) + row_offset(params.out, work, at) + dim;
  if (aligned) {
    store_vec(to, vec);
    return;
  }
#pragma unroll
  for (int e = 0; e < kVec; ++e) to[e] = vec[e];
}

// Row r of a lane's fragment, to the workspace.
template <int kColumns>
__device__ __forceinline__ void write_partial_row(const AttentionParams& params, int64_t partial,
                                                  const float (&out)[kColumns][4], int r,
                                                  float weight) {
  const int lane = threadIdx.x % kWarpSize;
  float* const to = params.partial.out + partial * params.cache.head_dim + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    if (n * 8 >= params.cache.head_dim) break;
    *reinterpret_cast<float2*>(to + n * 8) =
        make_float2(out[n][2 * r] * weight, out[n][2 * r + 1] * weight);
  }
}

// Warps with rows of their own: each takes them through its part of the query's shared memory, to
// write whole rows.
template <typename T, int kHeadDim, int kRows>
__device__ __forceinline__ void write_own_rows(const AttentionParams& params,
                                               const VarlenMmaConfig& config,
                                               const CtaState<kHeadDim>& cta, unsigned char* shared,
                                               WarpRows<T, kHeadDim, kRows>& rows) {
  constexpr int kRowBytes = Matrix<kHeadDim>::kRowBytes;
  constexpr int kWarpRows = RowTile<kRows>::kWarpRows;
  const int lane = threadIdx.x % kWarpSize;
  const int first_row = RowTile<kRows>::first_row(threadIdx.x / kWarpSize);
  unsigned char* const staged = shared + first_row * kRowBytes;
  const VarlenWork work = cta.work();
  const Partition partition = tile_partition<kRows>(cta);
  const float value_scale = output_scale<T>(params, work.kv_head);
#pragma unroll
  for (int f = 0; f < RowTile<kRows>::kFragments; ++f) {
    rows.softmax[f].reduce_sums();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = f * 16 + r * 8 + lane / 4;
      const QueryRow at = query_row(work, first_row + row, config.group_size);
      if (!at.exists) continue;
      RowState state[1] = {rows.softmax[f].state(r)};
      const float lse = merge_states(state, row_sink(params, partition, at.head), value_scale);
      if (lane % 4 == 0) write_lse(params, work, partition, at, lse);
      if (partition.is_partial()) {
        write_partial_row(params, partition.partial(params, work, at), rows.out[f], r,
                          state[0].reference);
        continue;
      }
      unsigned char* const to = staged + row * kRowBytes + lane % 4 * 4;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        *reinterpret_cast<uint32_t*>(to + n * 16) =
            pack_out<T>(params, rows.out[f][n][2 * r] * state[0].reference,
                        rows.out[f][n][2 * r + 1] * state[0].reference);
      }
    }
  }
  if (partition.is_partial()) return;
  __syncwarp();
  constexpr int kVec = 8;
  constexpr int kVecs = kHeadDim / kVec;
  for (int i = lane; i < kWarpRows * kVecs; i += kWarpSize) {
    const int row = i / kVecs;
    const int dim = i % kVecs * kVec;
    const QueryRow at = query_row(work, first_row + row, config.group_size);
    if (!at.exists || dim >= params.cache.head_dim) continue;
    write_out(params, work, at, dim,
              load_vec<kVec>(reinterpret_cast<const uint16_t*>(staged + row * kRowBytes) + dim),
              config.aligned_out);
  }
}

// Warps with tokens of their own: their accumulators meet, as fp32, where the tiles were.
template <typename T, int kHeadDim, int kRows>
__device__ __forceinline__ void merge_rows(const AttentionParams& params,
                                           const VarlenMmaConfig& config,
                                           const CtaState<kHeadDim>& cta, unsigned char* shared,
                                           WarpRows<T, kHeadDim, kRows>& rows) {
  using Shared = SharedLayout<kHeadDim, kRows, sizeof(T)>;
  constexpr int kStride = Shared::Merge::kStride;
  constexpr int kWarpFloats = kRows * kStride;
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const VarlenWork work = cta.work();
  const Partition partition = tile_partition<kRows>(cta);
  auto* const outputs = reinterpret_cast<float*>(shared + Shared::kTiles);
  auto* const states = reinterpret_cast<RowState*>(shared + Shared::kStates);
  rows.softmax[0].reduce_sums();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = r * 8 + lane / 4;
    if (lane % 4 == 0) states[warp * kRows + row] = rows.softmax[0].state(r);
    float* const to = outputs + warp * kWarpFloats + row * kStride + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      *reinterpret_cast<float2*>(to + n * 8) =
          make_float2(rows.out[0][n][2 * r], rows.out[0][n][2 * r + 1]);
    }
  }
  __syncthreads();

  constexpr int kVec = 4;
  const float value_scale = output_scale<T>(params, work.kv_head);
  for (int row = warp; row < kRows; row += kWarps) {
    const QueryRow at = query_row(work, row, config.group_size);
    if (!at.exists) break;
    RowState parts[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) parts[w] = states[w * kRows + row];
    const float lse = merge_states(parts, row_sink(params, partition, at.head), value_scale);
    if (lane == 0) write_lse(params, work, partition, at, lse);
    for (int dim = lane * kVec; dim < params.cache.head_dim; dim += kWarpSize * kVec) {
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float4 part =
            *reinterpret_cast<const float4*>(outputs + w * kWarpFloats + row * kStride + dim);
        const float weight = parts[w].reference;
        sum.x += weight * part.x;
        sum.y += weight * part.y;
        sum.z += weight * part.z;
        sum.w += weight * part.w;
      }
      if (partition.is_partial()) {
        *reinterpret_cast<float4*>(params.partial.out +
                                   partition.partial(params, work, at) * params.cache.head_dim +
                                   dim) = sum;
        continue;
      }
      Vec<uint16_t, kVec> vec;
      const uint2 bits =
          make_uint2(pack_out<T>(params, sum.x, sum.y), pack_out<T>(params, sum.z, sum.w));
      memcpy(&vec, &bits, sizeof(vec));
      write_out(params, work, at, dim, vec, config.aligned_out);
    }
  }
}

}  // namespace pagedattn::varlen_mma
