// From the dot product of a query and a key to a logit.
#pragma once

#include <math.h>

#include <cstdint>

#include "../params.h"

namespace pagedattn {

// Scale, then softcap, then ALiBi; masks come last and are the caller's.
struct LogitRule {
  float scale;
  float softcap;
  float slope;

  __device__ __forceinline__ LogitRule(const AttentionParams& params, int head)
      : scale(params.scale),
        softcap(params.masks.softcap),
        slope(params.masks.alibi_slopes == nullptr ? 0.0f : params.masks.alibi_slopes[head]) {}

  // distance: kv_pos - q_pos.
  __device__ __forceinline__ float operator()(float dot, int32_t distance) const {
    return of_scaled(dot * scale, distance);
  }

  __device__ __forceinline__ float of_scaled(float logit, int32_t distance) const {
    if (softcap > 0.0f) logit = softcap * tanhf(logit / softcap);
    if (slope != 0.0f) logit += slope * static_cast<float>(distance);
    return logit;
  }
};

}  // namespace pagedattn
