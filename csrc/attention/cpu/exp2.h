// 2^x for softmax weights, as accurate as they have to be.
#pragma once

#include "../../common/cpu/simd.h"

namespace pagedattn::PAGEDATTN_ISA {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

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

// 2^r on [0, 1] as 1 + r c[0] + r^2 c[1] + ...: minimax in relative error among those that are
// exactly 1 at 0. Errors: degree 4: 2.9e-6, degree 6: 1.3e-8.
template <int Degree>
struct Exp2Polynomial;
template <>
struct Exp2Polynomial<4> {
  static constexpr float c[4] = {0x1.62d6c6p-1f, 0x1.ee2452p-3f, 0x1.abf866p-5f, 0x1.b7f738p-7f};
};
template <>
struct Exp2Polynomial<6> {
  static constexpr float c[6] = {0x1.62e42cp-1f, 0x1.ebfd58p-3f,  0x1.c68912p-5f,
                                 0x1.3d0b92p-7f, 0x1.46d64cp-10f, 0x1.c54178p-13f};
};

template <int Degree>
PAGEDATTN_ALWAYS_INLINE Vec exp2_fraction(Vec r) {
  constexpr auto& c = Exp2Polynomial<Degree>::c;
  Vec p(c[Degree - 1]);
#pragma GCC unroll 8
  for (int i = Degree - 2; i >= 0; --i) p = at::vec::fmadd(p, r, Vec(c[i]));
  return at::vec::fmadd(p, r, Vec(1.0f));
}

// 2^x for x < 128; exactly 0 for -inf, and near 0 below the normal range; NaN for NaN.
template <int Degree>
PAGEDATTN_ALWAYS_INLINE Vec exp2_weight(Vec x) {
#if defined(CPU_CAPABILITY_AVX512)
  constexpr int kFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  return _mm512_scalef_ps(exp2_fraction<Degree>(_mm512_reduce_ps(x, kFloor)), x);
#else
  using Ints = at::vec::Vectorized<int32_t>;
  x = max_ignoring_first_nan(Vec(-127.0f), x);
  const Vec n = x.floor();
  // Added to 1.5 * 2^23, an integer lies in the low bits of the sum; -127 makes the factor 0.
  const Vec shifted = n + Vec(0x1.8p23f);
  const Ints exponent = (at::vec::cast<int32_t>(shifted) << Ints(23)) + Ints(127 << 23);
  return exp2_fraction<Degree>(x - n) * at::vec::cast<float>(exponent);
#endif
}

template <int Degree>
inline float exp2_weight(float x) {
  float lanes[kWidth];
  store(lanes, exp2_weight<Degree>(Vec(x)));
  return lanes[0];
}

}  // namespace pagedattn::PAGEDATTN_ISA
