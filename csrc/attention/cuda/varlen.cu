// Varlen attention: picks the kernel for the width of the cache's storage type.
#include "../../common/cuda/dispatch.h"
#include "kernels.h"
#include "varlen_launch.h"

namespace pagedattn::cuda {

void varlen(const AttentionParams& params, Stream stream) {
  with_storage_word(params.cache.dtype,
                    [&](auto tag) { launch_varlen<typename decltype(tag)::Type>(params, stream); });
}

}  // namespace pagedattn::cuda
