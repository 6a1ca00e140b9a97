// q.k and p.v of queries in bf16 by vdpbf16ps, for caches in bf16 or fp8: exact products of
// pairs, added up in fp32, with nothing to widen. Weights are rounded to bf16.
#pragma once

#if defined(__AVX512BF16__)

#include "../../common/cpu/rows.h"
#include "interleaved.h"
#include "narrow.h"
#include "prefetch.h"
#include "register_blocks.h"
#include "softmax.h"

namespace pagedattn::PAGEDATTN_ISA {

template <int Rows, typename Keys>
PAGEDATTN_ALWAYS_INLINE void dot_block_bf16(RowArray<const BFloat16> q, const Keys& keys,
                                            int head_dim, ScoreRows scores) {
  constexpr int kTokens = kTokensPerBlock<Rows>;
  Vec sums[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) sums[i] = Vec(0.0f);
  const auto add_pairs = [&](int d, const auto& load_key) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      const __m512i key = load_key(keys.row(t) + d);
      keys.reading(t, d, kPair);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        Vec& sum = sums[r * kTokens + t];
        sum = add_dots(sum, key, _mm512_loadu_si512(q.row(r) + d));
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
  scatter_scores<Rows>(sum_each(sums), scores);
}

// scores[r][t] for t < kWidth.
template <int Rows, typename Keys>
inline void query_key_product_bf16(RowArray<const BFloat16> q, const Keys& keys, int head_dim,
                                   ScoreRows scores) {
  constexpr int kTokens = kTokensPerBlock<Rows>;
  for (int t = 0; t < kWidth; t += kTokens) {
    dot_block_bf16<Rows>(q, keys.from(t), head_dim, scores.at(0, t));
  }
}

// What decode_unit.h takes for its arithmetic.
template <typename T>
class Bf16Products {
 public:
  static constexpr int kExpDegree = 4;  // beside weights in bf16
  static int row_stride(int head_dim) { return round_up(head_dim, kGroup); }

  Bf16Products(int head_dim, int, ScoreRows weights, FloatRows out)
      : head_dim_(head_dim), stride_(row_stride(head_dim)), weights_(weights), out_(out) {}

  void set_query(int i, const float* row) { write_row(row, 1.0f, stride_, query_ + i * stride_); }

  void score(const StreamedRows<T>& keys, int tokens, int column, int first, int count) {
    const auto score_rows = [&](const auto& bf16_keys, int size) {
      for (int t = 0; t < tokens; t += kWidth) {
        const auto group = bf16_keys.from(t);
        for_row_blocks(first, count, [&](auto rows, int i) __attribute__((always_inline)) {
          query_key_product_bf16<rows()>({query_ + i * stride_, stride_},
                                         group.for_block(i - first, count), size,
                                         weights_.at(i, column + t));
        });
      }
    };
    if constexpr (sizeof(T) == 1) {
      narrow_rows(keys, round_up(tokens, kTokenPad), head_dim_, keys_, stride_);
      score_rows(ConvertedRows<T, BFloat16>{keys_, stride_, keys}, round_up(head_dim_, kPair));
    } else {
      score_rows(keys, head_dim_);
    }
  }

  void take_weights(int i, const TileRow& row) {
    for (int v = 0; v < TileRow::kVectors; ++v) {
      store(bf16_weights_ + i * kTile + v * kWidth, row.v[v]);
    }
  }

  void add_values(const StreamedRows<T>& values, int tokens, int column, int first, int count) {
    for_row_blocks(first, count, [&](auto rows, int i) __attribute__((always_inline)) {
      const auto block = values.for_block(i - first, count);
      int d = 0;
      for (; d + 4 * kWidth <= stride_; d += 4 * kWidth) {
        add<rows(), 4>(block, tokens, column, i, d);
      }
      if constexpr (kVectors == 2) {
        if (d < stride_) add<rows(), 2>(block, tokens, column, i, d);
      }
    });
  }

  void finish(int i) { to_element_order<kVectors>(out_.row(i), stride_); }

 private:
  static constexpr int kGroup = 64 / sizeof(T);  // elements of a row that are interleaved at a time
  static constexpr int kVectors = kGroup / kWidth;

  // Values interleaved by pairs of tokens, and zeros in the place of a last one's partner, as 0 *
  // NaN must not reach the sum.
  template <int Rows, int Vectors>
  PAGEDATTN_ALWAYS_INLINE void add(const StreamedRows<T>& values, int tokens, int column, int i,
                                   int d) {
    __m512 sums[Rows][Vectors];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sums[r][v] = load(out_.row(i + r) + d + v * kWidth);
    }
    const Reader read;
    const auto add_pair = [&](auto whole, int t) __attribute__((always_inline)) {
      __m512i value[Vectors];
#pragma GCC unroll 2
      for (int group = 0; group < Vectors / kVectors; ++group) {
        const int begin = d + group * kGroup;
        const int rest = whole() ? kGroup : head_dim_ - begin;
        __m512i first[kVectors / 2];
        __m512i second[kVectors / 2];
        read(values.row(t) + begin, rest, first);
        read(values.row(t + 1) + begin, whole() || t + 1 < tokens ? rest : 0, second);
        values.reading(t, begin, kGroup);
        values.reading(t + 1, begin, kGroup);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors / 2; ++v) {
          value[group * kVectors + 2 * v] = _mm512_unpacklo_epi16(first[v], second[v]);
          value[group * kVectors + 2 * v + 1] = _mm512_unpackhi_epi16(first[v], second[v]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const __m512i weights = broadcast_dword(bf16_weights_ + (i + r) * kTile + column + t);
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) sums[r][v] = add_dots(sums[r][v], value[v], weights);
      }
    };
    int t = 0;
    if (d + Vectors * kWidth <= head_dim_) {
      for (; t + 2 <= tokens; t += 2) add_pair(std::true_type(), t);
    }
    for (; t < tokens; t += 2) add_pair(std::false_type(), t);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) store(out_.row(i + r) + d + v * kWidth, sums[r][v]);
    }
  }

  // Up to kGroup elements as bf16, zeros from `count` on.
  struct Reader {
    PAGEDATTN_ALWAYS_INLINE void operator()(const T* p, int count, __m512i* bf16) const {
      if constexpr (sizeof(T) == 1) {
        narrower.narrow(_mm512_maskz_loadu_epi8(first_of_64(count), p), bf16);
      } else {
        bf16[0] = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(first_of_64(count)), p);
      }
    }
    std::conditional_t<sizeof(T) == 1, Narrower<T>, char> narrower{};
  };

  const int head_dim_;
  const int stride_;
  const ScoreRows weights_;
  const FloatRows out_;
  alignas(64) BFloat16 query_[kMaxRows * kMaxHeadDim];
  alignas(64) BFloat16 bf16_weights_[kMaxRows * kTile];
  alignas(64) BFloat16 keys_[sizeof(T) == 1 ? kChunk * kMaxHeadDim : 1];
};

}  // namespace pagedattn::PAGEDATTN_ISA

#endif
