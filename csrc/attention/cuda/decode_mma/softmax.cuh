// Softmax over tiles whose reference maximum moves only when it must.
//
// The usual online softmax looks for each tile's maximum and rescales the output for it, which
// costs more instructions than the exponentials. Here the weights are 2^(logit - reference) for a
// reference kept kHeadroom above the largest logit seen when it was last set, so they start out
// small; only when a weight reaches 2 is the tile done again with a new reference. The test is a
// bit of the packed weights: in fp16 and in bf16, bit 14 is set in 2 and all above it, infinities
// and NaN, and in nothing below. The first tile, with a reference of -inf, takes the same way.
//
// Where V rows have scales of their own, it is weight * scale that goes into the mma, and the
// reference is for these products: a scale is as good as a change of the logit.
#pragma once

#include <cuda_fp16.h>
#include <math.h>

#include <cstdint>
#include <type_traits>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../mma_operands.cuh"

namespace pagedattn::decode_mma {

// The state of a lane's two heads of a fragment; logits are in units of log2.
template <typename T, typename Layout>
struct LazySoftmax {
  static constexpr int kScores = Layout::kScores;
  using Output = std::remove_extent_t<typename Layout::Output>;

  // bf16 has exponents to spare; of fp16's 14 below 1, weights of small logits need the rest.
  static constexpr float kHeadroom = std::is_same_v<T, __half> ? 3.0f : 24.0f;

  static constexpr float kLeastScaleLog2 = -60.0f;

  float minus_reference[2] = {INFINITY, INFINITY};
  float sum[2] = {0.0f, 0.0f};  // over this lane's tokens

  // The weights of logits scores * factors, times the scales of their V rows, packed in pairs; out
  // is rescaled where the reference moves.
  template <typename Scales>
  __device__ __forceinline__ void weigh(const float (&scores)[kScores], const float (&factors)[2],
                                        const Scales& scales, Output& out,
                                        uint32_t (&packed)[kScores / 2]) {
    float weights[kScores];
#pragma unroll
    for (int e = 0; e < kScores; ++e) {
      const int state = Layout::state_of(e);
      weights[e] = ptx::exp2_approx(fmaf(scores[e], factors[state], minus_reference[state]));
    }
    if (__any_sync(kFullWarp, pack_weights(weights, scales, packed))) {
      raise_reference(scores, factors, scales, out, weights);
      pack_weights(weights, scales, packed);
    }
#pragma unroll
    for (int e = 0; e < kScores; ++e) sum[Layout::state_of(e)] += weights[e];
  }

  // Adds up what the lanes with the same heads hold.
  __device__ __forceinline__ void reduce_sums() {
#pragma unroll
    for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
      if ((lanes & Layout::kTokenLanes) == 0) continue;
#pragma unroll
      for (float& s : sum) s += __shfl_xor_sync(kFullWarp, s, lanes);
    }
  }

 private:
  // Returns whether a scaled weight is 2 or more.
  template <typename Scales>
  __device__ __forceinline__ bool pack_weights(const float (&weights)[kScores],
                                               const Scales& scales,
                                               uint32_t (&packed)[kScores / 2]) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      packed[i] = pack<T>(weights[2 * i] * scales.of_weight(2 * i),
                          weights[2 * i + 1] * scales.of_weight(2 * i + 1));
      bits |= packed[i];
    }
    return (bits & 0x40004000u) != 0;
  }

  template <typename Scales>
  __device__ __forceinline__ void raise_reference(const float (&scores)[kScores],
                                                  const float (&factors)[2], const Scales& scales,
                                                  Output& out, float (&weights)[kScores]) {
    float rescale[2];
    bool has_seen = false;
#pragma unroll
    for (int state = 0; state < 2; ++state) {
      float largest = -INFINITY;
#pragma unroll
      for (int e = 0; e < kScores; ++e) {
        if (Layout::state_of(e) != state) continue;
        float logit = scores[e] * factors[state];
        // The largest scaled weight counts, but unscaled ones must not overflow either.
        if constexpr (Scales::kScalesWeights) {
          logit += fmaxf(log2f(scales.of_weight(e)), kLeastScaleLog2);
        }
        largest = fmaxf(largest, logit);
      }
#pragma unroll
      for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
        if ((lanes & Layout::kTokenLanes) == 0) continue;
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, lanes));
      }
      const float raised = fminf(minus_reference[state], -(largest + kHeadroom));
      // A head that has seen nothing has nothing to rescale, and inf - inf is not a number.
      const bool seen = minus_reference[state] != INFINITY;
      rescale[state] = seen ? ptx::exp2_approx(raised - minus_reference[state]) : 0.0f;
      has_seen |= seen;
      minus_reference[state] = raised;
      sum[state] *= rescale[state];
    }
    if (__any_sync(kFullWarp, has_seen)) {
#pragma unroll
      for (auto& tile : out) {
#pragma unroll
        for (int e = 0; e < 4; ++e) tile[e] *= rescale[Layout::state_of(e)];
      }
    }
#pragma unroll
    for (int e = 0; e < kScores; ++e) {
      const float logit = scores[e] * factors[Layout::state_of(e)];
      weights[e] = logit == -INFINITY
                       ? 0.0f
                       : ptx::exp2_approx(logit + minus_reference[Layout::state_of(e)]);
    }
  }
};

}  // namespace pagedattn::decode_mma
