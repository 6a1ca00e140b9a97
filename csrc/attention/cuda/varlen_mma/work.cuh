// Which rows of the batch a CTA has. A sequence's rows are packed as in varlen_rows.cuh; how many
// there are, and nothing else of the batch, decides how they are cut:
//
//   more than 64   tiles of 128 (64 from head_dim 192 on)      up to 64   one tile of 64 or 16
//
//   blockIdx.x / num_kv_heads
//   | tiles of sequences with more than 64 rows | sequence 0 | sequence 1 | ... |
//
// The host knows a bound for the number of the former; CTAs past the last tile leave. A sequence's
// tiles go from its last rows to its first: the last see the most keys, and the work that starts
// last should be short. The keys of a sequence with few rows may be cut into partitions
// (varlen_split.h), which the CTAs along y share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../../../common/cuda/fast_divide.h"
#include "../../../common/cuda/warp_reduce.cuh"
#include "../../params.h"
#include "../varlen_rows.cuh"
#include "tile.h"

namespace pagedattn::varlen_mma {

// Tile `index` of those of all sequences with more than kMediumRows rows.
struct LargeTile {
  int seq;  // -1: there are fewer
  int32_t first_row;
};

// Every warp looks for itself, 32 sequences at a time.
template <int kRows>
__device__ __forceinline__ LargeTile find_large_tile(const AttentionParams& params,
                                                     int32_t group_size, int32_t index) {
  const int lane = threadIdx.x % kWarpSize;
  for (int first = 0; first < params.num_seqs; first += kWarpSize) {
    const int seq = first + lane;
    int32_t num_tiles = 0;
    if (seq < params.num_seqs) {
      const int32_t num_rows =
          (params.cu_seqlens_q[seq + 1] - params.cu_seqlens_q[seq]) * group_size;
      if (num_rows > kMediumRows) num_tiles = (num_rows + kRows - 1) / kRows;
    }
    int32_t end = num_tiles;  // of the tiles of this and the sequences before it
#pragma unroll
    for (int step = 1; step < kWarpSize; step *= 2) {
      const int32_t before = __shfl_up_sync(kFullWarp, end, step);
      if (lane >= step) end += before;
    }
    const unsigned later = __ballot_sync(kFullWarp, end > index);
    if (later != 0) {
      const int owner = __ffs(later) - 1;
      return {first + owner, (__shfl_sync(kFullWarp, end, owner) - 1 - index) * kRows};
    }
    index -= __shfl_sync(kFullWarp, end, kWarpSize - 1);
  }
  return {-1, 0};
}

// Returns whether the CTA has any rows.
template <int kLargeRows>
__device__ __forceinline__ bool find_work(const AttentionParams& params, FastDivide group_size,
                                          int32_t max_large_tiles, VarlenWork& work) {
  const int32_t index = blockIdx.x / params.cache.num_kv_heads;
  LargeTile tile{index - max_large_tiles, 0};
  const bool is_large = tile.seq < 0;
  if (is_large && blockIdx.y > 0) return false;
  if (is_large) tile = find_large_tile<kLargeRows>(params, group_size.divisor, index);
  if (tile.seq < 0) return false;
  work.seq = tile.seq;
  work.kv_head = blockIdx.x % params.cache.num_kv_heads;
  work.first_row = tile.first_row;
  work.first_token = params.cu_seqlens_q[work.seq];
  work.query_len = params.cu_seqlens_q[work.seq + 1] - work.first_token;
  work.num_rows = work.query_len * group_size.divisor;
  work.seq_len = clamped_seq_len(params, work.seq);
  return is_large || (work.num_rows > 0 && work.num_rows <= kMediumRows);
}

}  // namespace pagedattn::varlen_mma
