// q.k and p.v for int8 caches by vpdpbusd, on codes as they are: queries and weights become
// integers of a few digits (digits.h), with a scale per row (of a tile, for weights). Sums of
// integers are exact, so the error is that of an element's last bit: relative to the row's largest
// one 2^-15 with two digits, which bf16 queries take, 2^-23 with three.
//
// vpdpbusd multiplies unsigned bytes by signed ones. Codes are the unsigned ones, as code + 128,
// and 128 times the sum of the others is taken off at the end. Of two digits 256 products,
// kMaxHeadDim, just fit into 32 bits; the third one has a sum of its own.
#pragma once

#if defined(__AVX512BF16__)

#include "digits.h"
#include "interleaved.h"
#include "prefetch.h"
#include "register_blocks.h"
#include "softmax.h"

namespace pagedattn::PAGEDATTN_ISA {

// What decode_unit.h takes for its arithmetic.
template <int kDigits>
class Int8Products {
  static_assert(kDigits == 2 || kDigits == 3);

 public:
  static constexpr int kExpDegree = kDigits == 2 ? 4 : 6;
  static int row_stride(int head_dim) { return round_up(head_dim, kGroup); }

  Int8Products(int head_dim, int, ScoreRows weights, FloatRows out)
      : head_dim_(head_dim), stride_(row_stride(head_dim)), weights_(weights), out_(out) {}

  void set_query(int i, const float* row) {
    Vec floats[kMaxHeadDim / kWidth];
    for (int d = 0; d < stride_; d += kWidth) floats[d / kWidth] = load(row + d);
    const SplitScale<kDigits> scale(floats, stride_ / kWidth);
    Parts<Ints> excess{};
    for (int d = 0; d < stride_; d += kGroup) {
      const SplitIntegers<kDigits> split(floats + d / kWidth, scale.factor);
      split.store(query_ + kDigits * i * kMaxHeadDim + d, kMaxHeadDim);
      const Parts<Ints> of_group = split.excess();
      excess.upper += of_group.upper;
      excess.last += of_group.last;
    }
    query_scale_[i] = scale.inverse;
    query_excess_[i] = {sum_lanes(excess.upper), sum_lanes(excess.last)};
  }

  void score(const StreamedRows<int8_t>& keys, int tokens, int column, int first, int count) {
    for (int t = 0; t < tokens; t += kWidth) score(keys.from(t), column + t, first, count);
  }

  void take_weights(int i, const TileRow& row) {
    const SplitScale<kDigits> scale(row.v, TileRow::kVectors);
    const SplitIntegers<kDigits> split(row.v, scale.factor);
    split.store(split_weights_ + kDigits * i * kTile, kTile);
    const Parts<Ints> excess = split.excess();
    std::memcpy(weight_excess_[i].upper, &excess.upper, sizeof(excess.upper));
    if (kDigits == 3) std::memcpy(weight_excess_[i].last, &excess.last, sizeof(excess.last));
    weight_scale_[i] = scale.inverse;
  }

  void add_values(const StreamedRows<int8_t>& values, int tokens, int column, int first,
                  int count) {
    for (int t = 0; t < tokens; t += kWidth) {
      const StreamedRows<int8_t> rows = values.from(t);
      for (int d = 0; d < stride_; d += kGroup) {
        Ints group[kSteps][kVectors];
        interleave(rows, d, group);
        // Requests leave a few at a time.
        int asked = 0;
        for (int i = 0; i < count; ++i) {
          for (const int end = (i + 1) * kWidth / count; asked < end; ++asked) {
            rows.reading(asked, d, kGroup);
          }
          add(group, column + t, first + i, d);
        }
      }
    }
  }

  void finish(int i) { to_element_order<kVectors>(out_.row(i), stride_); }

 private:
  static constexpr int kGroup = 64;
  static constexpr int kVectors = kGroup / kWidth;
  static constexpr int kSteps = kWidth / 4;  // a dword has an element of four tokens

  // Of kWidth tokens, as add_values takes them too.
  void score(const StreamedRows<int8_t>& keys, int column, int first, int count) {
    for_row_blocks(first, count, [&](auto num_rows, int i) __attribute__((always_inline)) {
      constexpr int kRows = num_rows();
      Ints sums[kDigits * kRows];
#pragma GCC unroll 12
      for (int r = 0; r < kDigits * kRows; ++r) sums[r] = Ints{};
      const int8_t* const query = query_ + kDigits * i * kMaxHeadDim;
      for_each_dword(keys.for_block(i - first, count), head_dim_,
                     [&](int64_t j, __m512i codes) __attribute__((always_inline)) {
                       const __m512i key = plus_128(codes);
#pragma GCC unroll 12
                       for (int r = 0; r < kDigits * kRows; ++r) {
                         sums[r] = add_dots(sums[r], key,
                                            broadcast_dword(query + r * kMaxHeadDim + 4 * j));
                       }
                     });
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Ints* const sum = sums + kDigits * r;
        const Parts<int32_t>& excess = query_excess_[i + r];
        const Vec score =
            join({sum[0] * 256 + sum[1] - excess.upper, sum[kDigits - 1] - excess.last});
        store(weights_.row(i + r) + column, score * Vec(query_scale_[i + r]));
      }
    });
  }

  static PAGEDATTN_ALWAYS_INLINE Vec join(const Parts<Ints>& sums) {
    const Vec upper = to_float(sums.upper);
    return kDigits == 2 ? upper : at::vec::fmadd(upper, Vec(256.0f), to_float(sums.last));
  }

  // The elements [d, d + kGroup) of kWidth tokens, a vector having an element of each of four.
  PAGEDATTN_ALWAYS_INLINE void interleave(const StreamedRows<int8_t>& values, int d,
                                          Ints (&group)[kSteps][kVectors]) {
    const __mmask64 there = first_of_64(head_dim_ - d);
#pragma GCC unroll 4
    for (int step = 0; step < kSteps; ++step) {
      __m512i codes[4];
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) {
        codes[t] = plus_128(_mm512_maskz_loadu_epi8(there, values.row(4 * step + t) + d));
      }
      const __m512i low[2] = {_mm512_unpacklo_epi8(codes[0], codes[1]),
                              _mm512_unpacklo_epi8(codes[2], codes[3])};
      const __m512i high[2] = {_mm512_unpackhi_epi8(codes[0], codes[1]),
                               _mm512_unpackhi_epi8(codes[2], codes[3])};
      group[step][0] = reinterpret_cast<Ints>(_mm512_unpacklo_epi16(low[0], low[1]));
      group[step][1] = reinterpret_cast<Ints>(_mm512_unpackhi_epi16(low[0], low[1]));
      group[step][2] = reinterpret_cast<Ints>(_mm512_unpacklo_epi16(high[0], high[1]));
      group[step][3] = reinterpret_cast<Ints>(_mm512_unpackhi_epi16(high[0], high[1]));
    }
  }

  // To row i: its weights, digit by digit, times the group.
  PAGEDATTN_ALWAYS_INLINE void add(const Ints (&group)[kSteps][kVectors], int column, int i,
                                   int d) {
    const auto add_digit = [&](int digit, Ints* sums) __attribute__((always_inline)) {
      const int8_t* const weights = split_weights_ + (kDigits * i + digit) * kTile + column;
#pragma GCC unroll 4
      for (int step = 0; step < kSteps; ++step) {
        const __m512i weight = broadcast_dword(weights + 4 * step);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sums[v] = add_dots(sums[v], reinterpret_cast<__m512i>(group[step][v]), weight);
        }
      }
    };
    const auto of_tokens = [&](const int32_t* fours) __attribute__((always_inline)) {
      const int32_t* const four = fours + column / 4;
      return four[0] + four[1] + four[2] + four[3];
    };
    Ints upper[kVectors] = {};
    add_digit(0, upper);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) upper[v] *= 256;
    add_digit(1, upper);
    const int32_t upper_excess = of_tokens(weight_excess_[i].upper);
    Ints last[kVectors] = {};
    int32_t last_excess = 0;
    if constexpr (kDigits == 3) {
      add_digit(2, last);
      last_excess = of_tokens(weight_excess_[i].last);
    }
    const Vec scale(weight_scale_[i]);
    float* const out = out_.row(i) + d;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Vec sum = join({upper[v] - upper_excess, last[v] - last_excess});
      store(out + v * kWidth, at::vec::fmadd(sum, scale, load(out + v * kWidth)));
    }
  }

  const int head_dim_;
  const int stride_;
  const ScoreRows weights_;
  const FloatRows out_;
  alignas(64) int8_t query_[kDigits * kMaxRows * kMaxHeadDim];  // of each row, digit by digit
  float query_scale_[kMaxRows];
  Parts<int32_t> query_excess_[kMaxRows];  // 128 times the sum of a row
  alignas(64) int8_t split_weights_[kDigits * kMaxRows * kTile];
  float weight_scale_[kMaxRows];
  Parts<int32_t[kTile / 4]> weight_excess_[kMaxRows];  // 128 times the sum of each four
};

}  // namespace pagedattn::PAGEDATTN_ISA

#endif
