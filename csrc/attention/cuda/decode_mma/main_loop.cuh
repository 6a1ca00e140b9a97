// What a warp does between the prologue and the merge: its tiles arrive, it computes them, the next
// ones take their place.
//
//   stage 0   tile 0 | compute | load tile 2 .......... | compute | load tile 4 ..........
//   stage 1   tile 1           | compute | load tile 3 .......... | compute | ...
//
// No barrier for the block is in the loop: warps drift apart as their loads do. In a team, each
// warp loads a tile of its own and computes all the team's tiles, for heads of its own.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "../../visibility.h"
#include "loader.cuh"
#include "masks.cuh"
#include "softmax.cuh"
#include "tile.h"
#include "work.cuh"

namespace pagedattn::decode_mma {

// The warps that share tiles; in kernels without teams, every warp is one.
template <bool kShared>
struct Team {
  int warps;
  int index;
  int member;  // this warp's place
  int threads;

  __device__ __forceinline__ Team(unsigned warp, unsigned team_warps)
      : warps(kShared ? team_warps : 1),
        index(kShared ? warp / team_warps : warp),
        member(kShared ? warp % team_warps : 0),
        threads(ptx::keep(warps * kWarpSize)) {}

  __device__ __forceinline__ void sync() const {
    if constexpr (kShared) {
      ptx::named_barrier_sync(1 + index, threads);
    } else {
      __syncwarp();
    }
  }
};

// Starts the first loads of a warp whose first tile begins at `token`.
template <typename Tile>
__device__ __forceinline__ void fill_pipeline(TileLoader<Tile>& loader,
                                              const AttentionParams& params, int32_t token,
                                              int32_t end) {
#pragma unroll
  for (int stage = 0; stage < Tile::kStages; ++stage) {
    const int32_t tile = token + stage * kStepTokens;
    if (tile < end) loader.load(params, tile, end, stage * Tile::kStageBytes);
    ptx::cp_async_commit();
  }
}

// Computes the warp's heads, those from team.member * Layout::kHeads on, over all tiles of its
// team, the first of which begins at `first_token`. `tiles` is the team's part of shared memory.
template <typename Tile, typename Layout, typename Softmax, typename Scales, bool kShared>
__device__ __forceinline__ void compute_tiles(const AttentionParams& params, const CtaWork& work,
                                              const Team<kShared>& team, int32_t first_token,
                                              unsigned char* tiles, TileLoader<Tile>& loader,
                                              const typename Layout::Query& query, Scales& scales,
                                              int lane, Softmax& softmax,
                                              typename Layout::Output& out) {
  const KvRange visible = work.visible;
  const int first_row = team.member * Layout::kHeads;
  // A tile that begins at `token` is seen whole where token - visible.begin < num_whole, unsigned;
  // it is plain where it needs no masks either.
  const uint32_t num_whole = max(visible.end - visible.begin - (kTileTokens - 1), 0);
  const bool transforms = params.masks.softcap > 0.0f || params.masks.alibi_slopes != nullptr;
  const uint32_t num_plain = ptx::keep(transforms ? 0u : num_whole);
  const uint32_t key_row = ptx::keep(ptx::shared_address(tiles) + Layout::key_row(lane));
  const uint32_t value_row = ptx::keep(ptx::shared_address(tiles) + Layout::value_row(lane));

  const auto compute = [&](int32_t token, uint32_t tile) {
    typename Layout::Scores scores;
    Layout::scores(scores, query, key_row + tile);
    scales.apply(scores, tiles + tile, lane);
    float factors[2] = {scales.factors[0], scales.factors[1]};
    if (static_cast<uint32_t>(token - visible.begin) >= num_plain) {
#pragma unroll
      for (int f = 0; f < Layout::kFragments; ++f) {
        const int first = first_row + f * Layout::kFragmentHeads;
        apply_masks<Layout>(scores[f], factors, params, work.first_head + first,
                            work.num_heads - first, visible, work.q_pos, token, lane);
      }
      factors[0] = factors[1] = 1.0f;
    }
    typename Layout::Weights weights;
#pragma unroll
    for (int f = 0; f < Layout::kFragments; ++f) {
      softmax[f].weigh(scores[f], factors, scales, out[f], weights[f]);
    }
    Layout::accumulate(out, weights, value_row + tile);
  };
  // A team's last warps may have no heads.
  const int32_t team_tokens = ptx::keep(first_row < work.num_heads ? team.warps * kTileTokens : 0);

  uint32_t stage = 0;  // byte offset
  int32_t token = first_token;
  do {  // once at least: a warp that has no tile sees nothing of the garbage in its place
    const int32_t own_token = token + team.member * kTileTokens;
    ptx::cp_async_wait<Tile::kStages - 1>();
    if (static_cast<uint32_t>(own_token - visible.begin) >= num_whole) {
      __syncwarp();  // all lanes' copies have landed
      zero_unseen_values<Tile>(tiles + team.member * Tile::kWarpBytes + stage, own_token, visible,
                               lane);
    }
    team.sync();

    if constexpr (kShared) {
      const int32_t end = min(token + team_tokens, visible.end);
      uint32_t tile = stage;
      for (int32_t tile_token = token; tile_token < end; tile_token += kTileTokens) {
        compute(tile_token, tile);
        tile += Tile::kWarpBytes;
      }
    } else {
      compute(token, stage);
    }

    team.sync();
    const int32_t next_token = own_token + Tile::kStages * kStepTokens;
    if (next_token < visible.end) loader.load(params, next_token, visible.end, stage);
    ptx::cp_async_commit();
    if constexpr (Tile::kStages == 2) stage = Tile::kStageBytes - stage;
    token += kStepTokens;
  } while (token < visible.end);
}

}  // namespace pagedattn::decode_mma
