// Varlen attention: picks the tensor-core kernel where it applies, else the one for the width of
// the cache's storage type.
#include "../../common/cuda/dispatch.h"
#include "kernels.h"
#include "varlen_launch.h"
#include "varlen_mma.h"

namespace pagedattn::cuda {

void varlen(const AttentionParams& params, Stream stream) {
  if (varlen_mma_supports(params)) return launch_varlen_mma(params, stream);
  with_storage_word(params.cache.dtype,
                    [&](auto tag) { launch_varlen<typename decltype(tag)::Type>(params, stream); });
}

}  // namespace pagedattn::cuda
