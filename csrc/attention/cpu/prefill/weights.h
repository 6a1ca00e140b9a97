// From a row's scores in a tile to weights in the micro-kernel's units, in place: scaling, softcap,
// ALiBi and the online softmax, in powers of two.
#pragma once

#include <cmath>

#include "../../../common/cpu/math.h"
#include "exp2.h"
#include "tile_rows.h"

namespace pagedattn::PAGEDATTN_ISA {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// One query row: its place, and its softmax over the keys met so far.
struct PrefillRow {
  int position;
  int token;  // within the unit
  KvRange keys;  // that causality and window leave
  float alibi_slope;
  float reference;  // weights are 2^(logit * log2(e) - reference), the largest logit's about 1
  float sum;        // of the weights
};

// What turns scores into logits, the same for all rows of a unit.
struct Logits {
  Logits(const MaskParams& masks, float scale, bool scale_per_key)
      : scale(scale),
        softcap(masks.softcap),
        scale_per_key(scale_per_key),
        only_scaled(softcap == 0.0f && !masks.alibi_slopes && !scale_per_key && scale > 0.0f) {}

  float scale;
  float softcap;
  bool scale_per_key;
  bool only_scaled;  // then scores stay as they are, and the scale is part of the exponent

  float exponent_scale() const { return only_scaled ? scale * kLog2E : 1.0f; }

  // scores[begin, end) become logits * log2(e).
  void finish(const PrefillRow& row, const TileRows& tile, int begin, int end,
              float* scores) const {
    const Vec lanes = Vec::arange(0.0f, 1.0f);
    for (int t = begin; t < end; t += kWidth) {
      Vec logit = load(scores + t) * Vec(scale);
      if (scale_per_key) logit = logit * load(tile.key_scale + t);
      if (softcap > 0.0f) logit = Vec(softcap) * tanh(logit / Vec(softcap));
      if (row.alibi_slope != 0.0f) {
        const Vec distance = lanes + Vec(static_cast<float>(tile.begin + t - row.position));
        logit = at::vec::fmadd(Vec(row.alibi_slope), distance, logit);
      }
      store(scores + t, logit * Vec(kLog2E));
    }
  }
};

PAGEDATTN_ALWAYS_INLINE float largest_lane(Vec v) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_reduce_max_ps(v);
#else
  return max_lanes(v);
#endif
}

PAGEDATTN_ALWAYS_INLINE float total_of_lanes(Vec v) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_reduce_add_ps(v);
#else
  return sum_lanes(v);
#endif
}

inline bool has_nan_or_positive_infinity(const float* values, int begin, int end) {
  for (int t = begin; t < end; ++t) {
    if (!(values[t] < kInfinity)) return true;
  }
  return false;
}

// Weights of scores[begin, end), of which those that the row does not see are -inf; begin and end
// are multiples of 2 * kWidth. Returns the factor by which what was accumulated before has to
// shrink. value_scale (null: none) goes into the weights, not into their sum.
template <typename Kernel>
inline float update_weights(float exponent_scale, const float* value_scale, int begin, int end,
                            float* scores, PrefillRow& row) {
  Vec max[2] = {Vec(-kInfinity), Vec(-kInfinity)};
  Vec total[2] = {Vec(0.0f), Vec(0.0f)};  // NaN if a score is, which the maximum may not show
  for (int t = begin; t < end; t += 2 * kWidth) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const Vec score = load(scores + t + i * kWidth);
      max[i] = max_ignoring_first_nan(score, max[i]);
      total[i] = total[i] + score;
    }
  }
  const float row_max = largest_lane(max_ignoring_first_nan(max[0], max[1]));
  const Vec all = total[0] + total[1];
  const bool suspicious = row_max == kInfinity || (all != all).zero_mask() != (1 << kWidth) - 1;
  if (suspicious && has_nan_or_positive_infinity(scores, begin, end)) {
    const Vec nan(std::numeric_limits<float>::quiet_NaN());
    for (int t = begin; t < end; t += 2 * kWidth) Kernel::store_weights(scores, t, nan, nan);
    row.sum = std::numeric_limits<float>::quiet_NaN();
    return 1.0f;
  }

  const float tile_reference = row_max * exponent_scale;
  const float reference = row.reference < tile_reference ? tile_reference : row.reference;
  // While all logits are -inf their weights are 0, not 2^(-inf + inf) = NaN.
  const Vec shift(reference == -kInfinity ? 0.0f : -reference);
  const Vec factor(exponent_scale);
  Vec sum[2] = {Vec(0.0f), Vec(0.0f)};
  for (int t = begin; t < end; t += 2 * kWidth) {
    Vec weight[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const Vec exponent = at::vec::fmadd(load(scores + t + i * kWidth), factor, shift);
      weight[i] = exp2_weight<Kernel::kExpDegree>(exponent);
      sum[i] = sum[i] + weight[i];
      if (value_scale) {  // which may be anything where the weight is 0
        const Vec scaled = weight[i] * load(value_scale + t + i * kWidth);
        weight[i] = Vec::blendv(scaled, Vec(0.0f), weight[i] == Vec(0.0f));
      }
    }
    Kernel::store_weights(scores, t, weight[0], weight[1]);
  }
  float correction = 1.0f;
  if (row.reference != reference) {
    float lanes[kWidth];
    store(lanes, exp2_weight<Kernel::kExpDegree>(Vec(row.reference - reference)));
    correction = lanes[0];
  }
  row.reference = reference;
  row.sum = row.sum * correction + total_of_lanes(sum[0] + sum[1]);
  return correction;
}

}  // namespace pagedattn::PAGEDATTN_ISA
