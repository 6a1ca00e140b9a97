// The host side of kernel.cuh.
#pragma once

#include <cstdint>

#include "../../../common/cuda/launch.h"
#include "kernel.cuh"
#include "launch.h"

namespace pagedattn {

template <typename T, int kHeadDim>
void launch_decode_mma(const AttentionParams& params, Stream stream) {
  using namespace decode_mma;
  const int num_heads = params.num_q_heads / params.cache.num_kv_heads;
  const auto rows_aligned = [](const TokenView& rows, uint64_t bytes) {
    return (reinterpret_cast<uint64_t>(rows.data) | rows.token_stride * sizeof(T) |
            rows.head_stride * sizeof(T)) %
               bytes ==
           0;
  };
  DecodeMmaConfig config{};
  config.team_warps = num_heads <= 16 ? 1 : num_heads <= 32 ? 2 : 4;
  config.aligned_query = rows_aligned(params.query, 16);
  config.aligned_out = rows_aligned(params.out, kOutVec * sizeof(T));

  const int64_t partition_size = params.partial.partition_size;
  const int64_t num_partitions =
      partition_size == 0 ? 1 : (params.max_seq_len + partition_size - 1) / partition_size;
  const dim3 grid(
      grid_size(int64_t{params.num_seqs} * params.cache.num_kv_heads, "decode_mma"),
      static_cast<unsigned>(num_partitions));
  const auto run = [&](auto kernel, int query_rows) {
    launch(kernel, grid, kThreads, SharedLayout<kHeadDim>::bytes(query_rows), stream, "decode_mma",
           params, config);
  };
  if (num_heads <= 8) {
    run(decode_mma_kernel<T, kHeadDim, GroupClass::kUpTo8>, 8);
  } else if (num_heads <= 16) {
    run(decode_mma_kernel<T, kHeadDim, GroupClass::kUpTo16>, 16);
  } else {
    run(decode_mma_kernel<T, kHeadDim, GroupClass::kUpTo64>, 16 * config.team_warps);
  }
}

}  // namespace pagedattn
