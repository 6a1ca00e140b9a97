// How K and V of a CTA's tiles come to shared memory. They are loaded one after the other, each
// while the other or an earlier tile is computed:
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
#include "config.h"
#include "cta_state.cuh"
#include "loader.cuh"
#include "query.cuh"
#include "scales.cuh"
#include "tile.h"

namespace pagedattn::varlen_mma {

template <typename T, int kHeadDim, int kRows>
class TilePipeline {
  using Shared = SharedLayout<kHeadDim, kRows, sizeof(T)>;

 public:
  __device__ __forceinline__ TilePipeline(const AttentionParams& params,
                                          const VarlenMmaConfig& config,
                                          const CtaState<kHeadDim>& cta, unsigned char* shared)
      : params_(params),
        config_(config),
        cta_(cta),
        shared_(shared),
        base_(ptx::shared_address(shared)),
        loader_(shared + Shared::kTiles) {}

  // Starts the first loads, the query's among them; the first tile begins at `token`.
  __device__ __forceinline__ void start(const KeyWalk& walk, const VarlenWork& work,
                                        int32_t token) {
    load_query<T, kHeadDim, kRows>(shared_, params_, work, config_.group_size,
                                   config_.aligned_query);
    if (!loader_.needs_fetch(token)) loader_.fetch(params_, work.seq, walk.seen, token);
    load_keys(walk, token, 0);
    if constexpr (Shared::kStages == 2) {
      load_values(walk, ptx::keep(token), 0);
      load_keys(walk, token + kTileTokens, Shared::kStageBytes);
    }
  }

  // Both wait for a matrix of the tile that begins at `token`, and return the walk anew.
  __device__ __forceinline__ KeyWalk await_keys(int32_t token) {
    ptx::cp_async_wait<kPending>();
    __syncthreads();
    const KeyWalk walk = cta_.keys();
    load_values(walk, token + (Shared::kStages - 1) * kTileTokens,
                (Shared::kStages - 1) * Shared::kStageBytes - stage_);
    return walk;
  }
  __device__ __forceinline__ KeyWalk await_values(int32_t token) {
    ptx::cp_async_wait<kPending>();
    __syncthreads();
    const KeyWalk walk = cta_.keys();
    load_keys(walk, token + Shared::kStages * kTileTokens, stage_);
    return walk;
  }

  // Where they are, as offsets.
  __device__ __forceinline__ uint32_t keys() const { return Shared::kTiles + stage_; }
  __device__ __forceinline__ uint32_t values() const {
    return Shared::kTiles + Matrix<kHeadDim>::kBytes + stage_;
  }

  __device__ __forceinline__ uint32_t stage() const { return stage_; }
  __device__ __forceinline__ void advance() {
    if constexpr (Shared::kStages == 2) stage_ = Shared::kStageBytes - stage_;
  }

 private:
  static constexpr int kPending = 2 * Shared::kStages - 2;  // loads that a step need not wait for

  __device__ __forceinline__ void load_keys(const KeyWalk& walk, int32_t token, uint32_t stage) {
    if (token < walk.seen.end) {
      if (loader_.needs_fetch(token)) loader_.fetch(params_, cta_.work().seq, walk.seen, token);
      loader_.load(params_.cache.key.data, config_.key_strides, config_.row_bytes,
                   cta_.work().kv_head, token, base_ + Shared::kTiles + stage);
    }
    ptx::cp_async_commit();
  }
  __device__ __forceinline__ void load_values(const KeyWalk& walk, int32_t token, uint32_t stage) {
    if (token < walk.seen.end) {
      loader_.load(params_.cache.value.data, config_.value_strides, config_.row_bytes,
                   cta_.work().kv_head, token,
                   base_ + Shared::kTiles + Matrix<kHeadDim>::kBytes + stage);
    }
    ptx::cp_async_commit();
  }

  const AttentionParams& params_;
  const VarlenMmaConfig& config_;
  const CtaState<kHeadDim>& cta_;
  unsigned char* shared_;
  uint32_t base_;
  TileLoader<kHeadDim, sizeof(T)> loader_;
  uint32_t stage_ = 0;  // byte offset
};

}  // namespace pagedattn::varlen_mma
