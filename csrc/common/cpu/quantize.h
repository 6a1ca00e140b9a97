// Rounding of floats to the 8-bit storage types: to nearest even, saturating. NaN stays NaN in the
// float8 types and becomes 0 in int8.
#pragma once

#include <cmath>

#include "simd.h"

namespace pagedattn::PAGEDATTN_ISA {

template <typename T>
struct Quantization;

// Both float8 types: a float's bits rounded to kMantissaBits of mantissa, with another exponent
// bias. Below the smallest normal value the grid is uniform, and an addition does the rounding.
template <int kMantissaBits, int kBias>
inline uint8_t float8_code(float x, float max, uint8_t nan) {
  constexpr int kDropped = 23 - kMantissaBits;
  const float smallest_normal = bits_to_float(static_cast<uint32_t>(127 + 1 - kBias) << 23);
  const uint32_t sign = float_to_bits(x) >> 31 << 7;
  const float magnitude = bits_to_float(float_to_bits(x) & 0x7fffffffu);
  const float clamped = magnitude > max ? max : magnitude;
  const uint32_t bits = float_to_bits(clamped);
  const uint32_t rounded = bits + ((1u << (kDropped - 1)) - 1) + (bits >> kDropped & 1);
  const uint32_t normal =
      (rounded >> kDropped) - (static_cast<uint32_t>(127 - kBias) << kMantissaBits);
  // A float in [2^23, 2^24) counts in ones; scaled, it counts in smallest subnormals.
  const float grid =
      bits_to_float(static_cast<uint32_t>(127 + 1 - kBias - kMantissaBits + 23) << 23);
  const uint32_t subnormal = float_to_bits(clamped + grid) - float_to_bits(grid);
  const uint32_t code = clamped < smallest_normal ? subnormal : normal;
  return static_cast<uint8_t>(sign | (x != x ? nan : code));
}

template <>
struct Quantization<Float8E4M3> {
  static constexpr float kMax = 448.0f;
  static Float8E4M3 round(float x) { return {float8_code<3, 7>(x, kMax, 0x7f)}; }
};

template <>
struct Quantization<Float8E5M2> {
  static constexpr float kMax = 57344.0f;
  static Float8E5M2 round(float x) { return {float8_code<2, 15>(x, kMax, 0x7f)}; }
};

template <>
struct Quantization<int8_t> {
  static constexpr float kMax = 127.0f;
  static int8_t round(float x) {
    const float clamped = x != x ? 0.0f : x > kMax ? kMax : x < -kMax ? -kMax : x;
    const float magic = 0x1.8p23f;  // its sum is an integer, rounded to nearest even
    return static_cast<int8_t>(static_cast<int32_t>((clamped + magic) - magic));
  }
};

}  // namespace pagedattn::PAGEDATTN_ISA
