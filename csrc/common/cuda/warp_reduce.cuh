// Reductions over kLanes neighbouring lanes of a warp; every lane gets the result. All 32 lanes of
// the warp take part.
#pragma once

#include <math.h>

namespace pagedattn {

constexpr int kWarpSize = 32;
constexpr unsigned kFullWarp = 0xffffffffu;

template <int kLanes = kWarpSize>
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, step);
  }
  return value;
}

template <int kLanes = kWarpSize>
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, step));
  }
  return value;
}

}  // namespace pagedattn
