#include "reduce_partitions.cuh"

#include "../../common/cuda/launch.h"
#include "kernels.h"

namespace pagedattn::cuda {

void reduce_partitions(const AttentionParams& params, Stream stream) {
  const int64_t num_rows = int64_t{params.num_seqs} * params.num_q_heads;
  launch(reduce_partitions_kernel, grid_size(num_rows, "reduce_partitions"),
         kReduceWarps * kWarpSize, 0, stream, "reduce_partitions", params);
}

}  // namespace pagedattn::cuda
