// The same for an 8-bit cache: codes wait where they have landed until the matrix before them has
// been multiplied, and are widened into its place.
//
//   one stage     load  K0 V0 |          |  K1         |          |  V1
//                 compute     | widen K0 | QK 0 | widen V0 | PV 0 | widen K1 | ...
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/ptx.cuh"
#include "../../params.h"
#include "config.h"
#include "cta_state.cuh"
#include "loader.cuh"
#include "pipeline.cuh"
#include "query.cuh"
#include "scales.cuh"
#include "tile.h"
#include "widen_tile.cuh"

namespace pagedattn::varlen_mma {

template <typename T, int kHeadDim, int kRows>
  requires is_8bit<T>
class TilePipeline<T, kHeadDim, kRows> {
  using Shared = SharedLayout<kHeadDim, kRows, 1>;

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

  __device__ __forceinline__ void start(const KeyWalk& walk, const VarlenWork& work,
                                        int32_t token) {
    if (!loader_.needs_fetch(token)) loader_.fetch(params_, work.seq, walk.seen, token);
    load_keys(walk, token, 0);
    load_values(walk, token, 0);
    if constexpr (Shared::kStages == 2) {
      load_keys(walk, token + kTileTokens, Shared::kStageBytes);
      load_values(walk, token + kTileTokens, Shared::kStageBytes);
    }
    load_query_as_half<kHeadDim, kRows>(
        shared_, reinterpret_cast<float*>(shared_ + Shared::kFactors), params_, config_, work);
  }

  __device__ __forceinline__ KeyWalk await_keys(int32_t token) {
    widen(Shared::kCodes + stage_);
    const KeyWalk walk = cta_.keys();
    load_keys(walk, token + Shared::kStages * kTileTokens, stage_);
    return walk;
  }
  __device__ __forceinline__ KeyWalk await_values(int32_t token) {
    widen(Shared::kCodes + Shared::kCodesBytes + stage_);
    const KeyWalk walk = cta_.keys();
    load_values(walk, token + Shared::kStages * kTileTokens, stage_);
    return walk;
  }

  __device__ __forceinline__ uint32_t keys() const { return Shared::kTiles; }
  __device__ __forceinline__ uint32_t values() const { return Shared::kTiles; }

  __device__ __forceinline__ uint32_t stage() const { return stage_; }
  __device__ __forceinline__ void advance() {
    if constexpr (Shared::kStages == 2) stage_ = Shared::kStageBytes - stage_;
  }

 private:
  // A tile has three groups of copies: K, scales, V. A step waits for its own, K's for the scales
  // too, which the softmax reads.
  static constexpr int kPending = 3 * Shared::kStages - 2;

  __device__ __forceinline__ void widen(uint32_t codes) {
    ptx::cp_async_wait<kPending>();
    __syncthreads();  // the codes have landed, and the matrix before them has been read
    widen_tile<kHeadDim>(shared_ + codes, shared_ + Shared::kTiles, params_.cache.dtype);
    __syncthreads();
  }

  __device__ __forceinline__ void load_keys(const KeyWalk& walk, int32_t token, uint32_t stage) {
    if (token < walk.seen.end) {
      if (loader_.needs_fetch(token)) loader_.fetch(params_, cta_.work().seq, walk.seen, token);
      loader_.load(params_.cache.key.data, config_.key_strides, config_.row_bytes,
                   cta_.work().kv_head, token, base_ + Shared::kCodes + stage);
    }
    ptx::cp_async_commit();
  }

  // And the scales, K's too: their place is free only now.
  __device__ __forceinline__ void load_values(const KeyWalk& walk, int32_t token, uint32_t stage) {
    const bool loads = token < walk.seen.end;
    if (loads && has_token_scales(params_)) {
      loader_.load_scales(params_.cache, cta_.work().kv_head, token,
                          base_ + Shared::kCodes + stage + Shared::kStageScales);
    }
    ptx::cp_async_commit();
    if (loads) {
      loader_.load(params_.cache.value.data, config_.value_strides, config_.row_bytes,
                   cta_.work().kv_head, token,
                   base_ + Shared::kCodes + Shared::kCodesBytes + stage);
    }
    ptx::cp_async_commit();
  }

  const AttentionParams& params_;
  const VarlenMmaConfig& config_;
  const CtaState<kHeadDim>& cta_;
  unsigned char* shared_;
  uint32_t base_;
  TileLoader<kHeadDim, 1> loader_;
  uint32_t stage_ = 0;  // byte offset
};

}  // namespace pagedattn::varlen_mma
