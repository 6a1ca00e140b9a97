// Decode attention on tensor cores, V1 and V2's partitions alike. One CTA serves all query heads of
// a (sequence, kv head, partition), so that every K and V byte leaves memory once. Each warp runs a
// pipeline of its own over its tiles, without a barrier for the block; the warps meet at the end.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/shared_memory.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "../../visibility.h"
#include "../sequence.cuh"
#include "epilogue.cuh"
#include "fragments.cuh"
#include "loader.cuh"
#include "masks.cuh"
#include "query.cuh"
#include "softmax.cuh"
#include "tile.h"

namespace pagedattn {

// Query heads per kv head, as far as the kernel's code depends on it.
enum class GroupClass {
  kUpTo8,   // HeadsAsColumns, warps with tiles of their own
  kUpTo16,  // HeadsAsRows, warps with tiles of their own
  kUpTo64,  // HeadsAsRows, teams of warps with the same tiles, each warp for 16 heads
};

// What the launcher derives from the parameters.
struct DecodeMmaConfig {
  int team_warps;  // 2 or 4 in kUpTo64, else 1
  bool aligned_query;
  bool aligned_out;
};

namespace decode_mma {

// The part of the visible range that lies in this CTA's partition.
__device__ __forceinline__ KvRange partition_range(const AttentionParams& params, KvRange visible,
                                                   int partition) {
  const int64_t size = params.partial.partition_size;
  if (size == 0) return visible;
  const int64_t begin = max(int64_t{visible.begin}, partition * size);
  const int64_t end = min(int64_t{visible.end}, (partition + 1) * size);
  return {static_cast<int32_t>(min(begin, end)), static_cast<int32_t>(end)};
}

}  // namespace decode_mma

template <typename T, int kHeadDim, GroupClass kGroup>
__global__ void __launch_bounds__(decode_mma::kThreads, kHeadDim <= 128 ? 4 : 2)
    decode_mma_kernel(const __grid_constant__ AttentionParams params,
                      const DecodeMmaConfig config) {
  using namespace decode_mma;
  constexpr bool kTeams = kGroup == GroupClass::kUpTo64;
  using Layout = std::conditional_t<kGroup == GroupClass::kUpTo8, HeadsAsColumns<T, kHeadDim>,
                                    HeadsAsRows<T, kHeadDim>>;
  using Tile = decode_mma::Tile<kHeadDim>;
  using Shared = SharedLayout<kHeadDim>;
  if constexpr (!ptx::kHasAmpereInstructions) return;

  const int seq = blockIdx.x / params.cache.num_kv_heads;
  const int kv_head = blockIdx.x % params.cache.num_kv_heads;
  const int num_heads = params.num_q_heads / params.cache.num_kv_heads;
  const int first_head = kv_head * num_heads;
  const int partition = blockIdx.y;
  const KvRange visible = partition_range(params, decode_range(params, seq), partition);
  if (visible.begin >= visible.end) {
    const OutputRows<T> rows(params, seq, first_head, partition, config.aligned_out);
    if (rows.whole) write_unseen<T, kHeadDim>(params, rows, first_head, num_heads);
    return;
  }

  // The shuffle tells the compiler that the warp's number is the same in all its lanes.
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / kWarpSize, 0);
  const int lane = threadIdx.x % kWarpSize;
  const int team_warps = kTeams ? config.team_warps : 1;
  const int team = warp / team_warps;
  const int member = warp % team_warps;
  const int team_threads = ptx::keep(team_warps * kWarpSize);
  const auto sync_team = [&] {
    if constexpr (kTeams) {
      ptx::named_barrier_sync(1 + team, team_threads);
    } else {
      __syncwarp();
    }
  };

  unsigned char* const shared = dynamic_shared<unsigned char>();
  const uint32_t tiles = ptx::shared_address(shared);
  const uint32_t warp_tiles = tiles + warp * Tile::kWarpBytes;
  const int32_t aligned_begin = visible.begin / kGroupTokens * kGroupTokens;
  const int32_t team_token = aligned_begin + team * team_warps * kTileTokens;
  const int32_t warp_token = team_token + member * kTileTokens;

  TileLoader<kHeadDim> loader(params, seq, kv_head, visible, warp_token, warp_tiles, lane);
#pragma unroll
  for (int stage = 0; stage < Tile::kStages; ++stage) {
    if (warp_token + stage * kStepTokens < visible.end) {
      loader.load(params, stage * Tile::kStageBytes);
    }
    ptx::cp_async_commit();
  }

  const int query_rows = Layout::kHeads * team_warps;
  stage_query<T, kHeadDim>(shared + Shared::kQuery, query_rows, params, seq, first_head,
                           num_heads, config.aligned_query);
  __syncthreads();
  const int first_row = member * Layout::kHeads;
  const typename Layout::Query query(tiles + Shared::kQuery + first_row * Tile::kRowBytes, lane);

  typename Layout::Output out = {};
  LazySoftmax<T, Layout> softmax;
  const int32_t q_pos = clamped_seq_len(params, seq) - 1;
  const float scale_log2 = params.scale * kLog2E;
  // A tile that starts at `token` is seen whole where token - visible.begin < num_whole, unsigned.
  const uint32_t num_whole = max(visible.end - visible.begin - (kTileTokens - 1), 0);
  const bool transforms = params.masks.softcap > 0.0f || params.masks.alibi_slopes != nullptr;
  const uint32_t num_plain = ptx::keep(transforms ? 0u : num_whole);
  const uint32_t team_tiles = tiles + team * team_warps * Tile::kWarpBytes;
  const uint32_t key_row = ptx::keep(team_tiles + Layout::key_row(lane));
  const uint32_t value_row = ptx::keep(team_tiles + Layout::value_row(lane));

  // A team's last warps may have no heads.
  const int32_t team_tokens = ptx::keep(first_row < num_heads ? team_warps * kTileTokens : 0);

  uint32_t stage = 0;  // byte offset
  for (int32_t step_token = team_token; step_token < visible.end; step_token += kStepTokens) {
    const int32_t own_token = step_token + member * kTileTokens;
    ptx::cp_async_wait<Tile::kStages - 1>();
    if (own_token - visible.begin >= num_whole) {
      __syncwarp();
      zero_unseen_values<kHeadDim>(shared + warp * Tile::kWarpBytes + stage, own_token, visible,
                                   lane);
    }
    sync_team();

    const auto process_tile = [&](int32_t token, uint32_t tile) {
      float scores[Layout::kScores];
      Layout::scores(scores, query, key_row + tile);
      float factor = scale_log2;
      if (token - visible.begin >= num_plain) {
        apply_masks<Layout>(scores, params, first_head + first_row, num_heads - first_row,
                            visible, q_pos, token, lane);
        factor = 1.0f;
      }
      uint32_t weights[Layout::kScores / 2];
      softmax.weigh(scores, factor, out, weights);
      Layout::accumulate(out, weights, value_row + tile);
    };
    if constexpr (kTeams) {
      const int32_t end = min(step_token + team_tokens, visible.end);
      uint32_t tile = stage;
      for (int32_t token = step_token; token < end; token += kTileTokens) {
        process_tile(token, tile);
        tile += Tile::kWarpBytes;
      }
    } else {
      process_tile(step_token, stage);
    }

    sync_team();
    if (own_token + Tile::kStages * kStepTokens < visible.end) loader.load(params, stage);
    ptx::cp_async_commit();
    if constexpr (Tile::kStages == 2) stage = Tile::kStageBytes - stage;
  }

  // The team's last barrier has freed all its tiles, and no copy is on its way.
  softmax.reduce_sums();
  auto* const outputs = reinterpret_cast<float*>(shared);
  auto* const states = reinterpret_cast<HeadState*>(shared + Shared::kStates);
  Layout::store(outputs + warp * (Tile::kWarpBytes / sizeof(float)), out, lane);
  if ((lane & Layout::kTokenLanes) == 0) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      states[warp * kMaxWarpHeads + Layout::head(lane, s)] = {-softmax.minus_reference[s], softmax.sum[s]};
    }
  }
  __syncthreads();
  merge_states(params, first_head, num_heads, states, team_warps);
  __syncthreads();
  const OutputRows<T> rows(params, seq, first_head, partition, config.aligned_out);
  write_rows<T, Layout, kHeadDim, kTeams ? kWarps / 2 : kWarps>(rows, num_heads, params.cache.head_dim, outputs, states,
                                  team_warps);
}

}  // namespace pagedattn
