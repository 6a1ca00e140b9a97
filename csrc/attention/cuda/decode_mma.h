// Decode attention on tensor cores: fp16 and bf16, from sm_80 on.
#pragma once

#include "../../kernels.h"
#include "../params.h"

namespace pagedattn {

// Whether launch_decode_mma takes these parameters on the current device. Depends on dtypes, sizes
// and strides only, never on the batch.
bool decode_mma_supports(const AttentionParams& params);

// CTAs that an SM of the current device holds at a time; shared memory is what limits them.
int decode_mma_ctas_per_sm(const AttentionParams& params);

// V1 or, with a partition size, V2's partitions.
void launch_decode_mma(const AttentionParams& params, Stream stream);

}  // namespace pagedattn
