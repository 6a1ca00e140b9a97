// Picks the instantiation of the tensor-core decode kernel.
#include "decode_mma.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <limits>

#include "../../common/cuda/launch.h"
#include "decode_mma/launch.h"
#include "decode_mma/tile.h"
#include "tiles.h"

namespace pagedattn {
namespace {

constexpr int kMaxGroupHeads = 64;          // four warps with 16 heads each
constexpr int kReservedSharedBytes = 1024;  // per CTA, beside its own

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check_cuda(cudaGetDevice(&device), "decode_mma");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "decode_mma");
  return value;
}

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

// The loader multiplies 32-bit block numbers by 32-bit byte strides.
bool strides_fit(const CacheView& view) {
  constexpr int64_t kMaxStride = std::numeric_limits<uint32_t>::max() / 2;
  return view.block_stride >= 0 && view.block_stride <= kMaxStride && view.token_stride >= 0 &&
         view.token_stride <= kMaxStride;
}

}  // namespace

bool decode_mma_supports(const AttentionParams& params) {
  const bool half = params.dtype == DType::kFloat16 || params.dtype == DType::kBFloat16;
  if (!half || params.cache.dtype != params.dtype) return false;
  if (group_heads(params) > kMaxGroupHeads) return false;
  if (!strides_fit(params.cache.key) || !strides_fit(params.cache.value)) return false;
  return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 8 &&
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
