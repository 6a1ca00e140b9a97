// One instantiation per dtype and head_dim bucket, each in a file of its own under instantiations/.
#pragma once

#include "../../../kernels.h"
#include "../../params.h"

namespace pagedattn {

template <typename T, int kHeadDim>
void launch_varlen_mma(const AttentionParams& params, Stream stream);

}  // namespace pagedattn
