// Rows of the cache as the products read them, with software prefetch on the way: the block table
// scatters rows, and hardware prefetchers stop at every jump.
#pragma once

#include "../../common/cpu/simd.h"
#include "register_blocks.h"
#include "tuning.h"

namespace pagedattn::PAGEDATTN_ISA {

// Rows of one kv head for a few tokens.
template <typename T>
struct TokenRows {
  const T* const* tokens = nullptr;  // their rows of the unit's first kv head
  int64_t head_offset = 0;           // elements
  const T* row(int t) const { return tokens[t] + head_offset; }
  TokenRows from(int t) const { return {tokens ? tokens + t : tokens, head_offset}; }
};

// So many rows ahead memory is asked for a row of T the last time; 0: not. Smaller elements are
// bound by arithmetic, of which requests are a part.
template <typename T>
constexpr int kSoon = sizeof(T) == sizeof(float) ? 16 : 0;

// Whoever reads a part of a row asks for the same part of the rows that are read a while later, so
// that requests leave one by one, as memory can take them. Where the same rows are read once for
// each block of query rows, the blocks share the requests.
template <typename T>
class StreamedRows {
 public:
  explicit StreamedRows(TokenRows<T> rows) : rows_(rows), asks_(0) {}
  StreamedRows(TokenRows<T> rows, TokenRows<T> soon, TokenRows<T> near, TokenRows<T> far)
      : rows_(rows), soon_(soon), near_(near), far_(far), asks_(~0u) {}

  const T* row(int t) const { return rows_.row(t); }
  StreamedRows from(int t) const {
    return {rows_.from(t), soon_.from(t), near_.from(t), far_.from(t), asks_ >> t};
  }

  // For the block of query rows that begins at `row` of `count`: with its share of the requests.
  StreamedRows for_block(int row, int count) const {
    const int block = row / kRowBlock;
    const int blocks = (count + kRowBlock - 1) / kRowBlock;
    if (blocks == 1) return *this;
    const int shares = blocks < 4 ? 2 : 4;
    const uint32_t first_share = shares == 2 ? 0x55555555 : 0x11111111;
    return {rows_, soon_, near_, far_, block < shares ? asks_ & first_share << block : 0};
  }

  // To be called while elements [d, d + count) of row t are read.
  PAGEDATTN_ALWAYS_INLINE void reading(int t, int d, int count) const {
    if ((count < kLine && d % kLine != 0) || (asks_ >> t & 1) == 0) return;
    if constexpr (kSoon<T> > 0) {
      if (soon_.tokens) ask_for(soon_.row(t) + d, count);
    }
    ask_for(near_.row(t) + d, count);
    ask_for(far_.row(t) + d, count);
  }

 private:
  StreamedRows(TokenRows<T> rows, TokenRows<T> soon, TokenRows<T> near, TokenRows<T> far,
               uint32_t asks)
      : rows_(rows), soon_(soon), near_(near), far_(far), asks_(asks) {}

  static constexpr int kLine = 64 / sizeof(T);  // elements of a cache line

  // Into the L2 cache: a request for the L1 cache would hold one of its few line fill buffers,
  // which the loads of the products need, until memory answers.
  static PAGEDATTN_ALWAYS_INLINE void ask_for(const T* p, int count) {
    constexpr int kLocality = 2;
#pragma GCC unroll 4
    for (int i = 0; i < count; i += kLine) {
      __builtin_prefetch(p + i, 0, kLocality);
    }
  }

  TokenRows<T> rows_;
  TokenRows<T> soon_;
  TokenRows<T> near_;
  TokenRows<T> far_;
  uint32_t asks_;  // bit t: requests are made with row t
  static_assert(kChunk <= 32);
};

// The same rows after a conversion to U, side by side: `rows` says where they came from.
template <typename T, typename U>
struct ConvertedRows {
  const U* data;
  int stride;
  StreamedRows<T> rows;

  const U* row(int t) const { return data + static_cast<int64_t>(t) * stride; }
  ConvertedRows from(int t) const { return {row(t), stride, rows.from(t)}; }
  ConvertedRows for_block(int row, int count) const {
    return {data, stride, rows.for_block(row, count)};
  }
  PAGEDATTN_ALWAYS_INLINE void reading(int t, int d, int count) const { rows.reading(t, d, count); }
};

}  // namespace pagedattn::PAGEDATTN_ISA
