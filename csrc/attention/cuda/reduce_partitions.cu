#include "reduce_partitions.cuh"

#include "../../common/cuda/alignment.h"
#include "../../common/cuda/launch.h"
#include "kernels.h"
#include "tiles.h"

namespace pagedattn::cuda {

void reduce_partitions(const AttentionParams& params, Stream stream) {
  Alignment partials;
  partials.add(params.partial.out);
  Alignment out;
  out.add(params.out, element_size(params.dtype));
  const auto run = [&]<int kVec>() {
    const unsigned num_pieces = ceil_div(params.cache.head_dim, kWarpSize * kVec);
    const int64_t num_warps = int64_t{params.num_seqs} * params.num_q_heads * num_pieces;
    const unsigned num_ctas = grid_size(num_warps, "reduce_partitions");
    launch(reduce_partitions_kernel<kVec>, (num_ctas + kReduceWarps - 1) / kReduceWarps,
           kReduceWarps * kWarpSize, 0, stream, "reduce_partitions", params, num_pieces);
  };
  if (partials.allows(4 * sizeof(float)) && out.allows(4 * element_size(params.dtype))) {
    run.operator()<4>();
  } else {
    run.operator()<1>();
  }
}

}  // namespace pagedattn::cuda
