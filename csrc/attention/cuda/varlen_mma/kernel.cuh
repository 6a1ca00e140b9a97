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
#include "partition.cuh"
#include "tile.h"
#include "work.cuh"

namespace pagedattn {
namespace varlen_mma {

template <typename T, int kHeadDim, int kRows>
__device__ __forceinline__ void attend(const AttentionParams& params, const VarlenMmaConfig& config,
                                       const VarlenWork& work, const Partition& partition,
                                       const CtaState<kHeadDim>& cta, unsigned char* shared) {
  TileRange range = tile_range<kRows>(params, work, config.group_size);
  if (partition.is_partial()) range.any = partition.part_of(range.any);
  cta.store(work, range, partition);
  __syncthreads();
  const bool sees = range.any.begin < range.any.end;
  if (!sees && partition.is_partial()) return;
  WarpRows<T, kHeadDim, kRows> rows;
  if (sees) {
    attend_tiles<T, kHeadDim, kRows>(params, config, cta, shared, rows);
    __syncthreads();  // all reads of the tiles are done
  }
  if constexpr (RowTile<kRows>::kTokenWarps > 1) {
    merge_rows<T, kHeadDim, kRows>(params, config, cta, shared, rows);
  } else {
    write_own_rows<T, kHeadDim, kRows>(params, config, cta, shared, rows);
  }
}

template <typename T, int kHeadDim>
__device__ __forceinline__ void varlen_cta(const AttentionParams& params,
                                           const VarlenMmaConfig& config) {
  constexpr int kLargeRows = large_rows(kHeadDim);
  VarlenWork work;
  // As a number: kept as a predicate, it would be merged from constants at every join.
  const unsigned has_rows = ptx::keep(static_cast<unsigned>(
      find_work<kLargeRows>(params, config.group_size, config.max_large_tiles, work)));
  if (!has_rows) return;
  unsigned char* const shared = dynamic_shared<unsigned char>();
  const CtaState<kHeadDim> cta(shared);
  if constexpr (kLargeRows > kMediumRows) {
    if (work.num_rows > kMediumRows) {
      return attend<T, kHeadDim, kLargeRows>(params, config, work, unsplit(), cta, shared);
    }
  }
  static_assert(kMaxSplitRows == kMediumRows);
  const VarlenSplit split = split_varlen(work.query_len, work.num_rows, work.seq_len);
  Partition partition{static_cast<int32_t>(blockIdx.y), split.num_partitions, split.partition_size};
  while (partition.index < partition.count) {
    if (work.num_rows > kSmallRows) {
      attend<T, kHeadDim, kMediumRows>(params, config, work, partition, cta, shared);
    } else {
      attend<T, kHeadDim, kSmallRows>(params, config, work, partition, cta, shared);
    }
    // From memory, as no register is left for them on the way.
    work = cta.work();
    partition = cta.partition();
    partition.index += gridDim.y;
    __syncthreads();  // all reads of shared memory are done
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
