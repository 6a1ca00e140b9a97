// From raw scores to weights: scaling, softcap, ALiBi, and the online softmax (Milakov and
// Gimelshein 2018; the tiled form is FlashAttention's).
#pragma once

#include <cmath>

#include "../../common/cpu/tanh.h"
#include "exp2.h"
#include "tile.h"

namespace pagedattn::PAGEDATTN_ISA {

// What turns a dot product into a logit, the same for all rows of a unit. Logits are in powers of
// two, so log2(e) times what they would be.
struct LogitRule {
  float scale;  // the common scale of the keys included
  float softcap;
  bool scale_per_key;  // each key has a scale of its own
};

// The reference moves only when a weight would exceed 2^kHeadroom, so in most tiles nothing waits
// for the maximum of a row, and nothing is rescaled.
constexpr float kHeadroom = 8.0f;

// One query row: its place, and its softmax over the keys met so far.
struct RowState {
  int position;
  float alibi_slope;
  float reference;  // no logit is more than kHeadroom above it
  Vec sum;          // its lanes together: of 2^(logit - reference)
};

// What a tile is to one row: its logits, then its weights.
struct TileRow {
  static constexpr int kVectors = kTile / kWidth;
  Vec v[kVectors];
};

// Logits of a row of scores; past the tile's tokens they are -inf, so that their weight is 0.
template <typename T>
PAGEDATTN_ALWAYS_INLINE void finish_logits(const LogitRule& rule, const RowState& row,
                                           const Tile<T>& tile, const float* key_scale,
                                           const float* scores, TileRow& logits) {
#pragma GCC unroll 16
  for (int i = 0; i < TileRow::kVectors; ++i) {
    const int t = i * kWidth;
    Vec logit = load(scores + t) * Vec(rule.scale * kLog2E);
    if (rule.scale_per_key) logit = logit * load(key_scale + t);
    if (rule.softcap > 0.0f) {
      const Vec softcap(rule.softcap * kLog2E);
      logit = softcap * tanh(logit / softcap);
    }
    if (row.alibi_slope != 0.0f) {
      const Vec distance =
          load(tile.offset + t) + Vec(static_cast<float>(tile.begin - row.position));
      logit = at::vec::fmadd(Vec(row.alibi_slope * kLog2E), distance, logit);
    }
    if (tile.count < kTile) {
      const Vec token = Vec::arange(static_cast<float>(t), 1.0f);
      logit = Vec::blendv(Vec(-kInfinity), logit, token < Vec(static_cast<float>(tile.count)));
    }
    logits.v[i] = logit;
  }
}

// Moves the reference of the row if these logits ask for it. Returns the factor by which what was
// accumulated before has to shrink.
template <int ExpDegree>
PAGEDATTN_ALWAYS_INLINE float raise_reference(const TileRow& logits, RowState& row) {
  Vec max = logits.v[0];
#pragma GCC unroll 16
  for (int i = 1; i < TileRow::kVectors; ++i) max = at::vec::maximum(max, logits.v[i]);
  const bool moves = (max <= Vec(row.reference + kHeadroom)).zero_mask() != 0;  // or there is NaN
  if (!moves) return 1.0f;
  const float reference = max_lanes(max);
  const float correction = exp2_weight<ExpDegree>(row.reference - reference);
  row.reference = reference;
  row.sum = row.sum * Vec(correction);
  return correction;
}

// Turns logits into weights 2^(logit - reference) and adds them to the row's sum.
template <int ExpDegree>
PAGEDATTN_ALWAYS_INLINE void weigh(TileRow& logits, RowState& row) {
  // While all logits are -inf their weights are 0, not 2^(-inf + inf) = NaN.
  const Vec shift(row.reference == -kInfinity ? 0.0f : row.reference);
  Vec sum = row.sum;
#pragma GCC unroll 16
  for (int i = 0; i < TileRow::kVectors; ++i) {
    logits.v[i] = exp2_weight<ExpDegree>(logits.v[i] - shift);
    sum = sum + logits.v[i];
  }
  row.sum = sum;
}

// The end of a row: lse (natural logarithm, of the sink too) and the factor that normalises the
// accumulated output. `reference` is in powers of two. A row that met no key gives -inf (or the
// sink) and 0.
struct RowResult {
  float lse;
  float factor;
};

inline RowResult finish_softmax(float reference, float row_sum, const float* sink) {
  reference *= kLn2;
  if (sink == nullptr || *sink == -kInfinity) {  // a sink of -inf is none
    if (row_sum == 0.0f) return {-kInfinity, 0.0f};
    return {reference + std::log(row_sum), 1.0f / row_sum};
  }
  const float max = reference < *sink ? *sink : reference;
  const float shrink = std::exp(reference - max);
  const float sum = row_sum * shrink + std::exp(*sink - max);
  return {max + std::log(sum), shrink / sum};
}

}  // namespace pagedattn::PAGEDATTN_ISA
