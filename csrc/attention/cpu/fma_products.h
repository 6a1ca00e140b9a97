// q.k and p.v by FMA in fp32, which every instruction set has, for every storage type: rows of the
// cache are widened on the way. Rows of float are in the pair order of T (simd.h).
#pragma once

#include <type_traits>

#include "narrow.h"
#include "prefetch.h"
#include "register_blocks.h"
#include "softmax.h"

namespace pagedattn::PAGEDATTN_ISA {

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

// scores[r][t] = q[r] . k[t] for a block of scores. Keys and Values are StreamedRows or
// ConvertedRows (prefetch.h); their elements are of type T.
template <int Rows, typename T, typename Keys>
PAGEDATTN_ALWAYS_INLINE void dot_block(FloatRows q, const Keys& keys, int head_dim,
                                       ScoreRows scores) {
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
  scatter_scores<Rows>(sum_each(sums), scores);
}

// scores[r][t] for t < kWidth.
template <int Rows, typename T, typename Keys>
inline void query_key_product(FloatRows q, const Keys& keys, int head_dim, ScoreRows scores) {
  constexpr int kTokens = kTokensPerBlock<Rows>;
  for (int t = 0; t < kWidth; t += kTokens) {
    dot_block<Rows, T>(q, keys.from(t), head_dim, scores.at(0, t));
  }
}

// out[r][d ...] += sum over t of p[r][t] * v[t][d ...] for Pairs pairs of vectors from d on.
template <int Rows, int Pairs, typename Values, typename Load>
PAGEDATTN_ALWAYS_INLINE void accumulate_block(ScoreRows p, const Values& values, int num_tokens,
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
inline void weight_value_product(ScoreRows p, const Values& values, int num_tokens, int head_dim,
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

// What decode_unit.h takes for its arithmetic.
template <typename T>
class FmaProducts {
 public:
  static constexpr int kExpDegree = 6;
  static int row_stride(int head_dim) { return round_up(head_dim, kPair); }

  FmaProducts(int head_dim, int rows_per_kv_head, ScoreRows weights, FloatRows out)
      : head_dim_(head_dim),
        stride_(row_stride(head_dim)),
        widens_(!std::is_same_v<T, float> && rows_per_kv_head >= kRowsWorthWidening),
        weights_(weights),
        out_(out),
        query_{query_data_, stride_} {}

  void set_query(int i, const float* row) {
    std::memcpy(query_.row(i), row, stride_ * sizeof(float));
    to_pair_order<Element>(query_.row(i), stride_);
  }

  void score(const StreamedRows<T>& keys, int tokens, int column, int first, int count) {
    read_rows(keys, tokens, [&](const auto& rows_read, auto element, int size) {
      for (int t = 0; t < tokens; t += kWidth) {
        const auto group = rows_read.from(t);
        for_row_blocks(first, count, [&](auto rows, int i) __attribute__((always_inline)) {
          query_key_product<rows(), decltype(element)>({query_.row(i), stride_},
                                                       group.for_block(i - first, count), size,
                                                       weights_.at(i, column + t));
        });
      }
    });
  }

  void take_weights(int i, const TileRow& row) {
    for (int v = 0; v < TileRow::kVectors; ++v) store(weights_.row(i) + v * kWidth, row.v[v]);
  }

  void add_values(const StreamedRows<T>& values, int tokens, int column, int first, int count) {
    read_rows(values, tokens, [&](const auto& rows_read, auto element, int size) {
      for_row_blocks(first, count, [&](auto rows, int i) __attribute__((always_inline)) {
        weight_value_product<rows(), decltype(element)>(weights_.at(i, column),
                                                        rows_read.for_block(i - first, count),
                                                        tokens, size, {out_.row(i), stride_});
      });
    });
  }

  void finish(int i) { to_natural_order<Element>(out_.row(i), stride_); }

 private:
  // 8-bit rows are narrowed to bf16 on the way.
  using Element = std::conditional_t<sizeof(T) == 1, BFloat16, T>;
  // From this many query rows on, rows are widened to float once for all of them.
  static constexpr int kRowsWorthWidening = 4 * kRowBlock;

  // f(rows, an element, elements of a row) for rows of the cache as the products read them.
  template <typename F>
  void read_rows(const StreamedRows<T>& rows, int count, const F& f) {
    const auto read = [&](const auto& elements, int size) {
      if (!widens_) return f(elements, Element(), size);
      widen(elements, count, size);
      f(ConvertedRows<T, float>{wide_data_, stride_, rows}, float(), stride_);
    };
    if constexpr (sizeof(T) == 1) {
      narrow_rows(rows, round_up(count, kTokenPad), head_dim_, narrow_data_, stride_);
      read(ConvertedRows<T, BFloat16>{narrow_data_, stride_, rows}, stride_);
    } else {
      read(rows, head_dim_);
    }
  }

  template <typename Source>
  void widen(const Source& rows, int count, int size) {
    for (int t = 0; t < round_up(count, kTokenPad); ++t) {
      float* const out = wide_data_ + t * stride_;
      for_each_pair<Element>(size, [&](int d, const auto& load_row) __attribute__((always_inline)) {
        Vec pair[2];
        load_row(rows.row(t), pair);
        store(out + d, pair[0]);
        store(out + d + kWidth, pair[1]);
      });
    }
  }

  const int head_dim_;
  const int stride_;
  const bool widens_;
  const ScoreRows weights_;
  const FloatRows out_;
  const FloatRows query_;
  alignas(64) float query_data_[kMaxRows * kMaxHeadDim];
  alignas(64) float wide_data_[kChunk * kMaxHeadDim];
  alignas(64) BFloat16 narrow_data_[sizeof(T) == 1 ? kChunk * kMaxHeadDim : 1];
};

}  // namespace pagedattn::PAGEDATTN_ISA
