// A CTA's walk over the keys. K and V of a tile are loaded one after the other, each while the
// other or an earlier tile is computed:
//
//   one stage     load   K0 |  V0  |   K1   |  V1  |   K2   |
//                 compute   | QK 0 | PV 0   | QK 1 | PV 1   | ...
//
// Every step waits for its own matrix and then, at a barrier, for the warps that read the one whose
// place the next load takes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/ptx.cuh"
#include "../../params.h"
#include "../varlen_rows.cuh"
#include "config.h"
#include "cta_state.cuh"
#include "fragments.cuh"
#include "loader.cuh"
#include "masks.cuh"
#include "query.cuh"
#include "softmax.cuh"
#include "tile.h"

namespace pagedattn::varlen_mma {

// A warp's rows: what the loop leaves behind.
template <typename T, int kHeadDim, int kRows>
struct WarpRows {
  using Fragments = varlen_mma::Fragments<T, kHeadDim, kRows>;

  typename Fragments::Output out = {};
  LazySoftmax<T, Fragments::kBlocks> softmax[Fragments::kFragments];
};

// Some row sees a key.
template <typename T, int kHeadDim, int kRows>
__device__ __forceinline__ void attend_tiles(const AttentionParams& params,
                                             const VarlenMmaConfig& config,
                                             const CtaState<kHeadDim, kRows>& cta,
                                             unsigned char* shared,
                                             WarpRows<T, kHeadDim, kRows>& rows) {
  using Shared = SharedLayout<kHeadDim, kRows>;
  using Tile = RowTile<kRows>;
  using Fragments = varlen_mma::Fragments<T, kHeadDim, kRows>;
  const uint32_t base = ptx::shared_address(shared);

  const TileLoader<kHeadDim> loader(shared + Shared::kTiles);
  const auto load_keys = [&](const KeyWalk& walk, int32_t token, uint32_t stage) {
    if (token < walk.seen.end) {
      if (loader.needs_fetch(token)) loader.fetch(params, cta.work().seq, walk.seen, token);
      loader.load(params.cache.key.data, config.key_strides, config.row_bytes, cta.work().kv_head,
                  token, base + Shared::kTiles + stage);
    }
    ptx::cp_async_commit();
  };
  const auto load_values = [&](const KeyWalk& walk, int32_t token, uint32_t stage) {
    if (token < walk.seen.end) {
      loader.load(params.cache.value.data, config.value_strides, config.row_bytes,
                  cta.work().kv_head, token, base + Shared::kTiles + Shared::kMatrixBytes + stage);
    }
    ptx::cp_async_commit();
  };

  const VarlenWork work = cta.work();
  KeyWalk walk = cta.keys();
  int32_t token = walk.seen.begin / kTileTokens * kTileTokens;
  load_query<T, kHeadDim, kRows>(shared, params, work, config.group_size, config.aligned_query);
  if (!loader.needs_fetch(token)) loader.fetch(params, work.seq, walk.seen, token);
  load_keys(walk, token, 0);
  if constexpr (Shared::kStages == 2) {
    load_values(walk, ptx::keep(token), 0);
    load_keys(walk, token + kTileTokens, Shared::kStageBytes);
  }
  constexpr int kPending = 2 * Shared::kStages - 2;  // loads that a step need not wait for

  uint32_t stage = 0;  // byte offset
  do {
    ptx::cp_async_wait<kPending>();
    __syncthreads();
    walk = cta.keys();
    load_values(walk, token + (Shared::kStages - 1) * kTileTokens,
                (Shared::kStages - 1) * Shared::kStageBytes - stage);
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
          scores, base + Tile::first_row(warp) * Shared::kRowBytes + Fragments::query_row(lane),
          base + Shared::kTiles + stage + Tile::first_token(warp) * Shared::kRowBytes +
              Fragments::key_row(lane));
      if (masked || config.has_logit_rule) {
        finish_scores(scores, params, config, cta.work(), Tile::first_row(warp), warp_token, masked,
                      lane);
      }
#pragma unroll
      for (int f = 0; f < Tile::kFragments; ++f) {
        rows.softmax[f].weigh(scores[f], config.factor, rows.out[f], weights[f]);
      }
    }

    ptx::cp_async_wait<kPending>();
    __syncthreads();
    walk = cta.keys();
    load_keys(walk, token + Shared::kStages * kTileTokens, stage);
    masked = static_cast<uint32_t>(token - walk.whole_begin) >= walk.num_whole;
    const int value_warp = ptx::keep(threadIdx.x) / kWarpSize;
    const uint32_t value_row = base + Shared::kTiles + Shared::kMatrixBytes + stage +
                               Tile::first_token(value_warp) * Shared::kRowBytes +
                               Fragments::value_row(ptx::keep(threadIdx.x) % kWarpSize);
    if (masked) {
      unsigned char* const values = shared + Shared::kTiles + Shared::kMatrixBytes + stage;
      if (__syncthreads_or(clear_unseen_values<T, kHeadDim>(values, token, walk.seen))) {
        if (works) Fragments::mark_nonfinite(rows.out, weights, value_row);
        __syncthreads();
        clear_nonfinite_values<T, kHeadDim>(values);
        __syncthreads();
      }
    }
    if (works) Fragments::add_values(rows.out, weights, value_row);
    if constexpr (Shared::kStages == 2) stage = Shared::kStageBytes - stage;
    token += kTileTokens;
  } while (token < walk.seen.end);
}

}  // namespace pagedattn::varlen_mma
