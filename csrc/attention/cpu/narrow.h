// Rows of an 8-bit cache as rows of bf16, which holds every code exactly: half the stores and loads
// of floats, and what vdpbf16ps takes.
#pragma once

#include "prefetch.h"

namespace pagedattn::PAGEDATTN_ISA {

#if defined(__AVX512VBMI__)

// The two bytes of each bf16, looked up by the low 7 bits of a code.
template <typename T>
struct Bf16Table {
  Bf16Table() {
    for (int code = 0; code < 128; ++code) {
      const uint32_t bits = float_to_bits(to_float(code_of(code))) >> 16;
      low[code] = static_cast<uint8_t>(bits);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
  static T code_of(int code) {
    const auto byte = static_cast<uint8_t>(code);
    T value;
    std::memcpy(&value, &byte, 1);
    return value;
  }

  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];
};

template <typename T>
class Narrower {
 public:
  Narrower() {
    static const Bf16Table<T> table;
    for (int i = 0; i < 2; ++i) {
      low_[i] = _mm512_load_si512(table.low + 64 * i);
      high_[i] = _mm512_load_si512(table.high + 64 * i);
    }
  }

  static constexpr int kElements = 64;

  void narrow(const T* p, BFloat16* out) const {
    const __m512i high_half = narrow(_mm512_loadu_si512(p), out);
    _mm512_storeu_si512(out + kPair, high_half);
  }

  // The first `count` < kElements elements from p on, and zeros up to a multiple of kPair.
  void narrow_tail(const T* p, int count, BFloat16* out) const {
    const __mmask64 there = ~uint64_t{0} >> (kElements - count);
    const __m512i high_half = narrow(_mm512_maskz_loadu_epi8(there, p), out);
    if (count > kPair) _mm512_storeu_si512(out + kPair, high_half);
  }

  // The bytes of 64 bf16: out[0] has those whose place in their 16 is below 8, out[1] the others.
  PAGEDATTN_ALWAYS_INLINE void narrow(__m512i codes, __m512i* out) const {
    const __m512i low = _mm512_permutex2var_epi8(low_[0], magnitude(codes), low_[1]);
    const __m512i high = signed_high(codes);
    out[0] = _mm512_unpacklo_epi8(low, high);
    out[1] = _mm512_unpackhi_epi8(low, high);
  }

 private:
  // Stores the first kPair elements and returns the others.
  PAGEDATTN_ALWAYS_INLINE __m512i narrow(__m512i natural_codes, BFloat16* out) const {
    // So that interleaving within 128-bit lanes leaves elements in order.
    const __m512i quarters = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    __m512i halves[2];
    narrow(_mm512_permutexvar_epi64(quarters, natural_codes), halves);
    _mm512_storeu_si512(out, halves[0]);
    return halves[1];
  }

  static __m512i magnitude(__m512i codes) {
    return std::is_same_v<T, int8_t> ? _mm512_abs_epi8(codes) : codes;
  }

  __m512i signed_high(__m512i codes) const {
    constexpr int kOrAnd = 0xf8;  // a | (b & c)
    const __m512i sign = _mm512_set1_epi8(-128);
    const __m512i high = _mm512_ternarylogic_epi64(
        _mm512_permutex2var_epi8(high_[0], magnitude(codes), high_[1]), codes, sign, kOrAnd);
    if constexpr (!std::is_same_v<T, int8_t>) return high;
    // -128 has no magnitude of 7 bits.
    return _mm512_mask_mov_epi8(high, _mm512_cmpeq_epi8_mask(codes, sign),
                                _mm512_set1_epi8(static_cast<char>(0xc3)));
  }

  __m512i low_[2];
  __m512i high_[2];
};

#else

template <typename T>
class Narrower {
 public:
  static constexpr int kElements = kPair;

  void narrow(const T* p, BFloat16* out) const {
    Vec pair[2];
    load_pair(p, pair);
    store_upper_halves(out, pair);
  }

  // The first `count` < kElements elements from p on, and zeros up to kElements.
  void narrow_tail(const T* p, int count, BFloat16* out) const {
    Vec pair[2];
    load_pair_tail(p, count, pair);
    store_upper_halves(out, pair);
  }
};

#endif

// Rows [0, num_tokens), padded with zeros to a multiple of kPair elements.
template <typename T>
inline void narrow_rows(const StreamedRows<T>& rows, int num_tokens, int head_dim, BFloat16* out,
                        int stride) {
  constexpr int kElements = Narrower<T>::kElements;
  const Narrower<T> narrower;
  for (int t = 0; t < num_tokens; ++t, out += stride) {
    const T* const row = rows.row(t);
    int d = 0;
    for (; d + kElements <= head_dim; d += kElements) narrower.narrow(row + d, out + d);
    if (d < head_dim) narrower.narrow_tail(row + d, head_dim - d, out + d);
  }
}

}  // namespace pagedattn::PAGEDATTN_ISA
