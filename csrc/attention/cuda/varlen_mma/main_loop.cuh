// A CTA's walk over the keys, a tile at a time: scores, softmax, output.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/ptx.cuh"
#include "../../params.h"
#include "../varlen_rows.cuh"
#include "config.h"
#include "cta_state.cuh"
#include "fragments.cuh"
#include "masks.cuh"
#include "pipeline.cuh"
#include "pipeline_8bit.cuh"
#include "scales.cuh"
#include "softmax.cuh"
#include "tile.h"
#include "values.cuh"

namespace pagedattn::varlen_mma {

// A warp's rows: what the loop leaves behind.
template <typename T, int kHeadDim, int kRows>
struct WarpRows {
  using Fragments = varlen_mma::Fragments<Element<T>, kHeadDim, kRows>;

  typename Fragments::Output out = {};
  LazySoftmax<Element<T>, Fragments::kBlocks> softmax[Fragments::kFragments];
};

// Some row sees a key.
template <typename T, int kHeadDim, int kRows>
__device__ __forceinline__ void attend_tiles(const AttentionParams& params,
                                             const VarlenMmaConfig& config,
                                             const CtaState<kHeadDim>& cta, unsigned char* shared,
                                             WarpRows<T, kHeadDim, kRows>& rows) {
  using Tile = RowTile<kRows>;
  using Rows = Matrix<kHeadDim>;
  using Fragments = varlen_mma::Fragments<Element<T>, kHeadDim, kRows>;
  const uint32_t base = ptx::shared_address(shared);
  TilePipeline<T, kHeadDim, kRows> tiles(params, config, cta, shared);
  KeyWalk walk = cta.keys();
  int32_t token = walk.seen.begin / kTileTokens * kTileTokens;
  tiles.start(walk, cta.work(), token);

  do {
    walk = tiles.await_keys(token);
    bool masked = static_cast<uint32_t>(token - walk.whole_begin) >= walk.num_whole;
    const int warp = ptx::keep(threadIdx.x) / kWarpSize;
    const int lane = ptx::keep(threadIdx.x) % kWarpSize;
    const int32_t warp_token = token + Tile::first_token(warp);
    bool sees = Tile::first_row(warp) < cta.num_rows();
    if (sees && masked) {
      const KvRange keys =
          warp_range<Tile::kWarpRows>(params, cta.work(), config.group_size, Tile::first_row(warp));
      sees = warp_token < keys.end && warp_token + Tile::kWarpTokens > keys.begin;
    }
    // As a number: kept as a predicate, it would be merged from constants at every join.
    const unsigned works = ptx::keep(static_cast<unsigned>(sees));
    typename Fragments::Weights weights;
    if (works) {
      typename Fragments::Scores scores;
      Fragments::multiply_keys(
          scores, base + Tile::first_row(warp) * Rows::kRowBytes + Fragments::query_row(lane),
          base + tiles.keys() + Tile::first_token(warp) * Rows::kRowBytes +
              Fragments::key_row(lane));
      const TileScales<T, kHeadDim, kRows> scales(params, config, shared, tiles.stage(),
                                                  Tile::first_row(warp), Tile::first_token(warp),
                                                  lane);
      scales.scale_scores(scores);
      if (masked || config.has_logit_rule) {
        finish_scores(scores, params, config, scales, cta.work(), Tile::first_row(warp), warp_token,
                      masked, lane);
      }
#pragma unroll
      for (int f = 0; f < Tile::kFragments; ++f) {
        scales.weigh(rows.softmax[f], scores[f], f, rows.out[f], weights[f]);
      }
    }

    walk = tiles.await_values(token);
    masked = static_cast<uint32_t>(token - walk.whole_begin) >= walk.num_whole;
    const int value_warp = ptx::keep(threadIdx.x) / kWarpSize;
    const uint32_t value_row = base + tiles.values() +
                               Tile::first_token(value_warp) * Rows::kRowBytes +
                               Fragments::value_row(ptx::keep(threadIdx.x) % kWarpSize);
    if (masked) {
      unsigned char* const values = shared + tiles.values();
      if (__syncthreads_or(clear_unseen_values<Element<T>, kHeadDim>(values, token, walk.seen))) {
        if (works) Fragments::add_nonfinite(rows.out, weights, value_row);
        __syncthreads();
        clear_nonfinite_values<Element<T>, kHeadDim>(values);
        __syncthreads();
      }
    }
    if (works) Fragments::add_values(rows.out, weights, value_row);
    tiles.advance();
    token += kTileTokens;
  } while (token < walk.seen.end);
}

}  // namespace pagedattn::varlen_mma
