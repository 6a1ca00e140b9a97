// Vectors of float for the instruction set that this object is compiled for, and loads that widen
// every storage type of the cache to float, exactly.
//
// Kernels are compiled once per instruction set, each time in a namespace of its own
// (PAGEDATTN_ISA), so that the linker cannot merge two builds of one function.
#pragma once

#include <ATen/cpu/vec/vec.h>

#include <cstdint>
#include <cstring>
#include <limits>

#ifndef PAGEDATTN_ISA
#error "compile with -DPAGEDATTN_ISA=<name of the instruction set>"
#endif

namespace pagedattn::PAGEDATTN_ISA {

using Vec = at::vec::Vectorized<float>;
constexpr int kWidth = Vec::size();

// For what has to stay in registers.
#define PAGEDATTN_ALWAYS_INLINE inline __attribute__((always_inline))

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Storage types of the cache.
using at::BFloat16;
using at::Half;
struct Float8E4M3 {
  uint8_t code;
};
struct Float8E5M2 {
  uint8_t code;
};

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// ---- scalar conversions of the 8-bit types ----

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Moves exponent and mantissa into a float's fields and repairs the bias by an exact product, which
// normalises subnormals too. The codes past the largest finite one become inf or NaN by hand.
inline float to_float(Float8E4M3 x) {
  const uint32_t magnitude = x.code & 0x7fu;
  const float value = bits_to_float(magnitude << 20) * 0x1p120f;
  const float finite_or_nan = magnitude == 0x7f ? std::numeric_limits<float>::quiet_NaN() : value;
  return x.code & 0x80 ? -finite_or_nan : finite_or_nan;
}

inline float to_float(Float8E5M2 x) {
  const uint32_t magnitude = x.code & 0x7fu;
  const uint32_t special = 0x7f800000u | (magnitude & 3u) << 21;  // inf, or NaN with its payload
  const float value =
      magnitude >= 0x7c ? bits_to_float(special) : bits_to_float(magnitude << 21) * 0x1p112f;
  return x.code & 0x80 ? -value : value;
}

inline float to_float(int8_t x) { return static_cast<float>(x); }

// ---- kWidth elements as floats ----

PAGEDATTN_ALWAYS_INLINE Vec load(const float* p) { return Vec::loadu(p); }

PAGEDATTN_ALWAYS_INLINE Vec load(const BFloat16* p) {
  Vec v;
  at::vec::load_fp32_from_bf16(p, v);
  return v;
}

PAGEDATTN_ALWAYS_INLINE Vec load(const Half* p) {
  Vec v;
  at::vec::load_fp32_from_fp16(p, v);
  return v;
}

#if defined(CPU_CAPABILITY_AVX512)

PAGEDATTN_ALWAYS_INLINE Vec load(const int8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
}

PAGEDATTN_ALWAYS_INLINE Vec load(const Float8E5M2* p) {  // the upper half of an fp16
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8));
}

// Shifted into an fp16's fields, an e4m3 is 2^-8 of its value; fp16 has room for its NaN too.
PAGEDATTN_ALWAYS_INLINE Vec load(const Float8E4M3* p) {
  const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i shifted = _mm256_slli_epi16(codes, 7);
  const __m256i exponent_of_nan = _mm256_set1_epi16(0x4000);
  const __m256i magnitude = _mm256_and_si256(shifted, _mm256_set1_epi16(0x3fff));
  const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80));
  const __m256i half = _mm256_or_si256(_mm256_andnot_si256(exponent_of_nan, shifted),
                                       _mm256_and_si256(is_nan, exponent_of_nan));
  return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}

#elif defined(CPU_CAPABILITY_AVX2)

PAGEDATTN_ALWAYS_INLINE Vec load(const int8_t* p) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
}

PAGEDATTN_ALWAYS_INLINE Vec load(const Float8E5M2* p) {  // the upper half of an fp16
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), codes));
}

// Shifted into an fp16's fields, an e4m3 is 2^-8 of its value; fp16 has room for its NaN too.
PAGEDATTN_ALWAYS_INLINE Vec load(const Float8E4M3* p) {
  const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i shifted = _mm_slli_epi16(codes, 7);
  const __m128i exponent_of_nan = _mm_set1_epi16(0x4000);
  const __m128i magnitude = _mm_and_si128(shifted, _mm_set1_epi16(0x3fff));
  const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x3f80));
  const __m128i half = _mm_or_si128(_mm_andnot_si128(exponent_of_nan, shifted),
                                    _mm_and_si128(is_nan, exponent_of_nan));
  return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
}

#else

template <typename T>
PAGEDATTN_ALWAYS_INLINE Vec load(const T* p) {
  float values[kWidth];
  for (int i = 0; i < kWidth; ++i) values[i] = to_float(p[i]);
  return Vec::loadu(values);
}

#endif

// The last `count` < kWidth elements of a row; the other lanes are 0 and their memory is not read.
template <typename T>
PAGEDATTN_ALWAYS_INLINE Vec load_tail(const T* p, int count) {
  T padded[kWidth] = {};
  std::memcpy(padded, p, count * sizeof(T));
  return load(padded);
}

// ---- stores that round to nearest even ----

PAGEDATTN_ALWAYS_INLINE void store(float* p, Vec v, int count = kWidth) { v.store(p, count); }
PAGEDATTN_ALWAYS_INLINE void store(BFloat16* p, Vec v, int count = kWidth) {
  at::vec::convert<BFloat16>(v).store(p, count);
}
PAGEDATTN_ALWAYS_INLINE void store(Half* p, Vec v, int count = kWidth) {
  at::vec::convert<Half>(v).store(p, count);
}

// ---- horizontal operations ----

// out[i] = sum of the lanes of v[i], i < 4. All four sums add their lanes in the same order.
PAGEDATTN_ALWAYS_INLINE void sum4(const Vec v[4], float* const out[4]) {
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
  __m256 x[4];
  for (int i = 0; i < 4; ++i) {
#if defined(CPU_CAPABILITY_AVX512)
    x[i] = _mm256_add_ps(_mm512_castps512_ps256(v[i]), _mm512_extractf32x8_ps(v[i], 1));
#else
    x[i] = v[i];
#endif
  }
  const __m256 y = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  _mm_store_ss(out[0], sums);
  _mm_store_ss(out[1], _mm_shuffle_ps(sums, sums, 1));
  _mm_store_ss(out[2], _mm_shuffle_ps(sums, sums, 2));
  _mm_store_ss(out[3], _mm_shuffle_ps(sums, sums, 3));
#else
  for (int i = 0; i < 4; ++i) {
    float lanes[kWidth];
    v[i].store(lanes);
    for (int n = kWidth / 2; n > 0; n /= 2) {
      for (int j = 0; j < n; ++j) lanes[j] += lanes[j + n];
    }
    *out[i] = lanes[0];
  }
#endif
}

template <typename Op>
inline float reduce_lanes(Vec v, const Op& op) {
  float lanes[kWidth];
  v.store(lanes);
  for (int n = kWidth / 2; n > 0; n /= 2) {
    for (int j = 0; j < n; ++j) lanes[j] = op(lanes[j], lanes[j + n]);
  }
  return lanes[0];
}

inline float sum_lanes(Vec v) {
  return reduce_lanes(v, [](float a, float b) { return a + b; });
}

// NaN wins, so that it reaches the output.
inline float max_lanes(Vec v) {
  return reduce_lanes(v, [](float a, float b) { return a > b || a != a ? a : b; });
}

}  // namespace pagedattn::PAGEDATTN_ISA
