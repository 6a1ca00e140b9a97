// Products of bf16 pairs with fp32 sums: by vdpbf16ps, and by AMX tiles where the CPU has them.
//
// Both flush subnormals to zero, and both round each weight to bf16, as every bf16 attention does.
#pragma once

#include "../tuning.h"
#include "micro_kernel.h"

#if defined(__AVX512BF16__)
#define PAGEDATTN_BF16_PAIRS 1

namespace pagedattn::PAGEDATTN_ISA {

// A unit is two bf16, the earlier in the lower half.
struct BFloat16Pairs {
  using Element = BFloat16;
  static constexpr int kElements = 2;
  static constexpr int kExpDegree = 4;

  static Vec multiply_add(Vec a, Vec b, Vec sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(a),
                            (__m512bh)_mm512_castps_si512(b));
  }

  // Elements of 16 bits or less, which bf16 holds exactly.
  template <typename T>
  static void pack_row(const T* row, int n, float* units) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      std::memcpy(units, row, n * sizeof(BFloat16));
      return;
    }
    auto* const out = reinterpret_cast<BFloat16*>(units);
    int i = 0;
    for (; i + kWidth <= n; i += kWidth) store_upper_halves(out + i, load(row + i), kWidth);
    if (i < n) store_upper_halves(out + i, load_tail(row + i, n - i), n - i);
  }

  static Vec pack_tokens(const Vec* tokens) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(tokens[0]), 16);
    const __m512i high = _mm512_castps_si512(tokens[1]);
    const __m512i mask = _mm512_set1_epi32(0xffff0000);
    constexpr int kSelect = 0xd8;  // mask ? high : low
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(low, high, mask, kSelect));
  }

  static void store_weights(float* row, int t, Vec first, Vec second) {
    const __m512bh pairs = _mm512_cvtne2ps_pbh(second, first);
    _mm512_storeu_si512(reinterpret_cast<BFloat16*>(row) + t, (__m512i)pairs);
  }
  static float weight(const float* row, int t) {
    return static_cast<float>(reinterpret_cast<const BFloat16*>(row)[t]);
  }

  static void zero_nonfinite(float* units, int64_t count) {
    auto* const halves = reinterpret_cast<uint16_t*>(units);
    for (int64_t i = 0; i < 2 * count; ++i) {
      if ((halves[i] & 0x7f80u) == 0x7f80u) halves[i] = 0;
    }
  }

 private:
  static void store_upper_halves(BFloat16* out, __m512 values, int count) {
    const __m512i shifted = _mm512_srli_epi32(_mm512_castps_si512(values), 16);
    const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
    _mm256_mask_storeu_epi16(out, mask, _mm512_cvtepi32_epi16(shifted));
  }
};

#if defined(__AMX_BF16__)

// C in four tiles of 16 x 16, each step of 16 units two tiles of A and two of B:
//
//            | B 6 | B 7 |
//      | A 4 | C 0 | C 1 |
//      | A 5 | C 2 | C 3 |
struct BFloat16Kernel : BFloat16Pairs {
  static constexpr int kRows = 16;
  static constexpr int kPanel = 32;
  static constexpr int kUnitStep = 16;
  static constexpr int kStripRows = 32;

  static void multiply(const Product& p, int rows) {
    asm volatile("" ::: "memory");  // the tile intrinsics do not say that they read memory
    for (int r = 0; r < rows; r += 2 * kRows) {
      const bool two_rows = r + kRows < rows;
      if (p.columns == kPanel) {
        two_rows ? block<true, true>(p, r) : block<false, true>(p, r);
      } else {
        two_rows ? block<true, false>(p, r) : block<false, false>(p, r);
      }
    }
    asm volatile("" ::: "memory");
  }

 private:
  template <bool TwoRows, bool TwoColumns>
  static void block(const Product& p, int row) {
    constexpr int kBytes = sizeof(float);
    const float* const a = p.a + int64_t{row} * p.lda;
    float* const c = p.c + int64_t{row} * p.ldc;
    const int64_t next_a = int64_t{kRows} * p.lda;
    const int64_t next_c = int64_t{kRows} * p.ldc;
    const int64_t stride_a = int64_t{p.lda} * kBytes;
    const int64_t stride_b = int64_t{p.columns} * kBytes;
    const int64_t stride_c = int64_t{p.ldc} * kBytes;
    if (p.accumulate) {
      _tile_loadd(0, c, stride_c);
      if constexpr (TwoColumns) _tile_loadd(1, c + kWidth, stride_c);
      if constexpr (TwoRows) _tile_loadd(2, c + next_c, stride_c);
      if constexpr (TwoRows && TwoColumns) _tile_loadd(3, c + next_c + kWidth, stride_c);
    } else {
      _tile_zero(0);
      if constexpr (TwoColumns) _tile_zero(1);
      if constexpr (TwoRows) _tile_zero(2);
      if constexpr (TwoRows && TwoColumns) _tile_zero(3);
    }
    for (int u = 0; u < p.units; u += kUnitStep) {
      const float* const b = p.b + int64_t{u} * p.columns;
      _tile_loadd(6, b, stride_b);
      _tile_loadd(4, a + u, stride_a);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (TwoColumns) {
        _tile_loadd(7, b + kWidth, stride_b);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (TwoRows) {
        _tile_loadd(5, a + next_a + u, stride_a);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (TwoColumns) _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, c, stride_c);
    if constexpr (TwoColumns) _tile_stored(1, c + kWidth, stride_c);
    if constexpr (TwoRows) _tile_stored(2, c + next_c, stride_c);
    if constexpr (TwoRows && TwoColumns) _tile_stored(3, c + next_c + kWidth, stride_c);
  }
};

// Gives this thread tiles of 16 rows by 64 bytes, and back what it had: oneDNN, say, may rely on
// it.
class TileConfiguration {
 public:
  TileConfiguration() {
    Registers mine{};
    mine.palette = 1;
    for (int i = 0; i < 8; ++i) {
      mine.bytes_per_row[i] = 64;
      mine.rows[i] = 16;
    }
    _tile_storeconfig(&before_);
    _tile_loadconfig(&mine);
  }
  ~TileConfiguration() {
    if (before_.palette == 0) {
      _tile_release();
    } else {
      _tile_loadconfig(&before_);
    }
  }
  TileConfiguration(const TileConfiguration&) = delete;
  TileConfiguration& operator=(const TileConfiguration&) = delete;

 private:
  struct alignas(64) Registers {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
  };
  Registers before_;
};

// Than FMA in fp32.
inline bool bf16_kernel_is_faster() { return true; }

#else

using BFloat16Kernel = RegisterKernel<BFloat16Pairs>;

struct TileConfiguration {};

inline bool bf16_kernel_is_faster() { return tuning().dots_bf16; }

#endif

}  // namespace pagedattn::PAGEDATTN_ISA

#endif
