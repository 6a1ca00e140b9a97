// exp and tanh to about one unit in the last place, in vectors.
//
// Written here because ATen's are calls into SLEEF, which a library that stays within the stable
// ABI should not link to, and its inline exp_u20 would dominate the error of fp32 attention.
#pragma once

#include <cmath>

#include "simd.h"

namespace pagedattn::PAGEDATTN_ISA {

// exp(x) = power * (1 + fraction), power = 2^n, |fraction| < 0.42. For |x| <= 87.
struct ExpParts {
  Vec power;
  Vec fraction;
};

inline ExpParts exp_parts(Vec x) {
  using at::vec::fmadd;
  using Ints = at::vec::Vectorized<int32_t>;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
  const Vec magic(0x1.8p23f);
  const Vec shifted = fmadd(x, Vec(1.44269504088896341f), magic);
  const Vec n = shifted - magic;
  // r = x - n ln 2, with ln 2 in two parts (Cody and Waite) so that the first product is exact.
  const Vec r = fmadd(n, Vec(-1.42860677e-6f), fmadd(n, Vec(-0.693145751953125f), x));
  // expm1(r), |r| <= ln(2) / 2, by its Taylor series: the first term left out is below 6e-9.
  Vec p(1.0f / 5040);
  p = fmadd(p, r, Vec(1.0f / 720));
  p = fmadd(p, r, Vec(1.0f / 120));
  p = fmadd(p, r, Vec(1.0f / 24));
  p = fmadd(p, r, Vec(1.0f / 6));
  p = fmadd(p, r, Vec(0.5f));
  p = fmadd(p * r, r, r);
  const Ints exponent = at::vec::cast<int32_t>(shifted) + Ints(127);
  return {at::vec::cast<float>(exponent << Ints(23)), p};
}

// exp(x) for x <= 0; 0 below the normal range, NaN for NaN.
inline Vec exp_nonpositive(Vec x) {
  const Vec lowest(-87.0f);
  const ExpParts e = exp_parts(at::vec::maximum(x, lowest));
  return Vec::blendv(at::vec::fmadd(e.power, e.fraction, e.power), Vec(0.0f), x < lowest);
}

inline float exp_nonpositive(float x) {
  float lanes[kWidth];
  exp_nonpositive(Vec(x)).store(lanes);
  return lanes[0];
}

// tanh(x) = expm1(2x) / (expm1(2x) + 2), which loses nothing to cancellation near 0.
inline Vec tanh(Vec x) {
  const Vec limit(10.0f);  // tanh is 1 in fp32 from 9.02 on
  const ExpParts e = exp_parts(at::vec::clamp(x + x, Vec(0.0f) - (limit + limit), limit + limit));
  const Vec expm1 = at::vec::fmadd(e.power, e.fraction, e.power - Vec(1.0f));
  return expm1 / (expm1 + Vec(2.0f));
}

}  // namespace pagedattn::PAGEDATTN_ISA
