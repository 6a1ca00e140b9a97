// Varlen attention on tensor cores: fp16 and bf16, from sm_80 on.
#pragma once

#include "../../kernels.h"
#include "../params.h"

namespace pagedattn {

// Whether launch_varlen_mma takes these parameters on the current device. Depends on dtypes, sizes
// and strides only, never on the batch.
bool varlen_mma_supports(const AttentionParams& params);

void launch_varlen_mma(const AttentionParams& params, Stream stream);

}  // namespace pagedattn
