// One instantiation per width of the cache's storage type, an unsigned Word, each in a file under
// instantiations/.
#pragma once

#include "../../kernels.h"
#include "../params.h"

namespace pagedattn {

template <typename Word>
void launch_decode(const AttentionParams& params, Stream stream);

}  // namespace pagedattn
