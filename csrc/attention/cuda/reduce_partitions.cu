#include "reduce_partitions.cuh"

#include "../../common/cuda/alignment.h"
#include "../../common/cuda/launch.h"
#include "kernels.h"

namespace pagedattn::cuda {

void reduce_partitions(const AttentionParams& params, Stream stream) {
  const int64_t num_rows = int64_t{params.num_seqs} * params.num_q_heads;
  const int64_t num_ctas = (num_rows + kReduceWarps - 1) / kReduceWarps;
  Alignment partials;
  partials.add(params.partial.out);
  launch(reduce_partitions_kernel, grid_size(num_ctas, "reduce_partitions"),
         kReduceWarps * kWarpSize, 0, stream, "reduce_partitions", params, partials.allows(16));
}

}  // namespace pagedattn::cuda
