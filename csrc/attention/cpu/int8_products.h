// q.k and p.v for int8 caches by vpdpbusd, on codes as they are: queries and weights become integers
// of a few signed bytes, digits to base 256, with a scale per row (of a tile, for weights). Sums of
// integers are exact, so the error is that of an element's last bit: relative to the row's largest
// one 2^-15 with two digits, which bf16 queries take, 2^-23 with three.
//
// vpdpbusd multiplies unsigned bytes by signed ones. Codes are the unsigned ones, as code + 128,
// and 128 times the sum of the others is taken off at the end. Of two digits 256 products,
// kMaxHeadDim, just fit into 32 bits; the third one has a sum of its own.
#pragma once

#if defined(__AVX512BF16__)

#include <limits>

#include "interleaved.h"
#include "prefetch.h"
#include "register_blocks.h"
#include "softmax.h"

namespace pagedattn::PAGEDATTN_ISA {

PAGEDATTN_ALWAYS_INLINE __m512i plus_128(__m512i codes) {
  return _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
}

// Of integers of kDigits signed digits: those of two digits at most that they fall into, the
// leading digits in `upper`, a third one in `last`.
template <typename T>
struct Parts {
  T upper;
  T last;
};

// 64 floats times a factor as integers: digit 0 of each in digits[0], and so on.
template <int kDigits>
struct SplitIntegers {
  __m512i digits[kDigits];

  PAGEDATTN_ALWAYS_INLINE SplitIntegers(const Vec* floats, float factor) {
    // With 128 of each digit but the first added, bytes are digits but for their signs.
    constexpr int kShift = kDigits == 3 ? 0x8080 : 0x80;
    __m512i shifted[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i integers = _mm512_cvtps_epi32(floats[i] * Vec(factor));
      shifted[i] = _mm512_add_epi32(integers, _mm512_set1_epi32(kShift));
    }
    alignas(64) static constexpr uint8_t kDwords[64] = {  // of two vectors: their bytes 0
        0,  4,  8,  12, 16, 20, 24, 28, 32, 36,  40,  44,  48,  52,  56,  60,
        64, 68, 72, 76, 80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124};
#pragma GCC unroll 3
    for (int digit = 0; digit < kDigits; ++digit) {
      const int byte = kDigits - 1 - digit;
      const __m512i bytes =
          _mm512_add_epi8(_mm512_load_si512(kDwords), _mm512_set1_epi8(static_cast<char>(byte)));
      const __m512i first = _mm512_permutex2var_epi8(shifted[0], bytes, shifted[1]);
      const __m512i last = _mm512_permutex2var_epi8(shifted[2], bytes, shifted[3]);
      digits[digit] = _mm512_inserti64x4(first, _mm512_castsi512_si256(last), 1);
      if (digit > 0) digits[digit] = plus_128(digits[digit]);
    }
  }

  // 128 times the sums of fours.
  PAGEDATTN_ALWAYS_INLINE Parts<Ints> excess() const {
    const auto sums = [&](int digit) __attribute__((always_inline)) {
      return add_dots(Ints{}, _mm512_set1_epi8(-128), digits[digit]);
    };
    return {sums(0) * 256 + sums(1), kDigits == 3 ? sums(kDigits - 1) : Ints{}};
  }
};

// What turns the floats of a row into integers of kDigits digits, and back. Powers of two, so that
// elements of bf16 down to 2^-7 of the row's largest one become exact integers of two digits. NaN
// if there is an infinity or NaN.
template <int kDigits>
struct SplitScale {
  float factor;
  float inverse;

  PAGEDATTN_ALWAYS_INLINE SplitScale(const Vec* floats, int num_vectors) {
    constexpr uint32_t kLargest = kDigits == 3 ? 0x7f7f7f : 0x7f7f;  // an integer's
    constexpr uint32_t kBits = 8 * kDigits - 2;                      // below its first
    // Floats without a sign are in the order of their bits. Those that with this exponent would be
    // kLargest or more are carried to the next one.
    constexpr uint32_t kCarry = (uint32_t{1} << 24) - (kLargest << (23 - kBits));
    __m512i largest = _mm512_setzero_si512();
    for (int i = 0; i < num_vectors; ++i) {
      largest = _mm512_max_epu32(largest, _mm512_castps_si512(floats[i].abs()));
    }
    const uint32_t exponent = (_mm512_reduce_max_epu32(largest) + kCarry) >> 23;
    constexpr uint32_t kInfinite = 255;
    if (exponent >= kInfinite) {
      factor = inverse = std::numeric_limits<float>::quiet_NaN();
      return;
    }
    const uint32_t normal = exponent > kBits ? exponent : kBits + 1;  // factor and inverse stay so
    factor = bits_to_float((254 + kBits - normal) << 23);
    inverse = bits_to_float((normal - kBits) << 23);
  }
};

inline int32_t sum_lanes(Ints x) {
  return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(x));
}

PAGEDATTN_ALWAYS_INLINE Vec to_float(Ints x) {
  return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(x));
}

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
      for (int digit = 0; digit < kDigits; ++digit) {
        _mm512_storeu_si512(query_ + (kDigits * i + digit) * kMaxHeadDim + d, split.digits[digit]);
      }
      excess.upper += split.excess().upper;
      excess.last += split.excess().last;
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
    for (int digit = 0; digit < kDigits; ++digit) {
      _mm512_storeu_si512(split_weights_ + (kDigits * i + digit) * kTile, split.digits[digit]);
    }
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
        for (int i = first; i < first + count; ++i) add(group, column + t, i, d);
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
      for_each_dword(i == first ? keys : keys.without_prefetch(), head_dim_,
                     [&](int64_t j, __m512i codes) __attribute__((always_inline)) {
                       const __m512i key = plus_128(codes);
#pragma GCC unroll 12
                       for (int r = 0; r < kDigits * kRows; ++r) {
                         sums[r] =
                             add_dots(sums[r], key, broadcast_dword(query + r * kMaxHeadDim + 4 * j));
                       }
                     });
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Ints* const sum = sums + kDigits * r;
        const Parts<int32_t>& excess = query_excess_[i + r];
        const Vec score = join({sum[0] * 256 + sum[1] - excess.upper, sum[kDigits - 1] - excess.last});
        store(weights_.row(i + r) + column, score * Vec(query_scale_[i + r]));
      }
    });
  }

  static PAGEDATTN_ALWAYS_INLINE Vec join(const Parts<Ints>& sums) {
    const Vec upper = to_float(sums.upper);
    return kDigits == 2 ? upper : at::vec::fmadd(upper, Vec(256.0f), to_float(sums.last));
  }

  // The elements [d, d + kGroup) of a chunk's tokens, a vector having an element of each of four.
  PAGEDATTN_ALWAYS_INLINE void interleave(const StreamedRows<int8_t>& values, int d,
                                          Ints (&group)[kSteps][kVectors]) {
    const int rest = head_dim_ - d;
    const __mmask64 there = rest >= kGroup ? ~uint64_t{0} : (uint64_t{1} << rest) - 1;
#pragma GCC unroll 4
    for (int step = 0; step < kSteps; ++step) {
      __m512i codes[4];
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) {
        codes[t] = plus_128(_mm512_maskz_loadu_epi8(there, values.row(4 * step + t) + d));
        values.reading(4 * step + t, d, kGroup);
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
    const auto of_chunk = [&](const int32_t* fours) __attribute__((always_inline)) {
      const int32_t* const four = fours + column / 4;
      return four[0] + four[1] + four[2] + four[3];
    };
    Ints upper[kVectors] = {};
    add_digit(0, upper);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) upper[v] *= 256;
    add_digit(1, upper);
    const int32_t upper_excess = of_chunk(weight_excess_[i].upper);
    Ints last[kVectors] = {};
    int32_t last_excess = 0;
    if constexpr (kDigits == 3) {
      add_digit(2, last);
      last_excess = of_chunk(weight_excess_[i].last);
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
