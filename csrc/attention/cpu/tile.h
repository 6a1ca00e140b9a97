// A tile: the keys and values of a few tokens of one sequence and kv head, found through the block
// table. Tiles are counted from token 0, so a row meets its tokens in the same groups whatever
// else is in the batch.
#pragma once

#include "../params.h"
#include "products.h"

namespace pagedattn::PAGEDATTN_ISA {

constexpr int kTile = 64;  // divides every partition size of V2
static_assert(kTile % kTokenPad == 0 && kTile % kWidth == 0);

// The keys and values that one unit of work walks over.
template <typename T>
struct PagedSequence {
  const T* key;  // of block 0, offset 0, this kv head
  const T* value;
  const float* key_scale;  // of the same place, or null unless the scale is per token and head
  const float* value_scale;
  const KvCacheView* cache;
  const int32_t* block_table;
};

template <typename T>
struct Tile {
  int begin = 0;  // position that offset[] counts from
  int count = 0;
  const T* key[kTile];  // padded to a multiple of kTokenPad by repeating the last
  const T* value[kTile];
  float offset[kTile];  // position - begin
  float key_scale[kTile];
  float value_scale[kTile];

  void pad() {
    for (int i = count; i % kTokenPad != 0; ++i) key[i] = key[count - 1];
  }
};

inline const float* token_head_scale(const ScaleView& scale, int kv_head) {
  return scale.kind == ScaleKind::kPerTokenHead ? scale.data + kv_head * scale.head_stride
                                                : nullptr;
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

template <typename T>
PagedSequence<T> paged_sequence(const AttentionParams& params, int seq, int kv_head) {
  const KvCacheView& cache = params.cache;
  return {static_cast<const T*>(cache.key.data) + kv_head * cache.key.head_stride,
          static_cast<const T*>(cache.value.data) + kv_head * cache.value.head_stride,
          token_head_scale(cache.key.scale, kv_head),
          token_head_scale(cache.value.scale, kv_head),
          &cache,
          params.block_tables + seq * params.block_table_stride};
}

// Finds tokens [begin, end), at most kTile of them, reading only their entries of the block table.
template <typename T>
void find_tokens(const PagedSequence<T>& sequence, int begin, int end, Tile<T>& tile) {
  const KvCacheView& cache = *sequence.cache;
  const ScaleView& ks = cache.key.scale;
  const ScaleView& vs = cache.value.scale;
  tile.begin = begin;
  tile.count = end - begin;
  int block_index = begin / cache.block_size;
  int slot = begin % cache.block_size;
  for (int i = 0; i < tile.count; ++block_index, slot = 0) {
    const int64_t block = sequence.block_table[block_index];
    const T* const key = sequence.key + block * cache.key.block_stride;
    const T* const value = sequence.value + block * cache.value.block_stride;
    for (; slot < cache.block_size && i < tile.count; ++slot, ++i) {
      tile.key[i] = key + slot * cache.key.token_stride;
      tile.value[i] = value + slot * cache.value.token_stride;
      tile.offset[i] = static_cast<float>(i);
      if (sequence.key_scale) {
        tile.key_scale[i] = sequence.key_scale[block * ks.block_stride + slot * ks.token_stride];
      }
      if (sequence.value_scale) {
        tile.value_scale[i] =
            sequence.value_scale[block * vs.block_stride + slot * vs.token_stride];
      }
    }
  }
  tile.pad();
}

// The tokens of `tile` for which sees(position) holds, in order.
template <typename T, typename F>
void select_tokens(const Tile<T>& tile, const F& sees, Tile<T>& out) {
  int n = 0;
  for (int i = 0; i < tile.count; ++i) {
    if (!sees(tile.begin + i)) continue;
    out.key[n] = tile.key[i];
    out.value[n] = tile.value[i];
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
