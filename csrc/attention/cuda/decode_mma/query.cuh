// The query rows of one kv head's group, in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/convert.cuh"
#include "../../../common/cuda/ptx.cuh"
#include "../../params.h"
#include "tile.h"
#include "work.cuh"

namespace pagedattn::decode_mma {

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
      for (int e = 0; e < kVec; ++e) row[dim + e] = exists ? from[e] : from_float<T>(0.0f);
    }
  }
}

}  // namespace pagedattn::decode_mma
