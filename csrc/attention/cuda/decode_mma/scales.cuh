// What the codes of a cache are to be multiplied by. Scales of the whole tensor or of a head go
// into factors that exist anyway, the softmax's and the output's. Those of tokens lie beside their
// tile and multiply the scores and the weights.
#pragma once

#include <cuda_runtime.h>

#include "../../params.h"
#include "../cache_scales.cuh"
#include "../widen.cuh"
#include "query.cuh"
#include "tile.h"

namespace pagedattn::decode_mma {

template <typename T>
__device__ __forceinline__ float output_scale(const AttentionParams& params, int kv_head) {
  if constexpr (is_8bit<T>) {
    return head_scale(params, params.cache.value, kv_head) * Widen<T>::kUnit;
  } else {
    return 1.0f;
  }
}

// Of a cache in the query's type: nothing.
template <typename T, int kHeadDim, typename Layout>
struct TileScales {
  static constexpr bool kScalesWeights = false;
  float factors[2];  // from the scores of the lane's two heads to logits in units of log2

  __device__ __forceinline__ TileScales(const AttentionParams&, float scale_log2, int,
                                        const unsigned char*, int)
      : factors{scale_log2, scale_log2} {}

  __device__ __forceinline__ void apply(typename Layout::Scores&, const unsigned char*, int) {}
  __device__ __forceinline__ float of_weight(int) const { return 1.0f; }
};

template <typename T, int kHeadDim, typename Layout>
  requires is_8bit<T>
struct TileScales<T, kHeadDim, Layout> {
  static_assert(Layout::kFragments == 1);
  static constexpr bool kScalesWeights = true;
  float factors[2];
  bool of_tokens;
  float weights[Layout::kScores];

  // `query_rows`: those of this warp's heads.
  __device__ __forceinline__ TileScales(const AttentionParams& params, float scale_log2,
                                        int kv_head, const unsigned char* query_rows, int lane)
      : of_tokens(has_token_scales(params)) {
    const float scale =
        scale_log2 * (head_scale(params, params.cache.key, kv_head) * Widen<T>::kUnit);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      factors[s] = scale * *query_scale<kHeadDim>(query_rows, Layout::head(lane, s));
    }
#pragma unroll
    for (float& weight : weights) weight = 1.0f;
  }

  // Scales a tile's scores, and remembers what its weights are to be scaled by.
  __device__ __forceinline__ void apply(typename Layout::Scores& scores, const unsigned char* tile,
                                        int lane) {
    if (!of_tokens) return;
    const auto* const keys = reinterpret_cast<const float*>(tile + Tile<kHeadDim, 1>::kScales);
    const float* const values = keys + kTileTokens;
#pragma unroll
    for (int e = 0; e < Layout::kScores; ++e) {
      scores[0][e] *= keys[Layout::token(lane, e)];
      weights[e] = values[Layout::token(lane, e)];
    }
  }

  // Of the weight that belongs to element e of the scores.
  __device__ __forceinline__ float of_weight(int e) const { return weights[e]; }
};

}  // namespace pagedattn::decode_mma
