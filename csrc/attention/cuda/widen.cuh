// From the codes of an 8-bit cache to the fp16 operands of an mma, in registers. All codes of all
// three types are exact in fp16.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../../common/cuda/ptx.cuh"
#include "../../common/dtype.h"

namespace pagedattn {

template <typename T>
inline constexpr bool is_8bit = sizeof(T) == 1;

// Which of a register's 4 codes become the pairs `low` and `high`: codes 0, 1 and 2, 3, or codes
// 0, 2 and 1, 3.
enum class Pairs { kAdjacent, kAlternate };

// The results times kUnit are the codes' values.
template <typename Storage>
struct Widen;

// The upper byte of an fp16 number.
template <>
struct Widen<__nv_fp8_e5m2> {
  static constexpr float kUnit = 1.0f;

  template <Pairs kPairs>
  static __device__ __forceinline__ void apply(uint32_t codes, uint32_t& low, uint32_t& high) {
    constexpr bool kAdjacent = kPairs == Pairs::kAdjacent;
    low = __byte_perm(codes, 0, kAdjacent ? 0x1404 : 0x2404);
    high = __byte_perm(codes, 0, kAdjacent ? 0x3424 : 0x3414);
  }
};

// As fp16 bits, 0x6400 + n is 1024 + n.
template <>
struct Widen<int8_t> {
  static constexpr float kUnit = 1.0f;

  template <Pairs kPairs>
  static __device__ __forceinline__ void apply(uint32_t codes, uint32_t& low, uint32_t& high) {
    constexpr bool kAdjacent = kPairs == Pairs::kAdjacent;
    const uint32_t biased = codes ^ 0x80808080u;
    low = unbias(__byte_perm(biased, 0x64646464u, kAdjacent ? 0x4140 : 0x4240));
    high = unbias(__byte_perm(biased, 0x64646464u, kAdjacent ? 0x4342 : 0x4341));
  }

 private:
  static __device__ __forceinline__ uint32_t unbias(uint32_t pair) {
    __half2 value;
    memcpy(static_cast<void*>(&value), &pair, sizeof(value));
    value = __hsub2(value, __half2half2(__ushort_as_half(0x6480)));  // 1024 + 128
    memcpy(&pair, &value, sizeof(pair));
    return pair;
  }
};

// An instruction where there is one. Else sign, exponent and mantissa are moved to fp16's places,
// where the exponent's bias is larger by 8, and what would be 480 becomes a NaN.
template <>
struct Widen<__nv_fp8_e4m3> {
  static constexpr float kUnit = ptx::kHasFp8Conversions ? 1.0f : 256.0f;

  template <Pairs kPairs>
  static __device__ __forceinline__ void apply(uint32_t codes, uint32_t& low, uint32_t& high) {
    if constexpr (ptx::kHasFp8Conversions) {
      if constexpr (kPairs == Pairs::kAlternate) codes = __byte_perm(codes, 0, 0x3120);
      low = convert(codes & 0xffff);
      high = convert(codes >> 16);
    } else {
      Widen<__nv_fp8_e5m2>::apply<kPairs>(codes, low, high);
      low = shift(low);
      high = shift(high);
    }
  }

 private:
  static __device__ __forceinline__ uint32_t convert(uint32_t pair) {
    const auto codes = static_cast<__nv_fp8x2_storage_t>(pair);
    const __half2_raw value = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
    return value.x | static_cast<uint32_t>(value.y) << 16;
  }

  static __device__ __forceinline__ uint32_t shift(uint32_t upper_bytes) {
    const uint32_t pair = (upper_bytes & 0x80008000u) | (upper_bytes >> 1 & 0x3f803f80u);
    __half2 value;
    memcpy(static_cast<void*>(&value), &pair, sizeof(value));
    const __half2 largest = __half2half2(__ushort_as_half(0x3f00));  // 448
    return pair | (__hgt2_mask(__habs2(value), largest) & 0x7e007e00u);
  }
};

// Widen::kUnit of a type known at run time only.
__device__ __forceinline__ float code_unit(DType dtype) {
  return dtype == DType::kFloat8E4M3 ? Widen<__nv_fp8_e4m3>::kUnit : 1.0f;
}

}  // namespace pagedattn
