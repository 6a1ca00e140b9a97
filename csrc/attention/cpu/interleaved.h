// Rows of the cache as vdpbf16ps and vpdpbusd want them, which add up the products of the halves or
// bytes of a dword: int8 keys so that a lane is a token, and scores need no sum across lanes;
// values so that a dword has an element of each of several tokens. All in registers: a store of 64
// bytes would take as long as two of these instructions.
#pragma once

#if defined(__AVX512BF16__)

#include "prefetch.h"
#include "register_blocks.h"

namespace pagedattn::PAGEDATTN_ISA {

// Sums in a type of their own: of __m512i, whose elements are 64 bits for GCC, it keeps copies.
using Ints = int32_t __attribute__((vector_size(64)));

// Codes are unsigned bytes, the others signed.
PAGEDATTN_ALWAYS_INLINE Ints add_dots(Ints sum, __m512i codes, __m512i others) {
  return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), codes, others));
}

PAGEDATTN_ALWAYS_INLINE __m512 add_dots(__m512 sum, __m512i pairs, __m512i others) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(pairs),
                          reinterpret_cast<__m512bh>(others));
}

// take(j, v) for each dword j of kWidth rows of bytes: lane t of v has that of row t.
// Rows are `bytes` long, a multiple of 8; beyond them are zeros.
//
//   16 bytes of 16 rows are        a lane's dwords are    and transposed
//   x0: row 0 | row 4 | 8 | 12     0 1 2 3 of row 0       y0: 0 of rows 0 1 2 3 | 4 5 6 7 | ...
//   x1: row 1 | row 5 | 9 | 13     0 1 2 3 of row 1       y1: 1 of rows 0 1 2 3 | 4 5 6 7 | ...
template <typename Rows, typename F>
PAGEDATTN_ALWAYS_INLINE void for_each_dword(const Rows& rows, int bytes, const F& take) {
  // volatile, as pointers that are kept in registers would be kept in vectors, for want of others.
  const char* volatile row_data[kWidth];
  for (int t = 0; t < kWidth; ++t) row_data[t] = reinterpret_cast<const char*>(rows.row(t));
  const auto transpose = [&](int64_t byte, const auto& load) __attribute__((always_inline)) {
    const auto row = [&](int t) __attribute__((always_inline)) { return load(row_data[t] + byte); };
    __m512i x[4];
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) {
      x[t] = _mm512_castsi128_si512(row(t));
      x[t] = _mm512_inserti32x4(x[t], row(t + 4), 1);
      x[t] = _mm512_inserti32x4(x[t], row(t + 8), 2);
      x[t] = _mm512_inserti32x4(x[t], row(t + 12), 3);
    }
    const __m512i first[2] = {_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1])};
    const __m512i last[2] = {_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3])};
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      take(byte / 4 + 2 * i, _mm512_unpacklo_epi64(first[i], last[i]));
      take(byte / 4 + 2 * i + 1, _mm512_unpackhi_epi64(first[i], last[i]));
    }
  };
  // A quarter of the rows' lines are asked for at each quarter of a line.
  const auto ask = [&](int64_t byte) __attribute__((always_inline)) {
    const int first = byte / 16 % 4 * 4;
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) rows.reading(first + t, byte / 64 * 64, 64);
  };
  int64_t byte = 0;
  for (; byte + 16 <= bytes; byte += 16) {
    ask(byte);
    transpose(byte, [](const char* p) __attribute__((always_inline)) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    });
  }
  if (byte < bytes) {
    ask(byte);
    transpose(byte, [](const char* p) __attribute__((always_inline)) {
      return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    });
  }
}

// Bits for the first `count` of 64 elements, or for all.
inline uint64_t first_of_64(int count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

PAGEDATTN_ALWAYS_INLINE __m512i broadcast_dword(const void* p) {
  int32_t dword;
  std::memcpy(&dword, p, sizeof(dword));
  return _mm512_set1_epi32(dword);
}

// A row of sums in groups of kVectors, each in the order that unpacking within 128-bit lanes
// leaves, dword i of lane L of vector v being element 4 * kVectors * L + 4 v + i, to the elements'
// own order.
template <int kVectors>
inline void to_element_order(float* row, int size) {
  constexpr int kGroup = kVectors * kWidth;
  for (float* group = row; group < row + size; group += kGroup) {
    float lanes[kGroup];
    std::memcpy(lanes, group, sizeof(lanes));
    for (int v = 0; v < kVectors; ++v) {
      for (int lane = 0; lane < kWidth; lane += 4) {
        std::memcpy(group + kVectors * lane + 4 * v, lanes + v * kWidth + lane, 4 * sizeof(float));
      }
    }
  }
}

}  // namespace pagedattn::PAGEDATTN_ISA

#endif
