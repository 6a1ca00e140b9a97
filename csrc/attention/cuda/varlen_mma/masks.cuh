// What the plain tile skips: softcap and ALiBi, and keys that not every row sees.
#pragma once

#include <cuda_runtime.h>
#include <math.h>

#include <cstdint>

#include "../../../common/cuda/ptx.cuh"
#include "../mma_operands.cuh"
#include "../varlen_rows.cuh"
#include "config.h"

namespace pagedattn::varlen_mma {

// Within 2e-7 of tanh(x), absolutely.
__device__ __forceinline__ float tanh_by_exp2(float x) {
  return 1.0f - __fdividef(2.0f, ptx::exp2_approx(2.0f * kLog2E * x) + 1.0f);
}

// Turns the scores of one row of a fragment (every other pair, from `r` on) into logits in units of
// log2: softcap, ALiBi. `scale`: divided by the softcap, where there is one; `distance`: from the
// row to the lane's first token.
template <int kBlocks>
__device__ __forceinline__ void apply_logit_rule(float (&scores)[kBlocks][4], int r, float scale,
                                                 const MaskParams& masks, int head,
                                                 int32_t distance) {
  const float softcap = masks.softcap;
  const float slope = masks.alibi_slopes == nullptr ? 0.0f : masks.alibi_slopes[head] * kLog2E;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& score = scores[n][2 * r + e];
      const float scaled = score * scale;
      const float logit = softcap > 0.0f ? softcap * tanh_by_exp2(scaled) : scaled;
      score = fmaf(slope, static_cast<float>(distance + n * 8 + e), logit * kLog2E);
    }
  }
}

// Makes the scores of keys that the row does not see -inf. `token`: the lane's first.
template <int kBlocks>
__device__ __forceinline__ void apply_mask(float (&scores)[kBlocks][4], int r, const RowMask& mask,
                                           int32_t token, int64_t draft_stride) {
  uint32_t seen = 0;  // bit 2n + e
  if (mask.draft == nullptr) {
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
      const uint32_t place = token + i / 2 * 8 + i % 2 - mask.range.begin;
      seen |=
          static_cast<uint32_t>(place < static_cast<uint32_t>(mask.range.end - mask.range.begin))
          << i;
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < 2 * kBlocks; ++i) {
      seen |= static_cast<uint32_t>(mask.sees(token + i / 2 * 8 + i % 2, draft_stride)) << i;
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * kBlocks; ++i) {
    if ((seen >> i & 1) == 0) scores[i / 2][2 * r + i % 2] = -INFINITY;
  }
}

// What a warp's rows need before the softmax. Rows past the last take the last one's rules, which
// keeps their numbers finite.
template <int kFragments, int kBlocks, typename Scales>
__device__ __forceinline__ void finish_scores(float (&scores)[kFragments][kBlocks][4],
                                              const AttentionParams& params,
                                              const VarlenMmaConfig& config, const Scales& scales,
                                              const VarlenWork& work, int warp_row,
                                              int32_t warp_token, bool masked, int lane) {
  const int32_t token = warp_token + lane % 4 * 2;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = warp_row + f * 16 + r * 8 + lane / 4;
      const QueryRow at =
          query_row(work, min(row, work.num_rows - 1 - work.first_row), config.group_size);
      const RowMask mask(params, work, at.token);
      if (config.has_logit_rule) {
        apply_logit_rule(scores[f], r, scales.rule_scale(f, r), params.masks, at.head,
                         token - mask.q_pos);
      }
      if (masked) apply_mask(scores[f], r, mask, token, params.masks.tree_mask_column_stride);
    }
  }
}

// The keys that a warp's rows see, as far as tiles are skipped for it.
template <int kWarpRows>
__device__ __forceinline__ KvRange warp_range(const AttentionParams& params, VarlenWork work,
                                              FastDivide group_size, int warp_row) {
  work.first_row += warp_row;
  return tile_range<kWarpRows>(params, work, group_size).any;
}

}  // namespace pagedattn::varlen_mma
