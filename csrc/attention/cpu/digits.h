// Floats as integers of two or three signed bytes: digits to base 256, which vpdpbusd multiplies.
#pragma once

#if defined(__AVX512BF16__)

#include <limits>

#include "interleaved.h"

namespace pagedattn::PAGEDATTN_ISA {

PAGEDATTN_ALWAYS_INLINE __m512i plus_128(__m512i codes) {
  return _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
}

// What is added up of integers: their first two digits as one number, and the third one, if there
// is one, apart.
template <typename T>
struct Parts {
  T upper;
  T last;
};

// 64 floats times a factor as integers: digit 0 of each in digits[0], and so on.
template <int kDigits>
struct SplitIntegers {
  __m512i digits[kDigits];

  PAGEDATTN_ALWAYS_INLINE SplitIntegers(const Vec* floats, float factor) {
    // With 128 of each digit but the first added, bytes are digits but for their signs.
    constexpr int kShift = kDigits == 3 ? 0x8080 : 0x80;
    __m512i shifted[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i integers = _mm512_cvtps_epi32(floats[i] * Vec(factor));
      shifted[i] = _mm512_add_epi32(integers, _mm512_set1_epi32(kShift));
    }
    // Bytes 0 of the dwords of two vectors.
    alignas(64) static constexpr uint8_t kDwords[64] = {
        0,  4,  8,  12, 16, 20, 24, 28, 32, 36,  40,  44,  48,  52,  56,  60,
        64, 68, 72, 76, 80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124};
#pragma GCC unroll 3
    for (int digit = 0; digit < kDigits; ++digit) {
      const int byte = kDigits - 1 - digit;
      const __m512i bytes =
          _mm512_add_epi8(_mm512_load_si512(kDwords), _mm512_set1_epi8(static_cast<char>(byte)));
      const __m512i first = _mm512_permutex2var_epi8(shifted[0], bytes, shifted[1]);
      const __m512i last = _mm512_permutex2var_epi8(shifted[2], bytes, shifted[3]);
      digits[digit] = _mm512_inserti64x4(first, _mm512_castsi512_si256(last), 1);
      if (digit > 0) digits[digit] = plus_128(digits[digit]);
    }
  }

  // Digit by digit, `stride` bytes apart.
  PAGEDATTN_ALWAYS_INLINE void store(int8_t* out, int stride) const {
#pragma GCC unroll 3
    for (int digit = 0; digit < kDigits; ++digit) {
      _mm512_storeu_si512(out + digit * stride, digits[digit]);
    }
  }

  // 128 times the sums of fours.
  PAGEDATTN_ALWAYS_INLINE Parts<Ints> excess() const {
    const auto sums = [&](int digit) __attribute__((always_inline)) {
      return add_dots(Ints{}, _mm512_set1_epi8(-128), digits[digit]);
    };
    return {sums(0) * 256 + sums(1), kDigits == 3 ? sums(kDigits - 1) : Ints{}};
  }
};

// What turns the floats of a row into integers of kDigits digits, and back. Powers of two, so that
// elements of bf16 down to 2^-7 of the row's largest one become exact integers of two digits. NaN
// if there is an infinity or NaN.
template <int kDigits>
struct SplitScale {
  float factor;
  float inverse;

  PAGEDATTN_ALWAYS_INLINE SplitScale(const Vec* floats, int num_vectors) {
    constexpr uint32_t kLargest = kDigits == 3 ? 0x7f7f7f : 0x7f7f;  // an integer's
    constexpr uint32_t kBits = 8 * kDigits - 2;                      // below its first
    // Floats without a sign are in the order of their bits. Those that with this exponent would be
    // kLargest or more are carried to the next one.
    constexpr uint32_t kCarry = (uint32_t{1} << 24) - (kLargest << (23 - kBits));
    __m512i largest = _mm512_setzero_si512();
    for (int i = 0; i < num_vectors; ++i) {
      largest = _mm512_max_epu32(largest, _mm512_castps_si512(floats[i].abs()));
    }
    const uint32_t exponent = (_mm512_reduce_max_epu32(largest) + kCarry) >> 23;
    constexpr uint32_t kInfinite = 255;
    if (exponent >= kInfinite) {
      factor = inverse = std::numeric_limits<float>::quiet_NaN();
      return;
    }
    const uint32_t normal = exponent > kBits ? exponent : kBits + 1;  // factor and inverse stay so
    factor = bits_to_float((254 + kBits - normal) << 23);
    inverse = bits_to_float((normal - kBits) << 23);
  }
};

inline int32_t sum_lanes(Ints x) { return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(x)); }

PAGEDATTN_ALWAYS_INLINE Vec to_float(Ints x) {
  return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(x));
}

}  // namespace pagedattn::PAGEDATTN_ISA

#endif
