// tanh to about one unit in the last place, in vectors.
//
// Written here because ATen's is a call into SLEEF, which a library that stays within the stable
// ABI should not link to.
#pragma once

#include "simd.h"

namespace pagedattn::PAGEDATTN_ISA {

// exp(x) - 1 for |x| <= 87.
inline Vec expm1(Vec x) {
  using at::vec::fmadd;
  using Ints = at::vec::Vectorized<int32_t>;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
  const Vec magic(0x1.8p23f);
  const Vec shifted = fmadd(x, Vec(1.44269504088896341f), magic);
  const Vec n = shifted - magic;
  // r = x - n ln 2, with ln 2 in two parts (Cody and Waite) so that the first product is exact.
  const Vec r = fmadd(n, Vec(-1.42860677e-6f), fmadd(n, Vec(-0.693145751953125f), x));
  // exp(r) - 1, |r| <= ln(2) / 2, by its Taylor series: the first term left out is below 6e-9.
  Vec p(1.0f / 5040);
  p = fmadd(p, r, Vec(1.0f / 720));
  p = fmadd(p, r, Vec(1.0f / 120));
  p = fmadd(p, r, Vec(1.0f / 24));
  p = fmadd(p, r, Vec(1.0f / 6));
  p = fmadd(p, r, Vec(0.5f));
  p = fmadd(p * r, r, r);
  const Ints exponent = at::vec::cast<int32_t>(shifted) + Ints(127);
  const Vec power = at::vec::cast<float>(exponent << Ints(23));
  return fmadd(power, p, power - Vec(1.0f));
}

// expm1(2x) / (expm1(2x) + 2), which loses nothing to cancellation near 0.
inline Vec tanh(Vec x) {
  const Vec limit(20.0f);  // tanh(x) is 1 in fp32 from 9.02 on
  const Vec e = expm1(at::vec::clamp(x + x, Vec(0.0f) - limit, limit));
  return e / (e + Vec(2.0f));
}

}  // namespace pagedattn::PAGEDATTN_ISA
