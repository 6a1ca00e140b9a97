// The query rows of one kv head's group, in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/convert.cuh"
#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "tile.h"
#include "work.cuh"

namespace pagedattn::decode_mma {

// Where elements dim and dim + 1 (dim is even) of the query are stored for an 8-bit cache.
__device__ __forceinline__ int dim_position(int dim) {
  return dim / 16 * 16 + dim % 16 / 4 * 2 + dim % 4 / 2 * 8;
}

// Brings the group's heads to rows of Tile::kRowBytes; rows of absent heads and elements past
// head_dim become zeros. Where all rows of query start at multiples of 16 bytes (`aligned`), the
// copies are still on their way when it returns.
template <typename T, int kHeadDim>
__device__ __forceinline__ void stage_query(unsigned char* rows, unsigned num_rows,
                                            const AttentionParams& params, const CtaWork& work,
                                            bool aligned) {
  constexpr int kRowBytes = Tile<kHeadDim>::kRowBytes;
  constexpr unsigned kVec = 16 / sizeof(T);
  constexpr unsigned kVecs = kHeadDim / kVec;
  const T* const query = static_cast<const T*>(params.query.data) +
                         work.seq * params.query.token_stride +
                         work.first_head * params.query.head_stride;
  const uint32_t to = ptx::shared_address(rows);
#pragma unroll
  for (unsigned first = 0; first < num_rows * kVecs; first += kThreads) {
    const unsigned i = first + threadIdx.x;
    const unsigned head = i / kVecs;
    const int dim = i % kVecs * kVec;
    if (head >= num_rows) break;
    const T* const from = query + head * params.query.head_stride + dim;
    const bool exists = head < static_cast<unsigned>(work.num_heads) && dim < params.cache.head_dim;
    if (aligned) {
      ptx::cp_async_16(to + head * kRowBytes + dim * sizeof(T), from, exists ? 16 : 0);
    } else {
      T* const row = reinterpret_cast<T*>(rows + head * kRowBytes);
#pragma unroll
      for (unsigned e = 0; e < kVec; ++e) row[dim + e] = exists ? from[e] : from_float<T>(0.0f);
    }
  }
}

// Where the row of a head keeps what its elements are to be multiplied by: in its padding.
template <int kHeadDim>
__device__ __forceinline__ float* query_scale(unsigned char* rows, int head) {
  return reinterpret_cast<float*>(rows + head * Tile<kHeadDim>::kRowBytes +
                                  Tile<kHeadDim>::kRowDataBytes);
}
template <int kHeadDim>
__device__ __forceinline__ const float* query_scale(const unsigned char* rows, int head) {
  return query_scale<kHeadDim>(const_cast<unsigned char*>(rows), head);
}

// For an 8-bit cache: the rows in fp16, which has fewer exponents than bf16. Each is brought to the
// top of fp16's range by a power of two, so that elements down to 2^-32 of the row's largest stay
// exact. The elements are in the order in which fragments_8bit.cuh has those of K.
template <int kHeadDim>
__device__ __forceinline__ void stage_query_as_half(unsigned char* rows, int num_rows,
                                                    const AttentionParams& params,
                                                    const CtaWork& work) {
  constexpr int kPairs = kHeadDim / 2 / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  for (int head = threadIdx.x / kWarpSize; head < num_rows; head += kWarps) {
    const int64_t first =
        work.seq * params.query.token_stride + (work.first_head + head) * params.query.head_stride;
    float2 pairs[kPairs];
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int dim = (i * kWarpSize + lane) * 2;
      const bool exists = head < work.num_heads && dim < params.cache.head_dim;
      pairs[i] = make_float2(0.0f, 0.0f);
      if (exists) {
        pairs[i].x = load_float(params.query.data, first + dim, params.dtype);
        pairs[i].y = load_float(params.query.data, first + dim + 1, params.dtype);
      }
      largest = fmaxf(largest, fmaxf(fabsf(pairs[i].x), fabsf(pairs[i].y)));
    }
    // The largest of [2^n, 2^(n+1)) goes to [2^14, 2^15).
    const uint32_t exponent = max(__float_as_uint(warp_max(largest)) >> 23, 15u);
    const float scale = __uint_as_float((2 * 127 + 14 - exponent) << 23);
    auto* const row = reinterpret_cast<__half2*>(rows + head * Tile<kHeadDim>::kRowBytes);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int position = dim_position((i * kWarpSize + lane) * 2);
      row[position / 2] = __floats2half2_rn(pairs[i].x * scale, pairs[i].y * scale);
    }
    if (lane == 0) {
      *query_scale<kHeadDim>(rows, head) = __uint_as_float((exponent - 14) << 23);
    }
  }
}

}  // namespace pagedattn::decode_mma
