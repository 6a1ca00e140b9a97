// The query rows of one kv head's group, in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/convert.cuh"
#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "../half_query.cuh"
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

// For an 8-bit cache: the rows in fp16, their elements in the order in which fragments_8bit.cuh has
// those of K.
template <int kHeadDim>
__device__ __forceinline__ void stage_query_as_half(unsigned char* rows, int num_rows,
                                                    const AttentionParams& params,
                                                    const CtaWork& work) {
  for (int head = threadIdx.x / kWarpSize; head < num_rows; head += kWarps) {
    const int64_t first =
        work.seq * params.query.token_stride + (work.first_head + head) * params.query.head_stride;
    auto* const row = reinterpret_cast<__half*>(rows + head * Tile<kHeadDim>::kRowBytes);
    const float scale =
        store_half_row<kHeadDim>(row, params, first, head < work.num_heads, 1.0f, dim_position);
    if (threadIdx.x % kWarpSize == 0) *query_scale<kHeadDim>(rows, head) = scale;
  }
}

}  // namespace pagedattn::decode_mma
