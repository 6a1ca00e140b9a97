// The CUDA half's KernelTable.
#include "../../cache/cuda/kernels.h"
#include "kernels.h"

namespace pagedattn {

const KernelTable& cuda_kernels() {
  static constexpr KernelTable table{
      .decode = cuda::decode,
      .reduce_partitions = cuda::reduce_partitions,
      .varlen = cuda::varlen,
      .merge_states = cuda::merge_states,
      .reshape_and_cache = cuda::reshape_and_cache,
      .gather_cache = cuda::gather_cache,
      .copy_blocks = cuda::copy_blocks,
      .swap_blocks = cuda::swap_blocks,
      .choose_partition_size = cuda::choose_partition_size,
      .count_varlen_partials = cuda::count_varlen_partials,
  };
  return table;
}

}  // namespace pagedattn
