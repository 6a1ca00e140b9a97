// Picks the instantiation of the tensor-core varlen kernel.
#include "varlen_mma.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "mma_device.h"
#include "tiles.h"
#include "varlen_mma/launch.h"

namespace pagedattn {

bool varlen_mma_supports(const AttentionParams& params) {
  return mma_takes(params) && has_mma_instructions();
}

void launch_varlen_mma(const AttentionParams& params, Stream stream) {
  if (is_quantized(params.cache.dtype)) {
    return with_coarse_head_dim(params.cache.head_dim, [&]<int kHeadDim>() {
      launch_varlen_mma<uint8_t, kHeadDim>(params, stream);
    });
  }
  with_head_dim(params.cache.head_dim, [&]<int kHeadDim>() {
    if (params.dtype == DType::kFloat16) {
      launch_varlen_mma<__half, kHeadDim>(params, stream);
    } else {
      launch_varlen_mma<__nv_bfloat16, kHeadDim>(params, stream);
    }
  });
}

}  // namespace pagedattn
