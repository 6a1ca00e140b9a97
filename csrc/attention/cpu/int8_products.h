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
#include "softmax.h"

namespace pagedattn::PAGEDATTN_ISA {

PAGEDATTN_ALWAYS_INLINE __m512i plus_128(__m512i codes) {
  return _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
}

// 64 floats times a factor, as integers: 256 * high + low.
struct SplitIntegers {
  __m512i high;
  __m512i low;

  PAGEDATTN_ALWAYS_INLINE SplitIntegers(const Vec* floats, float factor) {
    // Bytes 0 and 1 of the dwords of two vectors.
    alignas(64) static constexpr uint8_t kBytes[64] = {
        0,  4,  8,  12, 16, 20, 24, 28, 32, 36,  40,  44,  48,  52,  56,  60,
        64, 68, 72, 76, 80, 84, 88, 92, 96, 100, 104, 108, 112, 116, 120, 124,
        1,  5,  9,  13, 17, 21, 25, 29, 33, 37,  41,  45,  49,  53,  57,  61,
        65, 69, 73, 77, 81, 85, 89, 93, 97, 101, 105, 109, 113, 117, 121, 125};
    const __m512i bytes = _mm512_load_si512(kBytes);
    // With 128 added, byte 1 is the high one, and byte 0 differs from the low one in its sign.
    const auto shifted = [&](int i) __attribute__((always_inline)) {
      const __m512i integers = _mm512_cvtps_epi32(floats[i] * Vec(factor));
      return _mm512_add_epi32(integers, _mm512_set1_epi32(128));
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

// What turns the floats of a row into 16-bit integers, and back. Powers of two, so that elements of
// bf16 down to 2^-7 of the row's largest one become exact integers. NaN if there is an infinity or
// NaN.
struct SplitScale {
  float factor;
  float inverse;

  PAGEDATTN_ALWAYS_INLINE SplitScale(const Vec* floats, int num_vectors) {
    constexpr uint32_t kLargest = 127 * 256 + 127;  // an integer's
    constexpr uint32_t kBits = 14;                  // below its first
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

PAGEDATTN_ALWAYS_INLINE Vec to_float(Ints x) {
  return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(x));
}

// What decode_unit.h takes for its arithmetic.
class Int8Products {
 public:
  static int row_stride(int head_dim) { return round_up(head_dim, kGroup); }

  Int8Products(int head_dim, int, TileRows weights, FloatRows out)
      : head_dim_(head_dim), stride_(row_stride(head_dim)), weights_(weights), out_(out) {}

  void set_query(int i, const float* row) {
    Vec floats[kMaxHeadDim / kWidth];
    for (int d = 0; d < stride_; d += kWidth) floats[d / kWidth] = load(row + d);
    const SplitScale scale(floats, stride_ / kWidth);
    Ints excess{};
    for (int d = 0; d < stride_; d += kGroup) {
      const SplitIntegers split(floats + d / kWidth, scale.factor);
      split.store(query_ + 2 * i * kMaxHeadDim + d, query_ + (2 * i + 1) * kMaxHeadDim + d);
      excess += split.excess();
    }
    query_scale_[i] = scale.inverse;
    query_excess_[i] = _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(excess));
  }

  void score(const StreamedRows<int8_t>& keys, int tokens, int column, int first, int count) {
    for (int t = 0; t < tokens; t += kWidth) score(keys.from(t), column + t, first, count);
  }

  void take_weights(int i, const TileRow& row) {
    const SplitScale scale(row.v, TileRow::kVectors);
    const SplitIntegers split(row.v, scale.factor);
    split.store(split_weights_ + 2 * i * kTile, split_weights_ + (2 * i + 1) * kTile);
    const Ints excess = split.excess();
    std::memcpy(weight_excess_[i], &excess, sizeof(excess));
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
      Ints sums[2 * kRows];
#pragma GCC unroll 8
      for (int r = 0; r < 2 * kRows; ++r) sums[r] = Ints{};
      const int8_t* const query = query_ + 2 * i * kMaxHeadDim;
      for_each_dword(i == first ? keys : keys.without_prefetch(), head_dim_,
                     [&](int64_t j, __m512i codes) __attribute__((always_inline)) {
                       const __m512i key = plus_128(codes);
#pragma GCC unroll 8
                       for (int r = 0; r < 2 * kRows; ++r) {
                         sums[r] =
                             add_dots(sums[r], key, broadcast_dword(query + r * kMaxHeadDim + 4 * j));
                       }
                     });
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Ints sum = sums[2 * r] * 256 + sums[2 * r + 1] - query_excess_[i + r];
        store(weights_.row(i + r) + column, to_float(sum) * Vec(query_scale_[i + r]));
      }
    });
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

  // To row i: the high bytes of its weights times the group, then the low ones.
  PAGEDATTN_ALWAYS_INLINE void add(const Ints (&group)[kSteps][kVectors], int column, int i,
                                   int d) {
    Ints sums[kVectors] = {};
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part) {
      const int8_t* const weights = split_weights_ + (2 * i + part) * kTile + column;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[v] *= 256;
#pragma GCC unroll 4
      for (int step = 0; step < kSteps; ++step) {
        const __m512i weight = broadcast_dword(weights + 4 * step);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sums[v] = add_dots(sums[v], reinterpret_cast<__m512i>(group[step][v]), weight);
        }
      }
    }
    const int32_t* const four = weight_excess_[i] + column / 4;
    const int32_t excess = four[0] + four[1] + four[2] + four[3];
    const Vec scale(weight_scale_[i]);
    float* const out = out_.row(i) + d;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      store(out + v * kWidth,
            at::vec::fmadd(to_float(sums[v] - excess), scale, load(out + v * kWidth)));
    }
  }

  const int head_dim_;
  const int stride_;
  const TileRows weights_;
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
