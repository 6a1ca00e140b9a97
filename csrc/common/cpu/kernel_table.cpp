#include "kernel_table.h"

#include "../../attention/cpu/kernels.h"
#include "../../cache/cpu/kernels.h"

namespace pagedattn::PAGEDATTN_ISA {

const KernelTable kernel_table = {
    .decode = attention,
    .reduce_partitions = reduce_partitions,
    .varlen = attention,
    .merge_states = merge_states,
    .reshape_and_cache = reshape_and_cache,
    .gather_cache = gather_cache,
    .copy_blocks = copy_blocks_cpu,
    .swap_blocks = swap_blocks_cpu,
    .choose_partition_size = choose_partition_size_cpu,
    .count_varlen_partials = count_varlen_partials_cpu,
};

}  // namespace pagedattn::PAGEDATTN_ISA
