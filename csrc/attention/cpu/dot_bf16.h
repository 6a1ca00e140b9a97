// q . k of queries and keys in bf16 by vdpbf16ps: exact products of pairs, added up in fp32, and no
// widening. Elsewhere products.h does it with FMA.
#pragma once

#include "products.h"

namespace pagedattn::PAGEDATTN_ISA {

#if defined(__AVX512BF16__)
constexpr bool kHasBf16Dots = true;

template <int Rows, typename Keys>
PAGEDATTN_ALWAYS_INLINE void dot_block_bf16(RowArray<const BFloat16> q, const Keys& keys,
                                            int head_dim, FloatRows scores) {
  constexpr int kTokens = kTokensPerBlock<Rows>;
  Vec sums[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) sums[i] = Vec(0.0f);
  const auto add_pairs = [&](int d, const auto& load_key) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      const auto key = reinterpret_cast<__m512bh>(load_key(keys.row(t) + d));
      keys.reading(t, d, kPair);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const auto query = reinterpret_cast<__m512bh>(_mm512_loadu_si512(q.row(r) + d));
        Vec& sum = sums[r * kTokens + t];
        sum = _mm512_dpbf16_ps(sum, key, query);
      }
    }
  };
  int d = 0;
  for (; d + kPair <= head_dim; d += kPair) {
    add_pairs(d, [](const BFloat16* p) { return _mm512_loadu_si512(p); });
  }
  if (d < head_dim) {
    const __mmask32 rest = (1u << (head_dim - d)) - 1;
    add_pairs(d, [rest](const BFloat16* p) { return _mm512_maskz_loadu_epi16(rest, p); });
  }
  store_scores<Rows>(sums, scores);
}
#else
constexpr bool kHasBf16Dots = false;

template <int Rows, typename Keys>
inline void dot_block_bf16(RowArray<const BFloat16>, const Keys&, int, FloatRows) {}
#endif

// scores[r][t] for t < num_tokens; columns up to the next multiple of kTokenPad are overwritten.
template <int Rows, typename Keys>
inline void query_key_product_bf16(RowArray<const BFloat16> q, const Keys& keys, int num_tokens,
                                   int head_dim, FloatRows scores) {
  constexpr int kTokens = kTokensPerBlock<Rows>;
  for (int t = 0; t < num_tokens; t += kTokens) {
    dot_block_bf16<Rows>(q, keys.from(t), head_dim, {scores.data + t, scores.stride});
  }
}

}  // namespace pagedattn::PAGEDATTN_ISA
