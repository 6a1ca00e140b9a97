// Decode attention on tensor cores, V1 and V2's partitions alike. One CTA serves all query heads of
// a (sequence, kv head, partition), so that every K and V byte leaves memory once. Each warp runs a
// pipeline of its own over its tiles; the warps meet at the end.
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
#include "main_loop.cuh"
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

template <typename T, int kHeadDim, GroupClass kGroup>
__device__ __forceinline__ void decode_cta(const AttentionParams& params,
                                           const DecodeMmaConfig& config) {
  constexpr bool kTeams = kGroup == GroupClass::kUpTo64;
  using Layout = std::conditional_t<kGroup == GroupClass::kUpTo8, HeadsAsColumns<T, kHeadDim>,
                                    HeadsAsRows<T, kHeadDim>>;
  using Tile = decode_mma::Tile<kHeadDim>;
  using Shared = SharedLayout<kHeadDim>;

  const int seq = blockIdx.x / params.cache.num_kv_heads;
  const int kv_head = blockIdx.x - seq * params.cache.num_kv_heads;
  const int partition = blockIdx.z * gridDim.y + blockIdx.y;
  const int num_heads = params.num_q_heads / params.cache.num_kv_heads;
  const int first_head = kv_head * num_heads;
  // One lane reads the length; the shuffles tell the compiler that all lanes have the same value.
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / kWarpSize, 0);
  const int lane = threadIdx.x % kWarpSize;
  const int32_t seq_len = __shfl_sync(kFullWarp, lane == 0 ? clamped_seq_len(params, seq) : 0, 0);
  const KvRange visible = visible_range(params.masks, seq_len - 1, seq_len);
  const CtaWork work{seq, first_head, num_heads, seq_len - 1,
                     partition_range(params, visible, partition)};
  if (work.visible.begin >= work.visible.end) {
    if (params.partial.partition_size == 0) {
      const OutputRows rows(params, seq, first_head, partition, config.aligned_out);
      write_unseen<kHeadDim>(params, rows, first_head, num_heads);
    }
    return;
  }

  const Team<kTeams> team(warp, config.team_warps);
  unsigned char* const shared = dynamic_shared<unsigned char>();
  unsigned char* const team_tiles = shared + team.index * team.warps * Tile::kWarpBytes;
  unsigned char* const warp_tiles = shared + warp * Tile::kWarpBytes;
  const int32_t team_token =
      work.visible.begin / kGroupTokens * kGroupTokens + team.index * team.warps * kTileTokens;
  const int32_t warp_token = team_token + team.member * kTileTokens;

  // The query goes first: it is waited for before the first tile.
  stage_query<T, kHeadDim>(shared + Shared::kQuery,
                           kTeams ? team.warps * Layout::kHeads : Layout::kHeads, params, seq,
                           first_head, num_heads, config.aligned_query);
  ptx::cp_async_commit();
  TileLoader<kHeadDim> loader(params, seq, kv_head, work.visible, warp_token,
                              ptx::shared_address(warp_tiles), lane);
  fill_pipeline(loader, params, warp_token, work.visible.end);
  ptx::cp_async_wait<Tile::kStages>();
  __syncthreads();
  const typename Layout::Query query(
      ptx::shared_address(shared + Shared::kQuery + team.member * Layout::kHeads * Tile::kRowBytes),
      lane);

  LazySoftmax<T, Layout> softmax;
  typename Layout::Output out = {};
  compute_tiles<T, kHeadDim, Layout>(params, work, team, team_token, team_tiles, loader, query,
                                     lane, softmax, out);

  // The team's last barrier has freed its tiles, and no copy is on its way.
  softmax.reduce_sums();
  auto& states = *reinterpret_cast<WarpStates*>(shared + Shared::kStates);
  const int num_parts = kTeams ? kWarps / team.warps : kWarps;
  Layout::store(reinterpret_cast<float*>(warp_tiles), out, lane);
  if ((lane & Layout::kTokenLanes) == 0) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const int entry =
          (team.member * Layout::kHeads + Layout::head(lane, s)) * num_parts + team.index;
      states.reference[entry] = -softmax.minus_reference[s];
      states.sum[entry] = softmax.sum[s];
    }
  }
  __syncthreads();
  const OutputRows rows(params, seq, first_head, partition, config.aligned_out);
  merge_states<kMaxParts<kTeams>>(states, params, rows, first_head, num_heads, num_parts);
  __syncthreads();
  write_rows<Layout, kHeadDim, kMaxParts<kTeams>>(rows, num_heads, params.cache.head_dim,
                                                  reinterpret_cast<const float*>(shared), states,
                                                  num_parts);
}

}  // namespace decode_mma

template <typename T, int kHeadDim, GroupClass kGroup>
__global__ void __launch_bounds__(decode_mma::kThreads, kHeadDim <= 128 ? 4 : 2)
    decode_mma_kernel(const __grid_constant__ AttentionParams params,
                      const DecodeMmaConfig config) {
  if constexpr (ptx::kHasAmpereInstructions) {
    decode_mma::decode_cta<T, kHeadDim, kGroup>(params, config);
  }
}

}  // namespace pagedattn
