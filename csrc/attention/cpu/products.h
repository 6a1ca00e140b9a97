// The two products of attention between a few query rows and the tokens of a tile: register-blocked
// so that a vector of K or V, once loaded and widened, serves all the rows.
//
// A row's arithmetic does not depend on which rows share its registers: each (row, token) score has
// an accumulator of its own, and each output element adds its tokens in order.
#pragma once

#include "../../common/cpu/simd.h"
#include "prefetch.h"

namespace pagedattn::PAGEDATTN_ISA {

constexpr int kRowBlock = 4;  // query rows that share the registers
constexpr int kTokenPad = 8;  // token lists are padded to a multiple of this with valid rows

// A few rows of a [rows][stride] array of floats.
struct FloatRows {
  float* data;
  int stride;
  float* row(int i) const { return data + static_cast<int64_t>(i) * stride; }
};

// scores[r][t] = q[r] . k[t] for Rows rows and the Tokens rows at k.
template <int Rows, int Tokens, typename T>
PAGEDATTN_ALWAYS_INLINE void dot_block(FloatRows q, const T* const* k, int head_dim,
                                       FloatRows scores) {
  static_assert(Rows * Tokens % 4 == 0);
  Vec sums[Rows * Tokens];
#pragma GCC unroll 16
  for (int i = 0; i < Rows * Tokens; ++i) sums[i] = Vec(0.0f);
  const auto step = [&](int d, const auto& load_key) __attribute__((always_inline)) {
    Vec key[Tokens];
#pragma GCC unroll 8
    for (int t = 0; t < Tokens; ++t) key[t] = load_key(k[t] + d);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Vec query = load(q.row(r) + d);
#pragma GCC unroll 8
      for (int t = 0; t < Tokens; ++t) {
        sums[r * Tokens + t] = at::vec::fmadd(query, key[t], sums[r * Tokens + t]);
      }
    }
  };
  int d = 0;
  for (; d + kWidth <= head_dim; d += kWidth) step(d, [](const T* p) { return load(p); });
  if (d < head_dim) step(d, [&](const T* p) { return load_tail(p, head_dim - d); });
#pragma GCC unroll 4
  for (int i = 0; i < Rows * Tokens; i += 4) {
    float* out[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) out[j] = scores.row((i + j) / Tokens) + (i + j) % Tokens;
    sum4(sums + i, out);
  }
}

// scores[r][t] for t < num_tokens; columns up to the next multiple of kTokenPad are overwritten.
// Meanwhile `ahead` asks for as many rows as are used here.
template <int Rows, typename T, typename Ahead>
inline void query_key_product(FloatRows q, const T* const* k, int num_tokens, int head_dim,
                              FloatRows scores, RowPrefetcher<Ahead>& ahead) {
  constexpr int kTokens = Rows == 1 ? 8 : Rows == 4 ? (kWidth > 8 ? 4 : 2) : 4;
  static_assert(kTokenPad % kTokens == 0);
  RowPrefetcher<T> again = repeat_ahead(k, num_tokens, head_dim, ahead);
  for (int t = 0; t < num_tokens; t += kTokens) {
    dot_block<Rows, kTokens>(q, k + t, head_dim, {scores.data + t, scores.stride});
    ahead.advance_rows(kTokens);
    again.advance_rows(kTokens);
  }
}

// out[r][d ...] += sum over t of p[r][t] * v[t][d ...] for Vectors vectors from d on.
template <int Rows, int Vectors, typename T, typename Load>
PAGEDATTN_ALWAYS_INLINE void accumulate_block(FloatRows p, const T* const* v, int num_tokens, int d,
                                              FloatRows out, const Load& load_value) {
  Vec sums[Rows][Vectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < Vectors; ++i) sums[r][i] = load(out.row(r) + d + i * kWidth);
  }
  for (int t = 0; t < num_tokens; ++t) {
    Vec value[Vectors];
#pragma GCC unroll 8
    for (int i = 0; i < Vectors; ++i) value[i] = load_value(v[t] + d + i * kWidth);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Vec weight(p.row(r)[t]);
#pragma GCC unroll 8
      for (int i = 0; i < Vectors; ++i) sums[r][i] = at::vec::fmadd(weight, value[i], sums[r][i]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < Vectors; ++i) store(out.row(r) + d + i * kWidth, sums[r][i]);
  }
}

// out[r] += sum over t of p[r][t] * v[t]. Meanwhile `ahead` asks for as many rows as are used here.
template <int Rows, typename T, typename Ahead>
inline void weight_value_product(FloatRows p, const T* const* v, int num_tokens, int head_dim,
                                 FloatRows out, RowPrefetcher<Ahead>& ahead) {
  constexpr int kTokens = 16;  // at a time, so that their rows stay in the L1 cache
  constexpr int kVectors = Rows == 1 ? 8 : Rows == 2 || kWidth > 8 ? 4 : 2;
  constexpr int kStep = kVectors * kWidth;
  const auto whole = [](const T* row) { return load(row); };
  const auto tail = [&](const T* row) { return load_tail(row, head_dim % kWidth); };
  const int rows_per_step = (kTokens * kStep + head_dim - 1) / head_dim;
  RowPrefetcher<T> again = repeat_ahead(v, num_tokens, head_dim, ahead);
  for (int t = 0; t < num_tokens; t += kTokens) {
    const int count = num_tokens - t < kTokens ? num_tokens - t : kTokens;
    const FloatRows weights{p.data + t, p.stride};
    int d = 0;
    for (; d + kStep <= head_dim; d += kStep) {
      accumulate_block<Rows, kVectors>(weights, v + t, count, d, out, whole);
      ahead.advance_rows(rows_per_step);
      again.advance_rows(rows_per_step);
    }
    for (; d + kWidth <= head_dim; d += kWidth) {
      accumulate_block<Rows, 1>(weights, v + t, count, d, out, whole);
    }
    if (d < head_dim) accumulate_block<Rows, 1>(weights, v + t, count, d, out, tail);
  }
}

}  // namespace pagedattn::PAGEDATTN_ISA
