// Conversions between the element types of tensors and fp32, in which all arithmetic is done.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <math.h>

#include <cstdint>
#include <type_traits>

#include "../dtype.h"
#include "vector.cuh"

namespace pagedattn {

template <typename T>
__device__ __forceinline__ float to_float(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __half2float(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(value);
  } else if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(value.__x, __NV_E4M3)));
  } else if constexpr (std::is_same_v<T, __nv_fp8_e5m2>) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(value.__x, __NV_E5M2)));
  } else {
    static_assert(std::is_same_v<T, int8_t>);
    return static_cast<float>(value);
  }
}

template <typename T, typename Word, int N>
__device__ __forceinline__ void widen_as(float (&to)[N], const Vec<Word, N>& words) {
  static_assert(sizeof(T) == sizeof(Word));
  T elements[N];
  memcpy(static_cast<void*>(elements), &words, sizeof(elements));
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = to_float(elements[i]);
}

// Words of `dtype`, known at run time only, as fp32: one kernel serves all storage types of a
// width. The choice is the same for all threads.
template <typename Word, int N>
__device__ __forceinline__ void widen(float (&to)[N], const Vec<Word, N>& words, DType dtype) {
  if constexpr (sizeof(Word) == 4) {
    widen_as<float>(to, words);
  } else if constexpr (sizeof(Word) == 2) {
    if (dtype == DType::kFloat16) return widen_as<__half>(to, words);
    widen_as<__nv_bfloat16>(to, words);
  } else {
    if (dtype == DType::kFloat8E4M3) return widen_as<__nv_fp8_e4m3>(to, words);
    if (dtype == DType::kFloat8E5M2) return widen_as<__nv_fp8_e5m2>(to, words);
    widen_as<int8_t>(to, words);
  }
}

// The largest code of an 8-bit type.
template <typename T>
__device__ __forceinline__ float max_code() {
  if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
    return 448.0f;
  } else if constexpr (std::is_same_v<T, __nv_fp8_e5m2>) {
    return 57344.0f;
  } else {
    static_assert(std::is_same_v<T, int8_t>);
    return 127.0f;
  }
}

// Round to nearest even. The 8-bit types saturate; NaN stays NaN in fp8 and becomes 0 in int8.
template <typename T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
    T code;
    code.__x = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
    return code;
  } else if constexpr (std::is_same_v<T, __nv_fp8_e5m2>) {
    T code;
    code.__x = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2);
    return code;
  } else {
    static_assert(std::is_same_v<T, int8_t>);
    if (value != value) return 0;
    return static_cast<int8_t>(rintf(fminf(fmaxf(value, -127.0f), 127.0f)));
  }
}

// Element `index` of a tensor whose dtype is known at run time only; for what is read or written
// once per row, where a template parameter would double the number of kernels for nothing.
__device__ __forceinline__ float load_float(const void* data, int64_t index, DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return to_float(static_cast<const __half*>(data)[index]);
    case DType::kBFloat16:
      return to_float(static_cast<const __nv_bfloat16*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

__device__ __forceinline__ void store_float(void* data, int64_t index, DType dtype, float value) {
  switch (dtype) {
    case DType::kFloat16:
      static_cast<__half*>(data)[index] = from_float<__half>(value);
      return;
    case DType::kBFloat16:
      static_cast<__nv_bfloat16*>(data)[index] = from_float<__nv_bfloat16>(value);
      return;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

template <typename T, int N>
__device__ __forceinline__ void store_converted(T* to, const float (&values)[N]) {
  Vec<T, N> vec;
#pragma unroll
  for (int e = 0; e < N; ++e) vec[e] = from_float<T>(values[e]);
  store_vec(to, vec);
}

// The same for N neighbours, as one access.
template <int N>
__device__ __forceinline__ void store_floats(void* data, int64_t index, DType dtype,
                                             const float (&values)[N]) {
  switch (dtype) {
    case DType::kFloat16:
      return store_converted(static_cast<__half*>(data) + index, values);
    case DType::kBFloat16:
      return store_converted(static_cast<__nv_bfloat16*>(data) + index, values);
    default:
      return store_converted(static_cast<float*>(data) + index, values);
  }
}

}  // namespace pagedattn
