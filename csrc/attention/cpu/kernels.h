// The attention half of a KernelTable. All but the choice of V1 or V2 is compiled per instruction
// set.
#pragma once

#include "../../kernels.h"

namespace pagedattn {

int32_t choose_partition_size_cpu(const AttentionParams& params);

#ifdef PAGEDATTN_ISA
namespace PAGEDATTN_ISA {

void attention(const AttentionParams& params, Stream);  // decode and varlen
void reduce_partitions(const AttentionParams& params, Stream);
void merge_states(const MergeParams& params, Stream);

}  // namespace PAGEDATTN_ISA
#endif

}  // namespace pagedattn
