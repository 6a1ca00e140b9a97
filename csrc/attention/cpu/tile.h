// A tile: a few tokens of one sequence, found through the block table. Tiles are counted from token
// 0, so a row meets its tokens in the same groups whatever else is in the batch.
#pragma once

#include "../params.h"
#include "prefetch.h"
#include "register_blocks.h"

namespace pagedattn::PAGEDATTN_ISA {

template <typename T>
struct Tile {
  int begin = 0;  // position that offset[] counts from
  int count = 0;
  // Rows of the unit's first kv head, padded by repeating the last.
  const T* key[kTile + kSoon<T>];
  const T* value[kTile + kSoon<T>];
  float offset[kTile];  // position - begin
  // Where the scales of the first kv head are; not set unless they are per token and head.
  const float* key_scale[kTile];
  const float* value_scale[kTile];

  int num_chunks() const { return (count + kChunk - 1) / kChunk; }

  void pad() {
    for (int i = count; i < kTile + kSoon<T>; ++i) {
      key[i] = key[count - 1];
      value[i] = value[count - 1];
    }
  }
};

// Finds tokens [begin, end), at least one and at most kTile of them, reading only their entries of
// the block table.
template <typename T>
inline void find_tokens(const AttentionParams& params, int seq, int kv_head, int begin, int end,
                        Tile<T>& tile) {
  const KvCacheView& cache = params.cache;
  const int32_t* const block_table = params.block_tables + seq * params.block_table_stride;
  tile.begin = begin;
  tile.count = end - begin;
  int slot = begin % cache.block_size;
  int block_index = begin / cache.block_size;
  for (int i = 0; i < tile.count; ++block_index, slot = 0) {
    const int64_t block = block_table[block_index];
    const int room = cache.block_size - slot;
    const int end_of_block = tile.count - i < room ? tile.count : i + room;
    const auto spread = [&](const auto& view, const auto* data, auto** places) {
      data += kv_head * view.head_stride + block * view.block_stride + slot * view.token_stride;
      for (int t = i; t < end_of_block; ++t, data += view.token_stride) places[t] = data;
    };
    const auto spread_scales = [&](const ScaleView& scale, const float** places) {
      if (scale.kind == ScaleKind::kPerTokenHead) spread(scale, scale.data, places);
    };
    spread(cache.key, static_cast<const T*>(cache.key.data), tile.key);
    spread(cache.value, static_cast<const T*>(cache.value.data), tile.value);
    spread_scales(cache.key.scale, tile.key_scale);
    spread_scales(cache.value.scale, tile.value_scale);
    i = end_of_block;
  }
  for (int i = 0; i < tile.count; ++i) tile.offset[i] = static_cast<float>(i);
  tile.pad();
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

// The order in which a unit reads a tile and goes on to the next: chunk by chunk of the keys, all
// kv heads of each, then the values in the same way. Blocks that hold their heads side by side are
// so read from one end to the other.
template <typename T>
class ReadingOrder {
 public:
  ReadingOrder(const KvCacheView& cache, int num_kv_heads, const Tile<T>& tile, const Tile<T>* next)
      : tile_(tile),
        next_(next),
        num_kv_heads_(num_kv_heads),
        steps_(tile.num_chunks() * num_kv_heads),
        key_head_stride_(cache.key.head_stride),
        value_head_stride_(cache.value.head_stride) {}

  StreamedRows<T> keys(int chunk, int kv_head) const {
    return rows_at(chunk * num_kv_heads_ + kv_head);
  }
  StreamedRows<T> values(int chunk, int kv_head) const {
    return rows_at(steps_ + chunk * num_kv_heads_ + kv_head);
  }

 private:
  // How far ahead memory is asked for a row, in steps.
  static constexpr int kFar = 4;
  static constexpr int kNear = 2;

  StreamedRows<T> rows_at(int step) const {
    if (next_ == nullptr) return StreamedRows<T>(find(step));
    const TokenRows<T> rows = find(step);
    return {rows, prefetch_soon_ ? rows.from(kSoon<T>) : TokenRows<T>(), find(step + kNear),
            find(step + kFar)};
  }

  TokenRows<T> find(int step) const {
    if (step < steps_) return rows_of(tile_.key, key_head_stride_, step);
    if (step < 2 * steps_) return rows_of(tile_.value, value_head_stride_, step - steps_);
    step -= 2 * steps_;
    const int next_steps = next_->num_chunks() * num_kv_heads_;
    return rows_of(next_->key, key_head_stride_, step < next_steps ? step : next_steps - 1);
  }

  TokenRows<T> rows_of(const T* const* tokens, int64_t head_stride, int step) const {
    return {tokens + step / num_kv_heads_ * kChunk, step % num_kv_heads_ * head_stride};
  }

  const Tile<T>& tile_;
  const Tile<T>* const next_;  // null: nothing is asked for ahead
  const int num_kv_heads_;
  const int steps_;  // of the keys, and of the values
  const int64_t key_head_stride_;
  const int64_t value_head_stride_;
  const bool prefetch_soon_ = kSoon<T> > 0 && tuning().prefetch_soon;
};

}  // namespace pagedattn::PAGEDATTN_ISA
