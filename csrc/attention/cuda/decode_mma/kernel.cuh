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
  const int kv_head = blockIdx.x % params.cache.num_kv_heads;
  const int partition = blockIdx.z * gridDim.y + blockIdx.y;
  const int num_heads = params.num_q_heads / params.cache.num_kv_heads;
  const int first_head = kv_head * num_heads;
  const CtaWork work{seq, first_head, num_heads, clamped_seq_len(params, seq) - 1,
                     partition_range(params, decode_range(params, seq), partition)};
  if (work.visible.begin >= work.visible.end) {
    const OutputRows<T> rows(params, seq, first_head, partition, config.aligned_out);
    if (rows.whole) write_unseen<T, kHeadDim>(params, rows, first_head, num_heads);
    return;
  }

  // The shuffle tells the compiler that the warp's number is the same in all its lanes.
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / kWarpSize, 0);
  const int lane = threadIdx.x % kWarpSize;
  const Team<kTeams> team(warp, config.team_warps);
  unsigned char* const shared = dynamic_shared<unsigned char>();
  unsigned char* const team_tiles = shared + team.index * team.warps * Tile::kWarpBytes;
  unsigned char* const warp_tiles = shared + warp * Tile::kWarpBytes;
  const int32_t team_token =
      work.visible.begin / kGroupTokens * kGroupTokens + team.index * team.warps * kTileTokens;
  const int32_t warp_token = team_token + team.member * kTileTokens;

  TileLoader<kHeadDim> loader(params, seq, kv_head, work.visible, warp_token,
                              ptx::shared_address(warp_tiles), lane);
  fill_pipeline(loader, params, warp_token, work.visible.end);

  stage_query<T, kHeadDim>(shared + Shared::kQuery, team.warps * Layout::kHeads, params, seq,
                           first_head, num_heads, config.aligned_query);
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
  auto* const states = reinterpret_cast<HeadState*>(shared + Shared::kStates);
  auto* const outputs = reinterpret_cast<float*>(shared);
  Layout::store(reinterpret_cast<float*>(warp_tiles), out, lane);
  if ((lane & Layout::kTokenLanes) == 0) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      states[warp * kMaxWarpHeads + Layout::head(lane, s)] = {-softmax.minus_reference[s],
                                                              softmax.sum[s]};
    }
  }
  __syncthreads();
  merge_states(params, first_head, num_heads, states, team.warps);
  __syncthreads();
  constexpr int kMaxTeams = kTeams ? kWarps / 2 : kWarps;
  write_rows<T, Layout, kHeadDim, kMaxTeams>(
      OutputRows<T>(params, seq, first_head, partition, config.aligned_out), num_heads,
      params.cache.head_dim, outputs, states, team.warps);
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
