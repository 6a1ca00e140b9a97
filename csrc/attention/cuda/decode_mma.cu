// Picks the instantiation of the tensor-core decode kernel.
#include "decode_mma.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "decode_mma/launch.h"
#include "decode_mma/tile.h"
#include "mma_device.h"
#include "tiles.h"

namespace pagedattn {
namespace {

constexpr int kMaxGroupHeads = 64;          // four warps with 16 heads each
constexpr int kReservedSharedBytes = 1024;  // per CTA, beside its own

int group_heads(const AttentionParams& params) {
  return params.num_q_heads / params.cache.num_kv_heads;
}

int shared_bytes(const AttentionParams& params) {
  int bytes = 0;
  with_head_dim(params.cache.head_dim, [&]<int kHeadDim>() {
    bytes = decode_mma::SharedLayout<kHeadDim>::bytes(group_heads(params));
  });
  return bytes;
}

}  // namespace

bool decode_mma_supports(const AttentionParams& params) {
  if (!mma_takes_cache(params) || group_heads(params) > kMaxGroupHeads) return false;
  return has_mma_instructions() &&
         shared_bytes(params) <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

int decode_mma_ctas_per_sm(const AttentionParams& params) {
  return device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) /
         (shared_bytes(params) + kReservedSharedBytes);
}

void launch_decode_mma(const AttentionParams& params, Stream stream) {
  with_head_dim(params.cache.head_dim, [&]<int kHeadDim>() {
    if (params.dtype == DType::kFloat16) {
      launch_decode_mma<__half, kHeadDim>(params, stream);
    } else {
      launch_decode_mma<__nv_bfloat16, kHeadDim>(params, stream);
    }
  });
}

}  // namespace pagedattn
