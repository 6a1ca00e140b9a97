// From the codes of a tile's K or V to a matrix of fp16. The CTA does it once, where every warp
// that multiplies the tile would do it again in registers; one loop for each type is all that the
// code of a kernel knows of it.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/dtype.h"
#include "../widen.cuh"
#include "tile.h"

namespace pagedattn::varlen_mma {

template <typename Storage, int kHeadDim>
__device__ __forceinline__ void widen_codes(const unsigned char* codes, unsigned char* matrix) {
  constexpr int kVec = 8;
  constexpr int kVecsPerRow = kHeadDim / kVec;
  const int thread = threadIdx.x;
  codes += thread * kVec;
  matrix += thread / kVecsPerRow * Matrix<kHeadDim>::kRowBytes + thread % kVecsPerRow * 2 * kVec;
  constexpr int kStepRows = kThreads / kVecsPerRow;
#pragma unroll
  for (int row = 0; row < kTileTokens; row += kStepRows) {
    const uint2 from = *reinterpret_cast<const uint2*>(codes + row * kHeadDim);
    uint4 to;
    Widen<Storage>::template apply<Pairs::kAdjacent>(from.x, to.x, to.y);
    Widen<Storage>::template apply<Pairs::kAdjacent>(from.y, to.z, to.w);
    *reinterpret_cast<uint4*>(matrix + row * Matrix<kHeadDim>::kRowBytes) = to;
  }
}

template <int kHeadDim>
__device__ __forceinline__ void widen_tile(const unsigned char* codes, unsigned char* matrix,
                                           DType dtype) {
  if (dtype == DType::kFloat8E4M3) return widen_codes<__nv_fp8_e4m3, kHeadDim>(codes, matrix);
  if (dtype == DType::kFloat8E5M2) return widen_codes<__nv_fp8_e5m2, kHeadDim>(codes, matrix);
  widen_codes<int8_t, kHeadDim>(codes, matrix);
}

}  // namespace pagedattn::varlen_mma
