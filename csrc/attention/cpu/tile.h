// A tile: the keys and values of a few tokens of one sequence and kv head, found through the block
// table. Tiles are counted from token 0, so a row meets its tokens in the same groups whatever
// else is in the batch.
#pragma once

#include "../params.h"
#include "products.h"

namespace pagedattn::PAGEDATTN_ISA {

constexpr int kTile = 64;  // divides every partition size of V2
static_assert(kTile % kTokenPad == 0 && kTile % kWidth == 0);

template <typename T>
struct Tile {
  int begin = 0;  // position that offset[] counts from
  int count = 0;
  // Key rows, value rows, and the key rows that are read next, in this order. Each kTile of them,
  // padded by repeating the last.
  const T* rows[3 * kTile];
  float offset[kTile];  // position - begin
  float key_scale[kTile];
  float value_scale[kTile];

  const T** key() { return rows; }
  const T** value() { return rows + kTile; }
  const T** next_key() { return rows + 2 * kTile; }
  const T* const* key() const { return rows; }
  const T* const* value() const { return rows + kTile; }

  void pad() {
    for (int i = count; i < kTile; ++i) {
      key()[i] = key()[count - 1];
      value()[i] = value()[count - 1];
    }
  }
};

// Where the tokens of a tile are, for any kv head: offsets of head 0, in elements.
struct TokenPlaces {
  int begin = 0;
  int count = 0;
  int64_t key[kTile];
  int64_t value[kTile];
  int64_t key_scale[kTile];  // unless the scale is per token and head: not set
  int64_t value_scale[kTile];
};

// Finds tokens [begin, end), at most kTile of them, reading only their entries of the block table.
inline void find_tokens(const AttentionParams& params, int seq, int begin, int end,
                        TokenPlaces& places) {
  const KvCacheView& cache = params.cache;
  const int32_t* const block_table = params.block_tables + seq * params.block_table_stride;
  places.begin = begin;
  places.count = end - begin;
  int slot = begin % cache.block_size;
  int block_index = begin / cache.block_size;
  for (int i = 0; i < places.count; ++block_index, slot = 0) {
    const int64_t block = block_table[block_index];
    const int room = cache.block_size - slot;
    const int end_of_block = places.count - i < room ? places.count : i + room;
    const auto spread = [&](const auto& view, int64_t* offsets) {
      int64_t offset = block * view.block_stride + slot * view.token_stride;
      for (int t = i; t < end_of_block; ++t, offset += view.token_stride) offsets[t] = offset;
    };
    spread(cache.key, places.key);
    spread(cache.value, places.value);
    if (cache.key.scale.kind == ScaleKind::kPerTokenHead) {
      spread(cache.key.scale, places.key_scale);
    }
    if (cache.value.scale.kind == ScaleKind::kPerTokenHead) {
      spread(cache.value.scale, places.value_scale);
    }
    i = end_of_block;
  }
}

// The tile of one kv head.
template <typename T>
void make_tile(const KvCacheView& cache, const TokenPlaces& places, int kv_head, Tile<T>& tile) {
  const auto base_of = [&](const CacheView& view) {
    return static_cast<const T*>(view.data) + kv_head * view.head_stride;
  };
  const T* const key = base_of(cache.key);
  const T* const value = base_of(cache.value);
  tile.begin = places.begin;
  tile.count = places.count;
  for (int i = 0; i < places.count; ++i) {
    tile.key()[i] = key + places.key[i];
    tile.value()[i] = value + places.value[i];
    tile.offset[i] = static_cast<float>(i);
  }
  tile.pad();
  const auto read_scales = [&](const ScaleView& scale, const int64_t* offsets, float* out) {
    if (scale.kind != ScaleKind::kPerTokenHead) return;
    const float* const of_head = scale.data + kv_head * scale.head_stride;
    for (int i = 0; i < places.count; ++i) out[i] = of_head[offsets[i]];
  };
  read_scales(cache.key.scale, places.key_scale, tile.key_scale);
  read_scales(cache.value.scale, places.value_scale, tile.value_scale);
}

// The factor that all tokens of a head share.
inline float common_scale(const ScaleView& scale, int kv_head) {
  switch (scale.kind) {
    case ScaleKind::kPerTensor:
      return scale.data[0];
    case ScaleKind::kPerHead:
      return scale.data[kv_head * scale.head_stride];
    default:
      return 1.0f;
  }
}

// The tokens of `tile` for which sees(position) holds, in order.
template <typename T, typename F>
void select_tokens(const Tile<T>& tile, const F& sees, Tile<T>& out) {
  int n = 0;
  for (int i = 0; i < tile.count; ++i) {
    if (!sees(tile.begin + i)) continue;
    out.key()[n] = tile.key()[i];
    out.value()[n] = tile.value()[i];
    out.offset[n] = tile.offset[i];
    out.key_scale[n] = tile.key_scale[i];
    out.value_scale[n] = tile.value_scale[i];
    ++n;
  }
  out.begin = tile.begin;
  out.count = n;
  if (n > 0) out.pad();
}

}  // namespace pagedattn::PAGEDATTN_ISA
