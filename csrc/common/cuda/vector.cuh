// N elements that travel through memory as one access.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace pagedattn {

template <int kBytes>
struct Word;
template <>
struct Word<1> {
  using Type = uint8_t;
};
template <>
struct Word<2> {
  using Type = uint16_t;
};
template <>
struct Word<4> {
  using Type = uint32_t;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <>
struct Word<16> {
  using Type = uint4;
};

// What a load brings: floats need no detour over integer registers.
template <typename T, int kBytes>
struct LoadedWord : Word<kBytes> {};
template <>
struct LoadedWord<float, 4> {
  using Type = float;
};
template <>
struct LoadedWord<float, 8> {
  using Type = float2;
};
template <>
struct LoadedWord<float, 16> {
  using Type = float4;
};

template <typename T, int N>
struct Vec {
  using WordType = typename Word<sizeof(T) * N>::Type;

  T data[N];

  __device__ __forceinline__ T& operator[](int i) { return data[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return data[i]; }
};

template <typename T, int N>
__device__ __forceinline__ Vec<T, N> zero_vec() {
  Vec<T, N> vec;
  memset(&vec, 0, sizeof(vec));
  return vec;
}

// `from` is aligned to the size of the whole vector.
template <int N, typename T>
__device__ __forceinline__ Vec<T, N> load_vec(const T* from) {
  Vec<T, N> vec;
  const auto word = *reinterpret_cast<const typename LoadedWord<T, sizeof(T) * N>::Type*>(from);
  memcpy(&vec, &word, sizeof(vec));
  return vec;
}

template <typename T, int N>
__device__ __forceinline__ void store_vec(T* to, const Vec<T, N>& vec) {
  typename Vec<T, N>::WordType word;
  memcpy(&word, &vec, sizeof(vec));
  *reinterpret_cast<typename Vec<T, N>::WordType*>(to) = word;
}

}  // namespace pagedattn
