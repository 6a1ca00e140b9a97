// Values of keys that not every row sees: a weight of 0 does not silence an infinity or a NaN.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "../../visibility.h"
#include "tile.h"

namespace pagedattn::varlen_mma {

// All ones in the halves that are infinite or NaN: adding 1 to the exponent carries into the sign.
template <typename T>
__device__ __forceinline__ uint32_t nonfinite_halves(uint32_t pair) {
  constexpr uint32_t kCarry = std::is_same_v<T, __half> ? 0x04000400u : 0x00800080u;
  return (((pair & 0x7fff7fffu) + kCarry) >> 15 & 0x00010001u) * 0xffffu;
}

// Of these, the infinite ones of one sign, and all NaN. `sign` has the sign bits of both halves.
template <typename T>
__device__ __forceinline__ uint32_t infinite_halves(uint32_t pair, uint32_t sign) {
  constexpr uint32_t kNanCarry = std::is_same_v<T, __half> ? 0x03ff03ffu : 0x007f007fu;
  const uint32_t is_nan = ((pair & 0x7fff7fffu) + kNanCarry) >> 15;
  const uint32_t has_sign = ~(pair ^ sign) >> 15;
  return nonfinite_halves<T>(pair) & ((is_nan | has_sign) & 0x00010001u) * 0xffffu;
}

// This thread's share of the V of a tile.
template <int kHeadDim, typename Visit>
__device__ __forceinline__ void for_each_chunk(unsigned char* values, Visit&& visit) {
  constexpr int kChunks = Matrix<kHeadDim>::kRowDataBytes / 16;
#pragma unroll 2
  for (int i = threadIdx.x; i < kTileTokens * kChunks; i += kThreads) {
    const int row = i / kChunks;
    visit(row,
          *reinterpret_cast<uint4*>(values + row * Matrix<kHeadDim>::kRowBytes + i % kChunks * 16));
  }
}

// Puts zeros in place of the rows outside `seen`, which may hold anything, of a tile that begins at
// `token`. Returns whether the others have an infinity or a NaN.
template <typename T, int kHeadDim>
__device__ __forceinline__ bool clear_unseen_values(unsigned char* values, int32_t token,
                                                    KvRange seen) {
  const uint32_t num_seen = seen.end - seen.begin;
  uint32_t found = 0;
  for_each_chunk<kHeadDim>(values, [&](int row, uint4& chunk) {
    if (static_cast<uint32_t>(token + row - seen.begin) < num_seen) {
      found |= nonfinite_halves<T>(chunk.x) | nonfinite_halves<T>(chunk.y) |
               nonfinite_halves<T>(chunk.z) | nonfinite_halves<T>(chunk.w);
    } else {
      chunk = make_uint4(0, 0, 0, 0);
    }
  });
  return found != 0;
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void clear_nonfinite_values(unsigned char* values) {
  for_each_chunk<kHeadDim>(values, [](int, uint4& chunk) {
    chunk.x &= ~nonfinite_halves<T>(chunk.x);
    chunk.y &= ~nonfinite_halves<T>(chunk.y);
    chunk.z &= ~nonfinite_halves<T>(chunk.z);
    chunk.w &= ~nonfinite_halves<T>(chunk.w);
  });
}

}  // namespace pagedattn::varlen_mma
