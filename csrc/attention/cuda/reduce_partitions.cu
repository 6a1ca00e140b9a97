#include "reduce_partitions.cuh"

#include "../../common/cuda/alignment.h"
#include "../../common/cuda/launch.h"
#include "kernels.h"
#include "tiles.h"

namespace pagedattn::cuda {
namespace {

using ReduceKernel = void (*)(AttentionParams, unsigned);

// `wide` has accesses of 4 elements.
void launch_reduce(const AttentionParams& params, Stream stream, const char* name,
                   ReduceKernel wide, ReduceKernel narrow) {
  Alignment partials;
  partials.add(params.partial.out);
  Alignment out;
  out.add(params.out, element_size(params.dtype));
  const bool is_wide =
      partials.allows(4 * sizeof(float)) && out.allows(4 * element_size(params.dtype));
  const unsigned num_pieces = ceil_div(params.cache.head_dim, kWarpSize * (is_wide ? 4 : 1));
  const int64_t num_warps = int64_t{params.num_seqs} * params.num_q_heads * num_pieces;
  const unsigned num_ctas = grid_size(num_warps, name);
  launch(is_wide ? wide : narrow, (num_ctas + kReduceWarps - 1) / kReduceWarps,
         kReduceWarps * kWarpSize, 0, stream, name, params, num_pieces);
}

}  // namespace

void reduce_partitions(const AttentionParams& params, Stream stream) {
  launch_reduce(params, stream, "reduce_partitions", reduce_partitions_kernel<4>,
                reduce_partitions_kernel<1>);
}

void reduce_varlen_partitions(const AttentionParams& params, Stream stream) {
  launch_reduce(params, stream, "reduce_varlen_partitions", reduce_varlen_partitions_kernel<4>,
                reduce_varlen_partitions_kernel<1>);
}

}  // namespace pagedattn::cuda
