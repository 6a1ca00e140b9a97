// exp and tanh to about one unit in the last place, in vectors.
//
// Written here because ATen's are calls into SLEEF, which a library that stays within the stable
// ABI should not link to, and its inline exp_u20 would dominate the error of fp32 attention.
#pragma once

#include <cmath>

#include "simd.h"

namespace pagedattn::PAGEDATTN_ISA {

// exp(x) = 2^n * (1 + fraction), |fraction| < 0.42.
struct ExpParts {
  Vec n;
  Vec fraction;
};

// Adding it rounds to an integer and leaves that in the low bits of the sum.
constexpr float kRounder = 0x1.8p23f;

inline ExpParts exp_parts(Vec x) {
  using at::vec::fmadd;
  const Vec n = fmadd(x, Vec(1.44269504088896341f), Vec(kRounder)) - Vec(kRounder);
  // r = x - n ln 2, with ln 2 in two parts (Cody and Waite) so that the first product is exact.
  const Vec r = fmadd(n, Vec(-1.42860677e-6f), fmadd(n, Vec(-0.693145751953125f), x));
  // expm1(r), |r| <= ln(2) / 2, by its Taylor series: the first term left out is below 6e-9.
  Vec p(1.0f / 5040);
  p = fmadd(p, r, Vec(1.0f / 720));
  p = fmadd(p, r, Vec(1.0f / 120));
  p = fmadd(p, r, Vec(1.0f / 24));
  p = fmadd(p, r, Vec(1.0f / 6));
  p = fmadd(p, r, Vec(0.5f));
  return {n, fmadd(p * r, r, r)};
}

// For integers whose power is in the normal range.
inline Vec power_of_2(Vec n) {
  using Ints = at::vec::Vectorized<int32_t>;
  const Ints exponent = at::vec::cast<int32_t>(n + Vec(kRounder)) + Ints(127);
  return at::vec::cast<float>(exponent << Ints(23));
}

// exp(x) for x < 88. Below the normal range it is 0 or, with AVX512, denormal on the way there. NaN
// for NaN.
#if defined(CPU_CAPABILITY_AVX512)
inline Vec exp(Vec x) {
  // An instruction that scales, down to 0. Of two operands vmaxps returns the second if one is NaN.
  const ExpParts e = exp_parts(_mm512_max_ps(_mm512_set1_ps(-110.0f), x));
  return _mm512_scalef_ps(e.fraction + Vec(1.0f), e.n);
}
#else
inline Vec exp(Vec x) {
  const Vec lowest(-87.0f);
  const ExpParts e = exp_parts(at::vec::maximum(x, lowest));
  const Vec power = power_of_2(e.n);
  return Vec::blendv(at::vec::fmadd(power, e.fraction, power), Vec(0.0f), x < lowest);
}
#endif

inline float exp(float x) {
  float lanes[kWidth];
  exp(Vec(x)).store(lanes);
  return lanes[0];
}

// tanh(x) = expm1(2x) / (expm1(2x) + 2), which loses nothing to cancellation near 0.
inline Vec tanh(Vec x) {
  const Vec limit(10.0f);  // tanh is 1 in fp32 from 9.02 on
  const ExpParts e = exp_parts(at::vec::clamp(x + x, Vec(0.0f) - (limit + limit), limit + limit));
  const Vec power = power_of_2(e.n);
  const Vec expm1 = at::vec::fmadd(power, e.fraction, power - Vec(1.0f));
  return expm1 / (expm1 + Vec(2.0f));
}

}  // namespace pagedattn::PAGEDATTN_ISA
