// The matrix product inside prefill, C (+)= A B, for a few rows of A and a narrow panel of B.
//
// Operands are arrays of 32-bit *units* along the contraction: one float, or two bf16. So scores
// (A = queries, B = keys transposed) and outputs (A = weights, B = values) are one product, and
// packing, loops and layouts are the same for every kernel:
//
//   A  [row][unit]             row stride lda
//   B  [unit][column]          a panel: `columns` wide, contiguous
//   C  [row][column] floats    row stride ldc
//
// An element of C adds its units in order, whatever rows and columns share its registers.
#pragma once

#include <type_traits>

#include "../../../common/cpu/simd.h"

namespace pagedattn::PAGEDATTN_ISA {

struct Product {
  const float* a;
  int lda;
  const float* b;
  int columns;  // a multiple of kWidth, at most the kernel's kPanel
  int units;    // a multiple of the kernel's kUnitStep
  float* c;
  int ldc;
  bool accumulate;  // C += A B instead of C = A B
};

// Fills the vector registers with a block of C: kRows x (kPanel / kWidth) accumulators. Arithmetic
// says what a unit is.
template <typename Arithmetic>
struct RegisterKernel : Arithmetic {
  static constexpr bool k32Registers = kWidth == 16;
  static constexpr int kRows = 6;  // A's and C's rows come in multiples of this
  static constexpr int kPanel = (k32Registers ? 4 : 2) * kWidth;
  static constexpr int kUnitStep = 1;
  static constexpr int kStripRows = 4 * kRows;

  static void multiply(const Product& p, int rows) {
    switch (p.columns / kWidth) {
      case 1:
        return multiply_wide<1>(p, rows);
      case 2:
        return multiply_wide<2>(p, rows);
      case 3:
        return multiply_wide<3>(p, rows);
      case 4:
        return multiply_wide<4>(p, rows);
    }
  }

 private:
  // Units at a time, so that this part of B's panel stays in the L1 cache for all rows.
  static constexpr int kUnitsPerPass = 128;

  template <int Vectors>
  static void multiply_wide(const Product& p, int rows) {
    if constexpr (Vectors * kWidth <= kPanel) {
      for (int u = 0; u < p.units; u += kUnitsPerPass) {
        const int count = p.units - u < kUnitsPerPass ? p.units - u : kUnitsPerPass;
        for (int r = 0; r < rows; r += kRows) {
          block<Vectors>(p.a + int64_t{r} * p.lda + u, p.lda, p.b + int64_t{u} * p.columns, count,
                         p.c + int64_t{r} * p.ldc, p.ldc, p.accumulate || u > 0);
        }
      }
    }
  }

  template <int Vectors>
  PAGEDATTN_ALWAYS_INLINE static void block(const float* a, int lda, const float* b, int units,
                                            float* c, int ldc, bool accumulate) {
    Vec sums[kRows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < Vectors; ++i) {
        sums[r][i] = accumulate ? load(c + r * ldc + i * kWidth) : Vec(0.0f);
      }
    }
    for (int u = 0; u < units; ++u, b += Vectors * kWidth) {
      Vec column[Vectors];
#pragma GCC unroll 4
      for (int i = 0; i < Vectors; ++i) column[i] = load(b + i * kWidth);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec unit(a[r * lda + u]);
#pragma GCC unroll 4
        for (int i = 0; i < Vectors; ++i) {
          sums[r][i] = Arithmetic::multiply_add(unit, column[i], sums[r][i]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < Vectors; ++i) store(c + r * ldc + i * kWidth, sums[r][i]);
    }
  }
};

// A unit is a float.
struct FloatUnits {
  using Element = float;
  static constexpr int kElements = 1;  // of a unit
  static constexpr int kExpDegree = 6;

  static Vec multiply_add(Vec a, Vec b, Vec sum) { return at::vec::fmadd(a, b, sum); }

  template <typename T>
  static void pack_row(const T* row, int n, float* units) {
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(units, row, n * sizeof(float));
      return;
    }
    int i = 0;
    for (; i + kWidth <= n; i += kWidth) store(units + i, load(row + i));
    if (i < n) store(units + i, load_tail(row + i, n - i));
  }

  // Units of the values of kElements tokens.
  static Vec pack_tokens(const Vec* tokens) { return tokens[0]; }

  // Two vectors of weights to where the units of weight t of a row lie.
  static void store_weights(float* row, int t, Vec first, Vec second) {
    store(row + t, first);
    store(row + t + kWidth, second);
  }
  static float weight(const float* row, int t) { return row[t]; }

  // Zeroes infinities and NaN.
  static void zero_nonfinite(float* units, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if ((float_to_bits(units[i]) & 0x7f800000u) == 0x7f800000u) units[i] = 0.0f;
    }
  }
};

using FloatKernel = RegisterKernel<FloatUnits>;

}  // namespace pagedattn::PAGEDATTN_ISA
