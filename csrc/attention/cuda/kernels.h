// The attention half of the CUDA KernelTable.
#pragma once

#include "../../kernels.h"

namespace pagedattn::cuda {

void decode(const AttentionParams& params, Stream stream);
void reduce_partitions(const AttentionParams& params, Stream stream);
void reduce_varlen_partitions(const AttentionParams& params, Stream stream);
void varlen(const AttentionParams& params, Stream stream);
void merge_states(const MergeParams& params, Stream stream);
int32_t choose_partition_size(const AttentionParams& params);
int64_t count_varlen_partials(const AttentionParams& params);

}  // namespace pagedattn::cuda
