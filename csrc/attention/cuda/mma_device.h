// What the tensor-core kernels ask of the current device and of the cache.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "../../common/cuda/launch.h"
#include "../params.h"

namespace pagedattn {

inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check_cuda(cudaGetDevice(&device), "attention");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "attention");
  return value;
}

inline bool has_mma_instructions() {
  return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 8;
}

// The loaders multiply 32-bit block numbers by 32-bit byte strides.
inline bool strides_fit(const CacheView& view) {
  constexpr int64_t kMaxStride = std::numeric_limits<uint32_t>::max() / 2;
  const auto fits = [](int64_t stride) { return stride >= 0 && stride <= kMaxStride; };
  return fits(view.block_stride) && fits(view.token_stride) && fits(view.head_stride);
}

// In the query's type, or in an 8-bit one: then copies of 16 bytes need rows of as many, and scales
// are of tokens for both K and V or for neither.
inline bool mma_takes_elements(const KvCacheView& cache, DType query) {
  if (!is_quantized(cache.dtype)) return cache.dtype == query;
  const bool of_tokens = cache.key.scale.kind == ScaleKind::kPerTokenHead;
  return cache.head_dim % 16 == 0 &&
         of_tokens == (cache.value.scale.kind == ScaleKind::kPerTokenHead);
}

// A query in fp16 or bf16 and a cache within the loaders' reach.
inline bool mma_takes(const AttentionParams& params) {
  const bool half = params.dtype == DType::kFloat16 || params.dtype == DType::kBFloat16;
  return half && mma_takes_elements(params.cache, params.dtype) && strides_fit(params.cache.key) &&
         strides_fit(params.cache.value);
}

}  // namespace pagedattn
