// The two products of attention between a few query rows and the tokens of a tile: register-blocked
// so that a vector of K or V, once loaded and widened, serves all the rows. Rows of float are in
// the pair order of T (simd.h).
//
// A row's arithmetic does not depend on which rows share its registers: each (row, token) score has
// an accumulator of its own, and each output element adds its tokens in order.
#pragma once

#include <cstring>

#include "../../common/cpu/simd.h"

namespace pagedattn::PAGEDATTN_ISA {

constexpr int kRowBlock = 4;       // query rows that share the registers
constexpr int kTokenPad = kWidth;  // token lists are padded to a multiple of this with valid rows
constexpr int kPair = 2 * kWidth;  // elements that load_pair widens

// A few rows of a [rows][stride] array.
template <typename T>
struct RowArray {
  T* data;
  int stride;
  T* row(int i) const { return data + static_cast<int64_t>(i) * stride; }
};
using FloatRows = RowArray<float>;

// f(d, load) for each pair of vectors of a row; load(p, pair) reads the row that begins at p.
template <typename T, typename F>
PAGEDATTN_ALWAYS_INLINE void for_each_pair(int head_dim, const F& f) {
  int d = 0;
  for (; d + kPair <= head_dim; d += kPair) {
    f(d, [d](const T* p, Vec* pair) __attribute__((always_inline)) { load_pair(p + d, pair); });
  }
  if (d < head_dim) {
    f(d, [d, head_dim](const T* p, Vec* pair) { load_pair_tail(p + d, head_dim - d, pair); });
  }
}

// scores[r][t] = q[r] . k[t] for Rows rows and the first kWidth / (Rows up to a power of 2) tokens.
template <int Rows>
constexpr int kTokensPerBlock = kWidth / (Rows == 3 ? 4 : Rows);

// scores[r][t] = the lanes of sums[r * number of tokens + t] together.
template <int Rows>
PAGEDATTN_ALWAYS_INLINE void store_scores(const Vec* sums, FloatRows scores) {
  constexpr int kTokens = kTokensPerBlock<Rows>;
  float totals[kWidth];
  store(totals, sum_each(sums));
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    std::memcpy(scores.row(r), totals + r * kTokens, kTokens * sizeof(float));
  }
}

// Keys and Values are StreamedRows or ConvertedRows (prefetch.h); their elements are of type T.
template <int Rows, typename T, typename Keys>
PAGEDATTN_ALWAYS_INLINE void dot_block(FloatRows q, const Keys& keys, int head_dim,
                                       FloatRows scores) {
  constexpr int kTokens = kTokensPerBlock<Rows>;
  Vec sums[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) sums[i] = Vec(0.0f);
  for_each_pair<T>(head_dim, [&](int d, const auto& load_key) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      Vec key[2];
      load_key(keys.row(t), key);
      keys.reading(t, d, kPair);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        Vec& sum = sums[r * kTokens + t];
        sum = at::vec::fmadd(load(q.row(r) + d), key[0], sum);
        sum = at::vec::fmadd(load(q.row(r) + d + kWidth), key[1], sum);
      }
    }
  });
  store_scores<Rows>(sums, scores);
}

// scores[r][t] for t < num_tokens; columns up to the next multiple of kTokenPad are overwritten.
template <int Rows, typename T, typename Keys>
inline void query_key_product(FloatRows q, const Keys& keys, int num_tokens, int head_dim,
                              FloatRows scores) {
  constexpr int kTokens = kTokensPerBlock<Rows>;
  for (int t = 0; t < num_tokens; t += kTokens) {
    dot_block<Rows, T>(q, keys.from(t), head_dim, {scores.data + t, scores.stride});
  }
}

// out[r][d ...] += sum over t of p[r][t] * v[t][d ...] for Pairs pairs of vectors from d on.
template <int Rows, int Pairs, typename Values, typename Load>
PAGEDATTN_ALWAYS_INLINE void accumulate_block(FloatRows p, const Values& values, int num_tokens,
                                              int d, FloatRows out, const Load& load_value) {
  constexpr int kVectors = 2 * Pairs;
  Vec sums[Rows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) sums[r][i] = load(out.row(r) + d + i * kWidth);
  }
  for (int t = 0; t < num_tokens; ++t) {
    Vec value[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < Pairs; ++i) load_value(values.row(t) + d + i * kPair, value + 2 * i);
    values.reading(t, d, Pairs * kPair);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Vec weight(p.row(r)[t]);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) sums[r][i] = at::vec::fmadd(weight, value[i], sums[r][i]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) store(out.row(r) + d + i * kWidth, sums[r][i]);
  }
}

// out[r] += sum over t < num_tokens of p[r][t] * v[t]. The rows should fit in the L1 cache.
template <int Rows, typename T, typename Values>
inline void weight_value_product(FloatRows p, const Values& values, int num_tokens, int head_dim,
                                 FloatRows out) {
  constexpr int kRegisters = kWidth > 8 ? 16 : 8;  // that accumulate
  constexpr int kPairs = Rows == 1 ? 4 : kRegisters / 2 / (Rows == 3 ? 4 : Rows);
  constexpr int kStep = kPairs * kPair;
  const auto whole = [](const T* row, Vec* pair)
                         __attribute__((always_inline)) { load_pair(row, pair); };
  const int rest = head_dim % kPair;
  const auto tail = [rest](const T* row, Vec* pair) { load_pair_tail(row, rest, pair); };
  int d = 0;
  for (; d + kStep <= head_dim; d += kStep) {
    accumulate_block<Rows, kPairs>(p, values, num_tokens, d, out, whole);
  }
  for (; d + kPair <= head_dim; d += kPair) {
    accumulate_block<Rows, 1>(p, values, num_tokens, d, out, whole);
  }
  if (d < head_dim) accumulate_block<Rows, 1>(p, values, num_tokens, d, out, tail);
}

}  // namespace pagedattn::PAGEDATTN_ISA
