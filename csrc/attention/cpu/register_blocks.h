// How the products of attention between a few query rows and the tokens of a tile (fma_products.h,
// bf16_products.h, int8_products.h) use the registers: in blocks of query rows, so that a vector of
// K or V, once loaded, serves all of them.
//
// A row's arithmetic does not depend on which rows share its registers: each (row, token) score has
// an accumulator of its own, and each output element adds its tokens in order.
#pragma once

#include <cstring>
#include <type_traits>

#include "../../common/cpu/simd.h"

namespace pagedattn::PAGEDATTN_ISA {

constexpr int kMaxRows = 64;  // query rows (tokens x heads) of a unit of work
constexpr int kMaxHeadDim = 256;
constexpr int kTile = 64;          // tokens; divides every partition size of V2
constexpr int kChunk = 32;         // tokens whose rows are read kv head after kv head
constexpr int kRowBlock = 4;       // query rows that share the registers
constexpr int kTokenPad = kWidth;  // token lists are padded to a multiple of this with valid rows
static_assert(kTile % kChunk == 0 && kChunk % kTokenPad == 0);

// A few rows of a [rows][stride] array.
template <typename T>
struct RowArray {
  T* data;
  int stride;
  T* row(int i) const { return data + static_cast<int64_t>(i) * stride; }
};
using FloatRows = RowArray<float>;

// The scores of a tile, then its weights: a row for each query row.
struct ScoreRows {
  float* data;
  float* row(int i) const { return data + static_cast<int64_t>(i) * kTile; }
  ScoreRows at(int row, int token) const { return {data + row * kTile + token}; }
};

// f(number of rows as a constant, first row) for blocks of rows.
template <typename F>
PAGEDATTN_ALWAYS_INLINE void for_row_blocks(int first, int count, const F& f) {
  int i = first;
  for (; i + kRowBlock <= first + count; i += kRowBlock) {
    f(std::integral_constant<int, kRowBlock>{}, i);
  }
  switch (first + count - i) {
    case 3:
      return f(std::integral_constant<int, 3>{}, i);
    case 2:
      return f(std::integral_constant<int, 2>{}, i);
    case 1:
      return f(std::integral_constant<int, 1>{}, i);
  }
}

// A block of scores: Rows rows and kWidth / (Rows up to a power of 2) tokens.
template <int Rows>
constexpr int kTokensPerBlock = kWidth / (Rows == 3 ? 4 : Rows);

// scores[r][t] = lane r * number of tokens + t.
template <int Rows>
PAGEDATTN_ALWAYS_INLINE void scatter_scores(const Vec& lanes, ScoreRows scores) {
  constexpr int kTokens = kTokensPerBlock<Rows>;
  float totals[kWidth];
  store(totals, lanes);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    std::memcpy(scores.row(r), totals + r * kTokens, kTokens * sizeof(float));
  }
}

}  // namespace pagedattn::PAGEDATTN_ISA
