// Where the keys and values of a tile of tokens lie, found through the block table.
#pragma once

#include "../work.h"

namespace pagedattn::PAGEDATTN_ISA {

// Tiles are counted from token 0, so a row meets its keys in the same groups whatever unit it is
// computed in: chunks of a prefill give the bits of the whole.
constexpr int kTileTokens = 256;

// Stands for tokens of the tile that no row of the unit sees.
alignas(64) constexpr float kZeroRow[kMaxHeadDim] = {};

struct TileRows {
  int begin = 0;  // position of token 0; a multiple of kTileTokens
  int first = 0;  // [first, last) of the tile's tokens are there, the others are zero rows
  int last = 0;
  const char* key[kTileTokens];
  const char* value[kTileTokens];
  float key_scale[kTileTokens];  // filled only where scales are per token and head
  float value_scale[kTileTokens];
};

// One of key and value, for one kv head, in bytes.
class RowFinder {
 public:
  RowFinder(const CacheView& cache, int element_size, int kv_head)
      : base_(static_cast<const char*>(cache.data) + kv_head * cache.head_stride * element_size),
        block_bytes_(cache.block_stride * element_size),
        token_bytes_(cache.token_stride * element_size),
        scale_(cache.scale) {
    if (scale_.kind == ScaleKind::kPerTokenHead) {
      scale_base_ = scale_.data + kv_head * scale_.head_stride;
    }
  }

  void find(int64_t block, int slot, const char*& row, float& scale) const {
    row = base_ + block * block_bytes_ + slot * token_bytes_;
    if (scale_base_) scale = scale_base_[block * scale_.block_stride + slot * scale_.token_stride];
  }

 private:
  const char* base_;
  int64_t block_bytes_;
  int64_t token_bytes_;
  const ScaleView& scale_;
  const float* scale_base_ = nullptr;
};

// The tokens of `keys` in the tile that begins at `begin`.
inline void find_rows(const RowFinder& key, const RowFinder& value, const int32_t* block_table,
                      int block_size, int begin, KvRange keys, TileRows& rows) {
  const KvRange range = intersect({begin, begin + kTileTokens}, keys);
  rows.begin = begin;
  rows.first = range.begin - begin;
  rows.last = range.end - begin;
  const char* const zeros = reinterpret_cast<const char*>(kZeroRow);
  for (int t = 0; t < rows.first; ++t) rows.key[t] = rows.value[t] = zeros;
  int block_index = range.begin / block_size;
  int slot = range.begin % block_size;
  for (int t = rows.first; t < rows.last; ++block_index, slot = 0) {
    const int64_t block = block_table[block_index];
    for (; slot < block_size && t < rows.last; ++slot, ++t) {
      key.find(block, slot, rows.key[t], rows.key_scale[t]);
      value.find(block, slot, rows.value[t], rows.value_scale[t]);
    }
  }
  for (int t = rows.last; t < kTileTokens; ++t) rows.key[t] = rows.value[t] = zeros;
}

}  // namespace pagedattn::PAGEDATTN_ISA
