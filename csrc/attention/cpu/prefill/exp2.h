// 2^x for softmax weights, fewer instructions than exp_nonpositive (math.h) and as accurate as the
// kernel needs.
#pragma once

#include "../../../common/cpu/simd.h"

namespace pagedattn::PAGEDATTN_ISA {

// The larger one; of a NaN in `a` nothing is left, one in `b` stays. One instruction.
PAGEDATTN_ALWAYS_INLINE Vec max_ignoring_first_nan(Vec a, Vec b) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_max_ps(a, b);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_max_ps(a, b);
#else
  return Vec::blendv(b, a, a > b);
#endif
}

// 2^r on [-1/2, 1/2] as 1 + r c[0] + r^2 c[1] + ...: minimax in relative error among those that
// are exactly 1 at 0. Errors: degree 4: 2.9e-6, degree 6: 1.6e-8.
template <int Degree>
struct Exp2Polynomial;
template <>
struct Exp2Polynomial<4> {
  static constexpr float c[4] = {0x1.62e12cp-1f, 0x1.ec0378p-3f, 0x1.c9fc46p-5f, 0x1.3a02cep-7f};
};
template <>
struct Exp2Polynomial<6> {
  static constexpr float c[6] = {0x1.62e430p-1f, 0x1.ebfbdcp-3f,  0x1.c6aee8p-5f,
                                 0x1.3b2d4cp-7f, 0x1.5f3e54p-10f, 0x1.41fbbcp-13f};
};

// 2^x for x < 1; exactly 0 for x <= -127, also for -inf; NaN for NaN.
template <int Degree>
PAGEDATTN_ALWAYS_INLINE Vec exp2_weight(Vec x) {
  using at::vec::fmadd;
  using Ints = at::vec::Vectorized<int32_t>;
  constexpr auto& c = Exp2Polynomial<Degree>::c;
  x = max_ignoring_first_nan(Vec(-127.0f), x);
  // Adding 1.5 * 2^23 rounds to an integer n and leaves it in the low bits of the sum.
  const Vec magic(0x1.8p23f);
  const Vec shifted = x + magic;
  const Vec r = x - (shifted - magic);
  Vec p(c[Degree - 1]);
#pragma GCC unroll 8
  for (int i = Degree - 2; i >= 0; --i) p = fmadd(p, r, Vec(c[i]));
  p = fmadd(p, r, Vec(1.0f));
  const Ints exponent = (at::vec::cast<int32_t>(shifted) << Ints(23)) + Ints(127 << 23);
  return p * at::vec::cast<float>(exponent);
}

}  // namespace pagedattn::PAGEDATTN_ISA
