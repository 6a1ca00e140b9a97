// The CTA's query rows, in shared memory.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

#include <cfloat>
#include <cstdint>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/vector.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "../cache_scales.cuh"
#include "../half_query.cuh"
#include "../varlen_rows.cuh"
#include "../widen.cuh"
#include "config.h"
#include "tile.h"

namespace pagedattn::varlen_mma {

// Where a row begins in a tensor of tokens.
__device__ __forceinline__ int64_t row_offset(const TokenView& view, const VarlenWork& work,
                                              const QueryRow& at) {
  return (int64_t{work.first_token} + at.token) * view.token_stride + at.head * view.head_stride;
}

// Copies the rows to `rows`; rows that do not exist and elements past head_dim become zeros.
// `aligned`: all rows of query start at multiples of 16 bytes, and cp.async copies them.
template <typename T, int kHeadDim, int kRows>
__device__ __forceinline__ void load_query(unsigned char* rows, const AttentionParams& params,
                                           const VarlenWork& work, FastDivide group_size,
                                           bool aligned) {
  constexpr int kVec = 8;
  constexpr int kVecs = kHeadDim / kVec;
  const T* const query = static_cast<const T*>(params.query.data);
  const uint32_t address = ptx::shared_address(rows);
  for (int i = threadIdx.x; i < kRows * kVecs; i += kThreads) {
    const int row = i / kVecs;
    const int dim = i % kVecs * kVec;
    const int offset = row * Matrix<kHeadDim>::kRowBytes + dim * 2;
    const QueryRow at = query_row(work, row, group_size);
    const bool exists = at.exists && dim < params.cache.head_dim;
    const T* const from = query + (exists ? row_offset(params.query, work, at) + dim : 0);
    if (aligned) {
      ptx::cp_async_16(address + offset, from, exists ? 16 : 0);
      continue;
    }
    Vec<T, kVec> vec = zero_vec<T, kVec>();
    if (exists) {
#pragma unroll
      for (int e = 0; e < kVec; ++e) vec[e] = from[e];
    }
    store_vec(reinterpret_cast<T*>(rows + offset), vec);
  }
}

// For an 8-bit cache: the rows in fp16, and for each what turns its scores into what the softmax or
// the logit's rule takes. The sign of K's scale goes to the query: masked scores are -inf, and stay
// so times a positive factor alone.
template <int kHeadDim, int kRows>
__device__ __forceinline__ void load_query_as_half(unsigned char* rows, float* factors,
                                                   const AttentionParams& params,
                                                   const VarlenMmaConfig& config,
                                                   const VarlenWork& work) {
  const float key_scale =
      head_scale(params, params.cache.key, work.kv_head) * code_unit(params.cache.dtype);
  const float factor =
      (config.has_logit_rule ? config.rule_scale : config.factor) * fabsf(key_scale);
  for (int row = threadIdx.x / kWarpSize; row < kRows; row += kWarps) {
    const QueryRow at = query_row(work, row, config.group_size);
    const int64_t first = at.exists ? row_offset(params.query, work, at) : 0;
    auto* const to = reinterpret_cast<__half*>(rows + row * Matrix<kHeadDim>::kRowBytes);
    const float unit = store_half_row<kHeadDim>(
        to, params, first, at.exists, copysignf(1.0f, key_scale), [](int dim) { return dim; });
    const float row_factor = factor * unit;
    if (threadIdx.x % kWarpSize != 0) continue;
    factors[row] = !config.has_logit_rule && row_factor < FLT_MIN ? FLT_MIN : row_factor;
  }
}

}  // namespace pagedattn::varlen_mma
