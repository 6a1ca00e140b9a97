// What scores and weights are multiplied by. A cache in the query's type has one factor for all
// scores. The codes of an 8-bit one have scales: those of the tensor or of a head go into the
// factors of the rows and into the output, those of tokens multiply the scores and the weights.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

#include <cfloat>
#include <cstdint>
#include <type_traits>

#include "../../params.h"
#include "../cache_scales.cuh"
#include "../widen.cuh"
#include "config.h"
#include "tile.h"

namespace pagedattn::varlen_mma {

// T is what a kernel's cache holds: the query's type, or uint8_t for codes of any 8-bit type, which
// are multiplied in fp16.
template <typename T>
using Element = std::conditional_t<is_8bit<T>, __half, T>;

// Values without scales, for LazySoftmax.
struct NoValueScales {
  __device__ __forceinline__ float scale_weight(float weight, int, int) const { return weight; }
  __device__ __forceinline__ float scale_logit(float score, float factor, int, int) const {
    return score * factor;
  }
};

// The scales of a lane's tokens: element e of block n has scales[8 * n + e].
struct ValueScales {
  static constexpr float kMaxLog2 = 60.0f;  // either way; beyond, a weight itself would overflow

  const float* scales;

  // The scale of a token that the row does not see may be anything.
  __device__ __forceinline__ float scale_weight(float weight, int n, int e) const {
    return weight == 0.0f ? 0.0f : weight * scales[8 * n + e];
  }

  // The logit that would give the scaled weight.
  __device__ __forceinline__ float scale_logit(float score, float factor, int n, int e) const {
    const float log2 = __log2f(fabsf(scales[8 * n + e]));
    return fmaf(score, factor, fminf(fmaxf(log2, -kMaxLog2), kMaxLog2));
  }
};

// Of a warp's rows from `first_row` on and its tokens of a tile from `first_token` on.
template <typename T, int kHeadDim, int kRows>
class TileScales {
 public:
  __device__ __forceinline__ TileScales(const AttentionParams&, const VarlenMmaConfig& config,
                                        const unsigned char*, uint32_t, int, int, int)
      : config_(config) {}

  template <int kFragments, int kBlocks>
  __device__ __forceinline__ void scale_scores(float (&)[kFragments][kBlocks][4]) const {}

  // Of a row before softcap and ALiBi.
  __device__ __forceinline__ float rule_scale(int, int) const { return config_.rule_scale; }

  template <typename Softmax, typename Scores, typename Output, typename Weights>
  __device__ __forceinline__ void weigh(Softmax& softmax, const Scores& scores, int, Output& out,
                                        Weights& weights) const {
    const float factors[2] = {config_.factor, config_.factor};
    softmax.weigh(scores, factors, NoValueScales{}, out, weights);
  }

 private:
  const VarlenMmaConfig& config_;
};

template <typename T, int kHeadDim, int kRows>
  requires is_8bit<T>
class TileScales<T, kHeadDim, kRows> {
  using Shared = SharedLayout<kHeadDim, kRows, 1>;

 public:
  // `stage`: of the tile, as an offset.
  __device__ __forceinline__ TileScales(const AttentionParams& params,
                                        const VarlenMmaConfig& config, const unsigned char* shared,
                                        uint32_t stage, int first_row, int first_token, int lane)
      : of_tokens_(has_token_scales(params)),
        has_logit_rule_(config.has_logit_rule),
        factors_(reinterpret_cast<const float*>(shared + Shared::kFactors) + first_row + lane / 4),
        keys_(
            reinterpret_cast<const float*>(shared + Shared::kCodes + stage + Shared::kStageScales) +
            first_token + lane % 4 * 2) {}

  template <int kFragments, int kBlocks>
  __device__ __forceinline__ void scale_scores(float (&scores)[kFragments][kBlocks][4]) const {
    if (!of_tokens_) return;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const float2 scale = *reinterpret_cast<const float2*>(keys_ + 8 * n);
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[f][n][e] *= e % 2 == 0 ? scale.x : scale.y;
      }
    }
  }

  __device__ __forceinline__ float rule_scale(int f, int r) const {
    return factors_[16 * f + 8 * r];
  }

  template <typename Softmax, typename Scores, typename Output, typename Weights>
  __device__ __forceinline__ void weigh(Softmax& softmax, const Scores& scores, int f, Output& out,
                                        Weights& weights) const {
    const float factors[2] = {has_logit_rule_ ? 1.0f : rule_scale(f, 0),
                              has_logit_rule_ ? 1.0f : rule_scale(f, 1)};
    if (of_tokens_) {
      softmax.weigh(scores, factors, ValueScales{keys_ + kTileTokens}, out, weights);
    } else {
      softmax.weigh(scores, factors, NoValueScales{}, out, weights);
    }
  }

 private:
  bool of_tokens_;
  bool has_logit_rule_;
  const float* factors_;
  const float* keys_;
};

// Of everything that a head's values add up to.
template <typename T>
__device__ __forceinline__ float output_scale(const AttentionParams& params, int kv_head) {
  if constexpr (is_8bit<T>) {
    return head_scale(params, params.cache.value, kv_head) * code_unit(params.cache.dtype);
  } else {
    return 1.0f;
  }
}

}  // namespace pagedattn::varlen_mma
