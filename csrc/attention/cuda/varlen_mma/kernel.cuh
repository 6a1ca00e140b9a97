// Varlen attention on tensor cores: prefills, chunks, drafts and decodes in one launch. A CTA has a
// tile of the packed rows of one sequence and kv head; its size is the CTA's own choice, from the
// length of its sequence.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/ptx.cuh"
#include "../../../common/cuda/shared_memory.cuh"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "../varlen_rows.cuh"
#include "cta_state.cuh"
#include "epilogue.cuh"
#include "main_loop.cuh"
#include "tile.h"
#include "work.cuh"

namespace pagedattn {
namespace varlen_mma {

template <typename T, int kHeadDim, int kRows>
__device__ __forceinline__ void attend(const AttentionParams& params, const VarlenMmaConfig& config,
                                       const VarlenWork& work) {
  unsigned char* const shared = dynamic_shared<unsigned char>();
  const TileRange range = tile_range<kRows>(params, work, config.group_size);
  CtaState<kHeadDim> cta(shared);
  cta.store(work, range);
  __syncthreads();
  WarpRows<T, kHeadDim, kRows> rows;
  if (range.any.begin < range.any.end) {
    attend_tiles<T, kHeadDim, kRows>(params, config, cta, shared, rows);
    __syncthreads();  // all reads of the tiles are done
  }
  if constexpr (RowTile<kRows>::kTokenWarps > 1) {
    merge_rows<T, kHeadDim, kRows>(params, config, cta.work(), shared, rows);
  } else {
    write_own_rows<T, kHeadDim, kRows>(params, config, cta.work(), shared, rows);
  }
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void varlen_cta(const AttentionParams& params,
                                           const VarlenMmaConfig& config) {
  constexpr int kLargeRows = large_rows(kHeadDim);
  VarlenWork work;
  if (!find_work<kLargeRows>(params, config.group_size, config.max_large_tiles, work)) return;
  if constexpr (kLargeRows > kMediumRows) {
    if (work.num_rows > kMediumRows) {
      return attend<T, kHeadDim, kLargeRows>(params, config, work);
    }
  }
  if (work.num_rows > kSmallRows) {
    attend<T, kHeadDim, kMediumRows>(params, config, work);
  } else {
    attend<T, kHeadDim, kSmallRows>(params, config, work);
  }
}

}  // namespace varlen_mma

// T: what the cache holds, or uint8_t: codes of any 8-bit type.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(varlen_mma::kThreads, 2)
    varlen_mma_kernel(const __grid_constant__ AttentionParams params,
                      const __grid_constant__ varlen_mma::VarlenMmaConfig config) {
  if constexpr (ptx::kHasAmpereInstructions) {
    varlen_mma::varlen_cta<T, kHeadDim>(params, config);
  }
}

}  // namespace pagedattn
