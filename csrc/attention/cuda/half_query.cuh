// A row of the query in fp16, whatever its type, for a cache whose codes become fp16.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

#include <cstdint>

#include "../../common/cuda/convert.cuh"
#include "../../common/cuda/warp_reduce.cuh"
#include "../params.h"

namespace pagedattn {

// fp16 has fewer exponents than bf16: the row is brought to the top of fp16's range by a power of
// two, so that elements down to 2^-32 of its largest stay exact. The warp writes the row that
// begins at element `first` of the query, with the sign of `sign`, or zeros, to `row`: elements dim
// and dim + 1 to position(dim). Returns what they are to be multiplied by.
template <int kHeadDim, typename Position>
__device__ __forceinline__ float store_half_row(__half* row, const AttentionParams& params,
                                                int64_t first, bool exists, float sign,
                                                Position&& position) {
  constexpr int kPairs = kHeadDim / 2 / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  float2 pairs[kPairs];
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int dim = (i * kWarpSize + lane) * 2;
    pairs[i] = make_float2(0.0f, 0.0f);
    if (exists && dim < params.cache.head_dim) {
      pairs[i].x = load_float(params.query.data, first + dim, params.dtype);
      pairs[i].y = load_float(params.query.data, first + dim + 1, params.dtype);
    }
    largest = fmaxf(largest, fmaxf(fabsf(pairs[i].x), fabsf(pairs[i].y)));
  }
  // The largest of [2^n, 2^(n+1)) goes to [2^14, 2^15).
  const uint32_t exponent = max(__float_as_uint(warp_max(largest)) >> 23, 15u);
  const float scale = copysignf(__uint_as_float((2 * 127 + 14 - exponent) << 23), sign);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    *reinterpret_cast<__half2*>(row + position((i * kWarpSize + lane) * 2)) =
        __floats2half2_rn(pairs[i].x * scale, pairs[i].y * scale);
  }
  return __uint_as_float((exponent - 14) << 23);
}

}  // namespace pagedattn
