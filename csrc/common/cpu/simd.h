// Vectors of float for the instruction set that this object is compiled for, and loads that widen
// every storage type of the cache to float, exactly.
//
// Kernels are compiled once per instruction set, each time in a namespace of its own
// (PAGEDATTN_ISA), so that the linker cannot merge two builds of one function.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

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

// ---- kPair elements as two vectors ----
//
// Their order is T's pair order. It is the natural one, but for bf16 where a line's even elements
// go to pair[0] and its odd ones to pair[1]: that takes a shift and a mask, no shuffle.

constexpr int kPair = 2 * kWidth;

#if defined(CPU_CAPABILITY_AVX512)
#define PAGEDATTN_SPLITS_BF16 1
PAGEDATTN_ALWAYS_INLINE void load_pair(const BFloat16* p, Vec* pair) {
  const __m512i x = _mm512_loadu_si512(p);
  pair[0] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
  pair[1] = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
}
#elif defined(CPU_CAPABILITY_AVX2)
#define PAGEDATTN_SPLITS_BF16 1
PAGEDATTN_ALWAYS_INLINE void load_pair(const BFloat16* p, Vec* pair) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  pair[0] = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
  pair[1] = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536)));
}
#else
#define PAGEDATTN_SPLITS_BF16 0
#endif

template <typename T>
PAGEDATTN_ALWAYS_INLINE void load_pair(const T* p, Vec* pair) {
  pair[0] = load(p);
  pair[1] = load(p + kWidth);
}

// The last `count` < kPair elements of a row; the rest is 0 and its memory is not read.
template <typename T>
PAGEDATTN_ALWAYS_INLINE void load_pair_tail(const T* p, int count, Vec* pair) {
  T padded[kPair] = {};
  std::memcpy(padded, p, count * sizeof(T));
  load_pair(padded, pair);
}

template <typename T>
constexpr bool kSplitsPairs = PAGEDATTN_SPLITS_BF16 && std::is_same_v<T, BFloat16>;
#undef PAGEDATTN_SPLITS_BF16

// A row of `size` floats, a multiple of kPair, from natural to T's pair order and back.
template <typename T>
inline void to_pair_order(float* row, int size) {
  if constexpr (kSplitsPairs<T>) {
    for (float* pair = row; pair < row + size; pair += kPair) {
      float natural[kPair];
      std::memcpy(natural, pair, sizeof(natural));
      for (int i = 0; i < kPair; ++i) pair[i / 2 + i % 2 * kWidth] = natural[i];
    }
  }
}

template <typename T>
inline void to_natural_order(float* row, int size) {
  if constexpr (kSplitsPairs<T>) {
    for (float* pair = row; pair < row + size; pair += kPair) {
      float split[kPair];
      std::memcpy(split, pair, sizeof(split));
      for (int i = 0; i < kPair; ++i) pair[i] = split[i / 2 + i % 2 * kWidth];
    }
  }
}

// ---- stores that round to nearest even ----

PAGEDATTN_ALWAYS_INLINE void store(float* p, Vec v, int count = kWidth) { v.store(p, count); }
PAGEDATTN_ALWAYS_INLINE void store(BFloat16* p, Vec v, int count = kWidth) {
  at::vec::convert<BFloat16>(v).store(p, count);
}
PAGEDATTN_ALWAYS_INLINE void store(Half* p, Vec v, int count = kWidth) {
  at::vec::convert<Half>(v).store(p, count);
}

// The upper halves of two vectors of float, in order: bf16 where the lower halves are 0.
PAGEDATTN_ALWAYS_INLINE void store_upper_halves(BFloat16* p, const Vec* pair) {
#if defined(CPU_CAPABILITY_AVX512)
  alignas(64) static constexpr uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                      23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                      45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i halves = _mm512_permutex2var_epi16(
      _mm512_castps_si512(pair[0]), _mm512_load_si512(kUpper), _mm512_castps_si512(pair[1]));
  _mm512_storeu_si512(p, halves);
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256i first = _mm256_srli_epi32(_mm256_castps_si256(pair[0]), 16);
  const __m256i second = _mm256_srli_epi32(_mm256_castps_si256(pair[1]), 16);
  const __m256i quarters = _mm256_packus_epi32(first, second);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(quarters, 0xd8));
#else
  float values[kPair];
  pair[0].store(values);
  pair[1].store(values + kWidth);
  for (int i = 0; i < kPair; ++i) {
    p[i] = BFloat16(static_cast<uint16_t>(float_to_bits(values[i]) >> 16), BFloat16::from_bits());
  }
#endif
}

// ---- horizontal operations ----

// Lane i of the result is the sum of the lanes of v[i], i < kWidth. All of them add their lanes in
// the same order: halves, quarters and so on, each step halving the number of vectors:
//
//   a = a0 a1, b = b0 b1:   blend -> a0 b1,  shuffle -> a1 b0,  added -> a b
#if defined(CPU_CAPABILITY_AVX512)

PAGEDATTN_ALWAYS_INLINE Vec sum_each(const Vec* v) {
  const auto halves = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_mask_blend_ps(0xff00, a, b) + _mm512_shuffle_f32x4(a, b, 0x4e);
  };
  const auto quarters = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
  };
  const auto eighths = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_mask_blend_ps(0xcccc, a, b) + _mm512_shuffle_ps(a, b, 0x4e);
  };
  const auto sixteenths = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_shuffle_ps(a, b, 0x88) + _mm512_shuffle_ps(a, b, 0xdd);
  };
  __m512 x[4];  // x[j]: in 128-bit lane i, what is left of v[4 i + j]
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    x[j] = quarters(halves(v[j], v[j + 4]), halves(v[j + 8], v[j + 12]));
  }
  return sixteenths(eighths(x[0], x[1]), eighths(x[2], x[3]));
}

#elif defined(CPU_CAPABILITY_AVX2)

PAGEDATTN_ALWAYS_INLINE Vec sum_each(const Vec* v) {
  const auto halves = [](__m256 a, __m256 b) __attribute__((always_inline)) {
    return _mm256_blend_ps(a, b, 0xf0) + _mm256_permute2f128_ps(a, b, 0x21);
  };
  const auto quarters = [](__m256 a, __m256 b) __attribute__((always_inline)) {
    return _mm256_blend_ps(a, b, 0xcc) + _mm256_shuffle_ps(a, b, 0x4e);
  };
  const auto eighths = [](__m256 a, __m256 b) __attribute__((always_inline)) {
    return _mm256_shuffle_ps(a, b, 0x88) + _mm256_shuffle_ps(a, b, 0xdd);
  };
  __m256 x[4];  // x[j]: in 128-bit lane i, what is left of v[4 i + j]
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) x[j] = halves(v[j], v[j + 4]);
  return eighths(quarters(x[0], x[1]), quarters(x[2], x[3]));
}

#else

PAGEDATTN_ALWAYS_INLINE Vec sum_each(const Vec* v) {
  float sums[kWidth];
  for (int i = 0; i < kWidth; ++i) {
    float lanes[kWidth];
    v[i].store(lanes);
    for (int n = kWidth / 2; n > 0; n /= 2) {
      for (int j = 0; j < n; ++j) lanes[j] += lanes[j + n];
    }
    sums[i] = lanes[0];
  }
  return Vec::loadu(sums);
}

#endif

inline float sum_lanes(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](Vec a, Vec b) { return a + b; }, v);
}

// NaN wins, so that it reaches the output.
inline float max_lanes(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](Vec a, Vec b) { return at::vec::maximum(a, b); }, v);
}

}  // namespace pagedattn::PAGEDATTN_ISA
