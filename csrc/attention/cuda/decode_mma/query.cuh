// The query rows of one kv head's group, in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/vector.cuh"
#include "../../params.h"
#include "tile.h"

namespace pagedattn::decode_mma {

// Copies the group's heads to rows of Tile::kRowBytes; rows of absent heads and elements past
// head_dim become zeros. `aligned`: all rows of query start at multiples of 16 bytes.
template <typename T, int kHeadDim>
__device__ __forceinline__ void stage_query(unsigned char* rows, int num_rows,
                                            const AttentionParams& params, int seq, int first_head,
                                            int num_heads, bool aligned) {
  constexpr int kVec = 8;
  constexpr int kVecs = kHeadDim / kVec;
  const T* const query = static_cast<const T*>(params.query.data) +
                         seq * params.query.token_stride + first_head * params.query.head_stride;
  for (int i = threadIdx.x; i < num_rows * kVecs; i += kThreads) {
    const int head = i / kVecs;
    const int dim = i % kVecs * kVec;
    Vec<T, kVec> vec = zero_vec<T, kVec>();
    if (head < num_heads && dim < params.cache.head_dim) {
      const T* const from = query + head * params.query.head_stride + dim;
      if (aligned) {
        vec = load_vec<kVec>(from);
      } else {
#pragma unroll
        for (int e = 0; e < kVec; ++e) vec[e] = from[e];
      }
    }
    store_vec(reinterpret_cast<T*>(rows + head * Tile<kHeadDim>::kRowBytes) + dim, vec);
  }
}

}  // namespace pagedattn::decode_mma
