// Decode attention on tensor cores, V1 and V2's partitions alike. One CTA serves all query heads of
// a (sequence, kv head, partition), so that every K and V byte leaves memory once. Each warp runs a
// pipeline of its own over its tiles; the warps meet at the end.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/shared_memory.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "../widen.cuh"
#include "epilogue.cuh"
#include "fragments.cuh"
#include "fragments_8bit.cuh"
#include "loader.cuh"
#include "main_loop.cuh"
#include "query.cuh"
#include "scales.cuh"
#include "softmax.cuh"
#include "tile.h"
#include "work.cuh"

namespace pagedattn {

// Query heads per kv head, as far as the kernel's code depends on it.
enum class GroupClass {
  kUpTo8,   // HeadsAsColumns, warps with tiles of their own
  kUpTo16,  // HeadsAsRows, warps with tiles of their own
  kUpTo32,  // the same with two fragments per warp, where max_warp_heads() is 32
  kUpTo64,  // HeadsAsRows, teams of warps with the same tiles, each warp for 16 heads
};

// What the launcher derives from the parameters.
struct DecodeMmaConfig {
  int team_warps;  // 2 or 4 in kUpTo64, else 1
  bool aligned_query;
  bool aligned_out;
  decode_mma::RowStrides key_strides;
  decode_mma::RowStrides value_strides;
};

namespace decode_mma {

// Where a thread stands. The shuffle tells the compiler that the warp's number is the same in all
// its lanes.
template <bool kTeams>
struct Place {
  int warp;
  int lane;
  Team<kTeams> team;

  __device__ __forceinline__ explicit Place(int team_warps)
      : warp(__shfl_sync(kFullWarp, threadIdx.x / kWarpSize, 0)),
        lane(threadIdx.x % kWarpSize),
        team(warp, team_warps) {}
};

// The types that an instantiation is made of.
template <typename Storage, int kDim, GroupClass kGroup>
struct Parts {
  static constexpr int kHeadDim = kDim;
  static constexpr bool kTeams = kGroup == GroupClass::kUpTo64;
  static constexpr bool kIs8Bit = is_8bit<Storage>;
  static constexpr int kFragments = kGroup == GroupClass::kUpTo32 ? 2 : 1;
  using T = Storage;
  using Tile = decode_mma::Tile<kDim, sizeof(T)>;
  using Shared = SharedLayout<kDim, sizeof(T)>;
  // 8-bit caches are computed in fp16, whatever the query's type.
  using Element = std::conditional_t<kIs8Bit, __half, T>;
  using Columns = std::conditional_t<kIs8Bit, HeadsAsColumns8Bit<T, kDim>, HeadsAsColumns<T, kDim>>;
  using Rows =
      std::conditional_t<kIs8Bit, HeadsAsRows8Bit<T, kDim>, HeadsAsRows<T, kDim, kFragments>>;
  using Layout = std::conditional_t<kGroup == GroupClass::kUpTo8, Columns, Rows>;
  using Output = typename Layout::Output;
  using Softmax = LazySoftmax<Element, Layout>[Layout::kFragments];
  using Scales = TileScales<T, kDim, Layout>;
  using Place = decode_mma::Place<kTeams>;
};

// A warp's softmax states and outputs of its heads over its tokens.
template <typename P>
__device__ __forceinline__ void attend(const AttentionParams& params, const DecodeMmaConfig& config,
                                       const CtaWork& work, const typename P::Place& place,
                                       unsigned char* shared, typename P::Softmax& softmax,
                                       typename P::Output& out) {
  using Tile = typename P::Tile;
  using Layout = typename P::Layout;
  const auto& [warp, lane, team] = place;
  unsigned char* const team_tiles = shared + team.index * team.warps * Tile::kWarpBytes;
  const int32_t team_token =
      work.visible.begin / kGroupTokens * kGroupTokens + team.index * team.warps * kTileTokens;
  const int32_t warp_token = team_token + team.member * kTileTokens;

  // The query goes first: it is waited for before the first tile.
  unsigned char* const all_rows = shared + P::Shared::kQuery;
  const int num_rows = P::kTeams ? team.warps * Layout::kHeads : Layout::kHeads;
  if constexpr (P::kIs8Bit) {
    stage_query_as_half<P::kHeadDim>(all_rows, num_rows, params, work);
  } else {
    stage_query<typename P::T, P::kHeadDim>(all_rows, num_rows, params, work, config.aligned_query);
  }
  ptx::cp_async_commit();
  TileLoader<Tile> loader(params, config.key_strides, config.value_strides, work.seq, work.kv_head,
                          ptx::shared_address(shared + warp * Tile::kWarpBytes), lane);
  fill_pipeline(loader, params, warp_token, work.visible.end);
  ptx::cp_async_wait<Tile::kStages>();
  __syncthreads();

  const unsigned char* const rows =
      all_rows + team.member * Layout::kHeads * QueryTile<P::kHeadDim>::kRowBytes;
  const typename Layout::Query query(ptx::shared_address(rows), lane);
  typename P::Scales scales(params, params.scale * kLog2E, work.kv_head, rows, lane);
  compute_tiles<Tile, Layout>(params, work, team, team_token, team_tiles, loader, query, scales,
                              lane, softmax, out);
#pragma unroll
  for (auto& fragment : softmax) fragment.reduce_sums();
}

// Merges the warps. The teams' last barriers have freed the tiles, and no copy is on its way.
template <typename P>
__device__ __forceinline__ void finish(const AttentionParams& params, const CtaWork& work,
                                       const typename P::Place& place, const OutputRows& rows,
                                       bool aligned_out, unsigned char* shared,
                                       const typename P::Softmax& softmax,
                                       const typename P::Output& out) {
  using Tile = typename P::Tile;
  using Layout = typename P::Layout;
  constexpr int kParts = kMaxParts<P::kTeams>;
  const auto& [warp, lane, team] = place;
  const int num_parts = P::kTeams ? kWarps / team.warps : kWarps;
  using States = WarpStates<P::Shared::kNumStates>;
  auto& states = *reinterpret_cast<States*>(shared + P::Shared::kStates);
  Layout::store(reinterpret_cast<float*>(shared + warp * Tile::kWarpBytes), out, lane);
  if ((lane & Layout::kTokenLanes) == 0) {
#pragma unroll
    for (int f = 0; f < Layout::kFragments; ++f) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const int head =
            team.member * Layout::kHeads + f * Layout::kFragmentHeads + Layout::head(lane, s);
        const int entry = head * num_parts + team.index;
        states.reference[entry] = -softmax[f].minus_reference[s];
        states.sum[entry] = softmax[f].sum[s];
      }
    }
  }
  __syncthreads();
  merge_states<kParts>(states, params, rows, work.first_head, work.num_heads, num_parts,
                       output_scale<typename P::T>(params, work.kv_head));
  __syncthreads();
  const auto write = [&]<int kVec>() {
    write_rows<Tile, Layout, P::kHeadDim, kParts, kVec>(rows, work.num_heads, params.cache.head_dim,
                                                        reinterpret_cast<const float*>(shared),
                                                        states, num_parts);
  };
  if (aligned_out) {
    write.template operator()<kOutVec>();
  } else {
    write.template operator()<1>();
  }
}

template <typename P>
__device__ __forceinline__ void decode_cta(const AttentionParams& params,
                                           const DecodeMmaConfig& config) {
  const int seq = blockIdx.x / params.cache.num_kv_heads;
  const int partition = blockIdx.z * gridDim.y + blockIdx.y;
  const CtaWork work(params, seq, blockIdx.x - seq * params.cache.num_kv_heads, partition);
  const auto rows = [&] { return OutputRows(params, seq, work.first_head, partition); };
  if (work.visible.begin >= work.visible.end) {
    if (params.partial.partition_size == 0) {
      write_unseen<P::kHeadDim>(params, rows(), work.first_head, work.num_heads);
    }
    return;
  }
  const typename P::Place place(config.team_warps);
  unsigned char* const shared = dynamic_shared<unsigned char>();
  typename P::Softmax softmax;
  typename P::Output out = {};
  attend<P>(params, config, work, place, shared, softmax, out);
  finish<P>(params, work, place, rows(), config.aligned_out, shared, softmax, out);
}

}  // namespace decode_mma

// T: what the cache holds; also the query's type, unless it is an 8-bit one.
template <typename T, int kHeadDim, GroupClass kGroup>
__global__ void __launch_bounds__(decode_mma::kThreads,
                                  decode_mma::ctas_by_registers(kHeadDim, sizeof(T),
                                                                kGroup == GroupClass::kUpTo64))
    decode_mma_kernel(const __grid_constant__ AttentionParams params,
                      const DecodeMmaConfig config) {
  if constexpr (ptx::kHasAmpereInstructions) {
    decode_mma::decode_cta<decode_mma::Parts<T, kHeadDim, kGroup>>(params, config);
  }
}

}  // namespace pagedattn
