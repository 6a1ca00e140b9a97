// From a row's scores in a tile to weights in the micro-kernel's units, in place: scaling, softcap,
// ALiBi and the online softmax, in powers of two.
#pragma once

#include <cmath>

#include "../../../common/cpu/tanh.h"
#include "../exp2.h"
#include "../softmax.h"
#include "tile_rows.h"

namespace pagedattn::PAGEDATTN_ISA {

// One query row: its place, and its softmax over the keys met so far.
struct PrefillRow {
  int position;
  int token;     // within the unit
  KvRange keys;  // that causality and window leave
  float alibi_slope;
  float reference;                // weights are 2^(logit * log2(e) - reference)
  alignas(64) float sum[kWidth];  // of the weights, in parts
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

// Not above: NaN.
PAGEDATTN_ALWAYS_INLINE bool any_lane_above(Vec v, float limit) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_cmp_ps_mask(v, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
#else
  return (v > Vec(limit)).zero_mask() != (1 << kWidth) - 1;
#endif
}

// Weights of scores[begin, end), of which those that the row does not see are -inf; begin and end
// are multiples of 2 * kWidth. Returns the factor by which what was accumulated before has to
// shrink. value_scale (null: none) goes into the weights, not into their sum. A score of NaN or
// +inf makes a weight of NaN, and so the whole row.
template <typename Kernel>
inline float update_weights(float exponent_scale, const float* value_scale, int begin, int end,
                            float* scores, PrefillRow& row) {
  Vec max[2] = {Vec(-kInfinity), Vec(-kInfinity)};
  for (int t = begin; t < end; t += 2 * kWidth) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      max[i] = max_ignoring_first_nan(load(scores + t + i * kWidth), max[i]);
    }
  }
  const Vec largest = max_ignoring_first_nan(max[0], max[1]) * Vec(exponent_scale);
  float correction = 1.0f;
  if (any_lane_above(largest, row.reference + kHeadroom)) {
    const float reference = max_lanes(largest);
    correction = exp2_weight<Kernel::kExpDegree>(row.reference - reference);
    row.reference = reference;
    store(row.sum, load(row.sum) * Vec(correction));
  }
  // While all logits are -inf their weights are 0, not 2^(-inf + inf) = NaN.
  const Vec shift(row.reference == -kInfinity ? 0.0f : -row.reference);
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
  store(row.sum, load(row.sum) + (sum[0] + sum[1]));
  return correction;
}

}  // namespace pagedattn::PAGEDATTN_ISA
