// Varlen attention on SIMT cores, for what the tensor cores do not take.
#pragma once

#include "../../kernels.h"
#include "../params.h"

namespace pagedattn {

void launch_varlen_simt(const AttentionParams& params, Stream stream);

}  // namespace pagedattn
