// The host side of decode.cuh.
#pragma once

#include "../../common/cuda/launch.h"
#include "../../kernels.h"
#include "decode.cuh"
#include "decode_launch.h"

namespace pagedattn {

template <typename Word>
void launch_decode(const AttentionParams& params, Stream stream) {
  with_coarse_head_dim(params.cache.head_dim, [&]<int kHeadDim>() {
    using Tile = DecodeTile<Word, kHeadDim>;
    const int64_t num_partitions =
        count_partitions(params.max_seq_len, params.partial.partition_size);
    const int num_chunks = ceil_div(params.num_q_heads / params.cache.num_kv_heads, Tile::kHeads);
    const int64_t num_ctas =
        int64_t{params.num_seqs} * params.cache.num_kv_heads * num_partitions * num_chunks;
    launch(decode_kernel<Word, kHeadDim>, grid_size(num_ctas, "decode"), Tile::kThreads,
           sizeof(DecodeShared<Tile>), stream, "decode", params,
           FastDivide(params.cache.block_size), static_cast<int>(num_partitions));
  });
}

}  // namespace pagedattn
