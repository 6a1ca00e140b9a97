// One instantiation per storage type T of the cache, each in a file of its own under
// instantiations/.
#pragma once

#include "../../kernels.h"
#include "../params.h"

namespace pagedattn {

template <typename T>
void launch_varlen(const AttentionParams& params, Stream stream);

}  // namespace pagedattn
