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

// fp16 or bf16 throughout, within the loaders' reach.
inline bool mma_takes_cache(const AttentionParams& params) {
  const bool half = params.dtype == DType::kFloat16 || params.dtype == DType::kBFloat16;
  return half && params.cache.dtype == params.dtype && strides_fit(params.cache.key) &&
         strides_fit(params.cache.value);
}

}  // namespace pagedattn
