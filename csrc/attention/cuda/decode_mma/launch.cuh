// The host side of kernel.cuh.
#pragma once

#include <cstdint>

#include "../../../common/cuda/alignment.h"
#include "../../../common/cuda/launch.h"
#include "kernel.cuh"
#include "launch.h"

namespace pagedattn {

constexpr int64_t kMaxGridY = 65535;

template <typename T, int kHeadDim>
void launch_decode_mma(const AttentionParams& params, Stream stream) {
  using namespace decode_mma;
  constexpr int kMaxWarpHeads = max_warp_heads(kHeadDim, sizeof(T));
  const int num_heads = params.num_q_heads / params.cache.num_kv_heads;
  const int64_t partition_size = params.partial.partition_size;
  const int query_bytes = element_size(params.dtype);
  Alignment query;
  query.add(params.query, query_bytes);
  Alignment out;
  if (partition_size == 0) {
    out.add(params.out, query_bytes);
  } else {
    out.add(params.partial.out);
  }
  const uint64_t out_bytes = kOutVec * (partition_size == 0 ? query_bytes : sizeof(float));
  const DecodeMmaConfig config{team_warps(num_heads, kMaxWarpHeads), query.allows(16),
                               out.allows(out_bytes), RowStrides(params.cache.key, sizeof(T)),
                               RowStrides(params.cache.value, sizeof(T))};

  const int64_t num_partitions = count_partitions(params.max_seq_len, partition_size);
  // More partitions than grid.y holds go on along z; those past the last see no key.
  const int64_t grid_y = num_partitions < kMaxGridY ? num_partitions : kMaxGridY;
  const int64_t grid_z = (num_partitions + grid_y - 1) / grid_y;
  const dim3 grid(grid_size(int64_t{params.num_seqs} * params.cache.num_kv_heads, "decode_mma"),
                  static_cast<unsigned>(grid_y), static_cast<unsigned>(grid_z));
  const auto run = [&](auto kernel) {
    launch(kernel, grid, kThreads, SharedLayout<kHeadDim, sizeof(T)>::bytes(num_heads), stream,
           "decode_mma", params, config);
  };
  if (num_heads <= 8) {
    run(decode_mma_kernel<T, kHeadDim, GroupClass::kUpTo8>);
  } else if (num_heads <= 16) {
    run(decode_mma_kernel<T, kHeadDim, GroupClass::kUpTo16>);
  } else if (num_heads > kMaxWarpHeads) {
    run(decode_mma_kernel<T, kHeadDim, GroupClass::kUpTo64>);
  } else if constexpr (kMaxWarpHeads == 32) {
    run(decode_mma_kernel<T, kHeadDim, GroupClass::kUpTo32>);
  }
}

}  // namespace pagedattn
