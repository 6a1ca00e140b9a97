// Softmax over logits that arrive piece by piece (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018).
#pragma once

#include <math.h>

namespace pagedattn {

// The largest logit so far and the sum of exp(logit - max). Whoever accumulates weighted values
// beside it multiplies them by what raise_max() returns.
struct OnlineSoftmax {
  float max = -INFINITY;
  float sum = 0.0f;

  // Covers a new logit; returns the factor that brings earlier sums to the new maximum. While all
  // logits are -inf it is 1, not exp(-inf + inf) = NaN.
  __device__ __forceinline__ float raise_max(float logit) {
    const float raised = fmaxf(max, logit);
    const float factor = raised == max ? 1.0f : expf(max - raised);
    max = raised;
    sum *= factor;
    return factor;
  }

  // Of a logit not above max. A masked logit (-inf) weighs 0, even where nothing else was seen.
  __device__ __forceinline__ float weight(float logit) const {
    return logit == -INFINITY ? 0.0f : expf(logit - max);
  }

  // One more logit in the denominator, without a value; returns raise_max's factor.
  __device__ __forceinline__ float add(float logit) {
    const float factor = raise_max(logit);
    sum += weight(logit);
    return factor;
  }

  __device__ __forceinline__ float lse() const { return sum == 0.0f ? -INFINITY : max + logf(sum); }

  // What turns accumulated values into the output: 0 for a row that saw nothing.
  __device__ __forceinline__ float normalizer() const { return sum == 0.0f ? 0.0f : 1.0f / sum; }
};

}  // namespace pagedattn
