// Picks the instantiation of the tensor-core decode kernel.
#include "decode_mma.h"

#include <cstdint>
#include <limits>

#include "../../common/cuda/dispatch.h"
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

// visit.operator()<T, kHeadDim>() with what the cache holds and the bucket of its head_dim: for
// 8-bit caches, there are fewer.
template <typename Visit>
void with_instantiation(const KvCacheView& cache, Visit&& visit) {
  if (is_quantized(cache.dtype)) {
    with_quantized_type(cache.dtype, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      if (cache.head_dim <= 64) return visit.template operator()<T, 64>();
      if (cache.head_dim <= 128) return visit.template operator()<T, 128>();
      visit.template operator()<T, 256>();
    });
  } else {
    with_head_dim(cache.head_dim, [&]<int kHeadDim>() {
      if (cache.dtype == DType::kFloat16) return visit.template operator()<__half, kHeadDim>();
      visit.template operator()<__nv_bfloat16, kHeadDim>();
    });
  }
}

int shared_bytes(const AttentionParams& params) {
  int bytes = 0;
  with_instantiation(params.cache, [&]<typename T, int kHeadDim>() {
    bytes = decode_mma::SharedLayout<kHeadDim, sizeof(T)>::bytes(group_heads(params));
  });
  return bytes;
}

// Copies of 16 bytes need rows of as many, and scales are of tokens for both K and V or for
// neither.
bool supports_cache(const KvCacheView& cache, DType query) {
  if (!is_quantized(cache.dtype)) return cache.dtype == query;
  const bool of_tokens = cache.key.scale.kind == ScaleKind::kPerTokenHead;
  return cache.head_dim % 16 == 0 &&
         of_tokens == (cache.value.scale.kind == ScaleKind::kPerTokenHead);
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
  if (!half || !supports_cache(params.cache, params.dtype)) return false;
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
  with_instantiation(params.cache, [&]<typename T, int kHeadDim>() {
    launch_decode_mma<T, kHeadDim>(params, stream);
  });
}

}  // namespace pagedattn
