// The host side of varlen.cuh.
#include "varlen_simt.h"

#include <algorithm>

#include "../../common/cuda/launch.h"
#include "varlen.cuh"

namespace pagedattn {

void launch_varlen_simt(const AttentionParams& params, Stream stream) {
  with_coarse_head_dim(params.cache.head_dim, [&]<int kHeadDim>() {
    using Tile = VarlenTile<kHeadDim>;
    const int group_size = params.num_q_heads / params.cache.num_kv_heads;
    // max_query_len may be a loose bound; no sequence has more tokens than there are.
    const int64_t max_rows = std::min(params.max_query_len, params.num_tokens) * group_size;
    const int64_t num_tiles = (max_rows + Tile::kRows - 1) / Tile::kRows;
    const int64_t num_ctas = params.num_seqs * num_tiles * params.cache.num_kv_heads;
    launch(varlen_kernel<kHeadDim>, grid_size(num_ctas, "varlen"), Tile::kThreads,
           Tile::kSharedBytes, stream, "varlen", params, FastDivide(params.cache.block_size),
           FastDivide(group_size), static_cast<int>(num_tiles));
  });
}

}  // namespace pagedattn
