// q.k and p.v of queries in bf16 for int8 caches by vpdpbusd, on codes as they are: queries and
// weights become 16-bit integers, in two signed bytes each, with a scale per row (of a tile, for
// weights). Integer sums are exact, so the error is that of an element's last bit, 2^-15 of the
// row's largest one.
//
// vpdpbusd multiplies unsigned bytes by signed ones. Codes are the unsigned ones, as code + 128,
// and 128 times the sum of the others is taken off at the end. 256 products, kMaxHeadDim, of a code
// and 16 bits just fit into 32.
#pragma once

#if defined(__AVX512BF16__)

#include <limits>

#include "interleaved.h"
#include "prefetch.h"
#include "register_blocks.h"

namespace pagedattn::PAGEDATTN_ISA {

PAGEDATTN_ALWAYS_INLINE __m512i plus_128(__m512i codes) {
  return _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
}

// 64 integers, each as 256 * high + low.
struct SplitIntegers {
  __m512i high;
  __m512i low;

  // Of integers in order, 16 to a vector.
  PAGEDATTN_ALWAYS_INLINE explicit SplitIntegers(const __m512i* integers) {
    // Bytes 0 and 1 of the dwords of two vectors.
    alignas(64) static constexpr uint8_t kBytes[64] = {
        0,  4,  8,  12, 16, 20, 24, 28, 32, 36,  40,  44,  48,  52,  56,  60,
        64, 68, 72, 76, 80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124,
        1,  5,  9,  13, 17, 21, 25, 29, 33, 37,  41,  45,  49,  53,  57,  61,
        65, 69, 73, 77, 81, 85, 89, 93, 97, 101, 105, 109, 113, 117, 121, 125};
    const __m512i bytes = _mm512_load_si512(kBytes);
    // With 128 added, byte 1 is the high one, and byte 0 differs from the low one in its sign.
    const auto shifted = [&](int i) __attribute__((always_inline)) {
      return _mm512_add_epi32(integers[i], _mm512_set1_epi32(128));
    };
    const __m512i first = _mm512_permutex2var_epi8(shifted(0), bytes, shifted(1));
    const __m512i last = _mm512_permutex2var_epi8(shifted(2), bytes, shifted(3));
    high = _mm512_shuffle_i64x2(first, last, 0xee);
    low = plus_128(_mm512_shuffle_i64x2(first, last, 0x44));
  }

  // 128 times the sums of fours.
  PAGEDATTN_ALWAYS_INLINE Ints excess() const {
    const __m512i by_128 = _mm512_set1_epi8(-128);
    return add_dots(Ints{}, by_128, high) * 256 + add_dots(Ints{}, by_128, low);
  }

  PAGEDATTN_ALWAYS_INLINE void store(int8_t* high_bytes, int8_t* low_bytes) const {
    _mm512_storeu_si512(high_bytes, high);
    _mm512_storeu_si512(low_bytes, low);
  }
};

// A power of two, so that elements of bf16 down to 2^-7 of the largest one become exact integers.
// NaN where `max` is not finite.
inline float factor_to_split(float max) {
  constexpr float kLargest = 127 * 256 + 127;
  constexpr int kBias = 127;
  int exponent = static_cast<int>(float_to_bits(max) >> 23) - kBias;
  if (exponent > kBias) return std::numeric_limits<float>::quiet_NaN();
  if (exponent < 15 - kBias) exponent = 15 - kBias;  // the factor and its inverse stay normal
  const float factor = bits_to_float(static_cast<uint32_t>(14 - exponent + kBias) << 23);
  return max * factor > kLargest ? factor / 2 : factor;
}

inline float largest_magnitude(const float* row, int size) {
  Vec max(0.0f);
  for (int i = 0; i < size; i += kWidth) max = at::vec::maximum(max, load(row + i).abs());
  return max_lanes(max);
}

PAGEDATTN_ALWAYS_INLINE Vec to_float(Ints x) {
  return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(x));
}

// What decode_unit.h takes for its arithmetic.
class Int8Products {
 public:
  static int row_stride(int head_dim) { return round_up(head_dim, kGroup); }

  Int8Products(int head_dim, int, FloatRows weights, FloatRows out)
      : head_dim_(head_dim), stride_(row_stride(head_dim)), weights_(weights), out_(out) {}

  void set_query(int i, const float* row) {
    const float factor = factor_to_split(largest_magnitude(row, stride_));
    Ints excess{};
    for (int d = 0; d < stride_; d += kGroup) {
      const SplitIntegers split = split_row(row + d, kGroup, factor);
      split.store(query_ + 2 * i * stride_ + d, query_ + (2 * i + 1) * stride_ + d);
      excess += split.excess();
    }
    query_scale_[i] = 1.0f / factor;
    query_excess_[i] = _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(excess));
  }

  void score(const StreamedRows<int8_t>& keys, int, int column, int first, int count) {
    for_row_blocks(first, count, [&](auto num_rows, int i) __attribute__((always_inline)) {
      constexpr int kRows = num_rows();
      Ints sums[2 * kRows];
#pragma GCC unroll 8
      for (int r = 0; r < 2 * kRows; ++r) sums[r] = Ints{};
      const int8_t* const query = query_ + 2 * i * stride_;
      const int64_t stride = stride_;
      for_each_dword(i == first ? keys : keys.without_prefetch(), head_dim_,
                     [&](int64_t j, __m512i codes) __attribute__((always_inline)) {
                       const __m512i key = plus_128(codes);
#pragma GCC unroll 8
                       for (int r = 0; r < 2 * kRows; ++r) {
                         sums[r] =
                             add_dots(sums[r], key, broadcast_dword(query + r * stride + 4 * j));
                       }
                     });
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Ints sum = sums[2 * r] * 256 + sums[2 * r + 1] - query_excess_[i + r];
        store(weights_.row(i + r) + column, to_float(sum) * Vec(query_scale_[i + r]));
      }
    });
  }

  void take_weights(int i, int count) {
    const float* const row = weights_.row(i);
    const int padded = round_up(count, kChunk);
    const float factor = factor_to_split(largest_magnitude(row, padded));
    const SplitIntegers split = split_row(row, padded, factor);
    split.store(split_weights_ + 2 * i * kTile, split_weights_ + (2 * i + 1) * kTile);
    const Ints excess = split.excess();
    std::memcpy(weight_excess_[i], &excess, sizeof(excess));
    weight_scale_[i] = 1.0f / factor;
  }

  void add_values(const StreamedRows<int8_t>& values, int tokens, int column, int first,
                  int count) {
    const int num_steps = (tokens + 3) / 4;
    for_row_blocks(first, count, [&](auto num_rows, int i) __attribute__((always_inline)) {
      const auto block = i == first ? values : values.without_prefetch();
      for (int d = 0; d < stride_; d += kGroup) {
        add<num_rows(), 0>(block, num_steps, column, i, d);
        add<num_rows(), 1>(values.without_prefetch(), num_steps, column, i, d);
      }
    });
  }

  void finish(int i) { to_element_order<kVectors>(out_.row(i), stride_); }

 private:
  static constexpr int kGroup = 64;
  static constexpr int kVectors = kGroup / kWidth;

  // row[0 ... 64) * factor, with zeros from `count` on.
  static PAGEDATTN_ALWAYS_INLINE SplitIntegers split_row(const float* row, int count,
                                                         float factor) {
    __m512i integers[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const bool there = v * kWidth < count;
      integers[v] =
          there ? _mm512_cvtps_epi32(load(row + v * kWidth) * Vec(factor)) : _mm512_setzero_si512();
    }
    return SplitIntegers(integers);
  }

  // The first or the other half of what a group of elements becomes, interleaved by fours of
  // tokens.
  template <int Rows, int Half>
  PAGEDATTN_ALWAYS_INLINE void add(const StreamedRows<int8_t>& values, int num_steps, int column,
                                   int i, int d) {
    constexpr int kHalf = kVectors / 2;
    Ints sums[2 * Rows][kHalf];
#pragma GCC unroll 8
    for (int r = 0; r < 2 * Rows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kHalf; ++v) sums[r][v] = Ints{};
    }
    const int rest = head_dim_ - d;
    const __mmask64 there = rest >= kGroup ? ~uint64_t{0} : (uint64_t{1} << rest) - 1;
    const auto load_step = [&](int step, __m512i* value) __attribute__((always_inline)) {
      __m512i codes[4];
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) {
        codes[t] = _mm512_maskz_loadu_epi8(there, values.row(4 * step + t) + d);
        values.reading(4 * step + t, d, kGroup);
      }
      const auto unpack = [](__m512i a, __m512i b) __attribute__((always_inline)) {
        return Half == 0 ? _mm512_unpacklo_epi8(a, b) : _mm512_unpackhi_epi8(a, b);
      };
      const __m512i pairs[2] = {unpack(codes[0], codes[1]), unpack(codes[2], codes[3])};
      value[0] = plus_128(_mm512_unpacklo_epi16(pairs[0], pairs[1]));
      value[1] = plus_128(_mm512_unpackhi_epi16(pairs[0], pairs[1]));
    };
    add_steps(num_steps, load_step,
              RowArray<const int8_t>{split_weights_ + 2 * i * kTile + column, kTile}, sums);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const int32_t* const four = weight_excess_[i + r] + column / 4;
      const int32_t excess = four[0] + four[1] + four[2] + four[3];
      const Vec scale(weight_scale_[i + r]);
#pragma GCC unroll 2
      for (int v = 0; v < kHalf; ++v) {
        float* const out = out_.row(i + r) + d + (kHalf * Half + v) * kWidth;
        const Ints sum = sums[2 * r][v] * 256 + sums[2 * r + 1][v] - excess;
        store(out, at::vec::fmadd(to_float(sum), scale, load(out)));
      }
    }
  }

  const int head_dim_;
  const int stride_;
  const FloatRows weights_;
  const FloatRows out_;
  alignas(64) int8_t query_[2 * kMaxRows * kMaxHeadDim];  // of each row, the high bytes first
  float query_scale_[kMaxRows];
  int32_t query_excess_[kMaxRows];  // 128 times the sum of a row
  alignas(64) int8_t split_weights_[2 * kMaxRows * kTile];
  float weight_scale_[kMaxRows];
  int32_t weight_excess_[kMaxRows][kTile / 4];  // 128 times the sum of each four
};

}  // namespace pagedattn::PAGEDATTN_ISA

#endif
