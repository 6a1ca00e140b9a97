// The attention half of a KernelTable. All but what is asked before a
// kernel runs is compiled per instruction
// set.
#pragma once

#include "../../kernels.h"

namespace pagedattn {

int32_t choose_partition_size_cpu(const AttentionParams& params);
int64_t count_varlen_partials_cpu(const AttentionParams& params);

#ifdef PAGEDATTN_ISA
namespace PAGEDATTN_ISA {

void attention(const AttentionParams& params, Stream);  // decode and varlen
void reduce_partitions(const AttentionParams& params, Stream);
void merge_states(const MergeParams& params, Stream);

}  // namespace PAGEDATTN_ISA
#endif

}  // namespace pagedattn
