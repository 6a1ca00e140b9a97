// A unit of work with few query rows, as decode has them: walks over its keys tile by tile
// (tile.h); in a tile, all rows go through scores, softmax (softmax.h) and weighted values.
//
// Products is the arithmetic (fma_products.h, bf16_products.h, int8_products.h), for rows i of the
// query, of `weights` (scores, then weights, of a tile) and of `out`:
//
//   kExpDegree                     of the polynomial for weights (exp2.h)
//   row_stride(head_dim)           floats of a row of out, which it may keep in an order of its own
//   set_query(i, row)              a row of row_stride floats, zeros from head_dim on
//   score(keys, tokens, column, first, count)
//                                  weights[i][column + t] = query[i] . keys[t], first <= i
//   take_weights(i, row)           what weights[i] shall be
//   add_values(values, tokens, column, first, count)
//                                  out[i] += sum over t of weights[i][column + t] * values[t]
//   finish(i)                      out[i] to its natural order
#pragma once

#include <utility>

#include "../../common/cpu/rows.h"
#include "register_blocks.h"
#include "softmax.h"
#include "tile.h"
#include "work.h"

namespace pagedattn::PAGEDATTN_ISA {

template <typename T, typename Products>
class DecodeUnit {
 public:
  DecodeUnit(const AttentionParams& params, const Unit& unit)
      : params_(params),
        unit_(unit),
        rows_per_kv_head_(unit.num_tokens * unit.num_heads),
        num_rows_(rows_per_kv_head_ * unit.num_kv_heads),
        head_dim_(params.cache.head_dim),
        stride_(Products::row_stride(head_dim_)),
        out_{out_data_, stride_},
        products_(head_dim_, rows_per_kv_head_, weights_, out_) {
    const ScaleView& key_scale = params.cache.key.scale;
    for (int k = 0; k < unit.num_kv_heads; ++k) {
      rules_[k] = {params.scale * common_scale(key_scale, unit.kv_head + k), params.masks.softcap,
                   key_scale.kind == ScaleKind::kPerTokenHead};
    }
    scale_per_value_ = params.cache.value.scale.kind == ScaleKind::kPerTokenHead;
  }

  void run() {
    load_queries();
    walk_tiles();
    write_results();
  }

 private:
  void load_queries() {
    for (int i = 0; i < num_rows_ * stride_; i += kWidth) store(out_data_ + i, Vec(0.0f));
    alignas(64) float row[kMaxHeadDim] = {};
    with_compute_type(params_.dtype, [&](auto type) {
      for (int i = 0; i < num_rows_; ++i) {
        read_row(row_of<decltype(type)>(params_.query, token(i), head(i)), head_dim_, row);
        products_.set_query(i, row);
      }
    });
    const float* const slopes = params_.masks.alibi_slopes;
    for (int i = 0; i < num_rows_; ++i) {
      rows_[i].position =
          query_position(unit_.first_row + token_in_unit(i), unit_.query_len, unit_.seq_len);
      rows_[i].alibi_slope = slopes ? slopes[head(i)] : 0.0f;
      rows_[i].reference = -kInfinity;
      rows_[i].sum = Vec(0.0f);
    }
  }

  void walk_tiles() {
    const KvRange keys = unit_.keys;
    const int first_tile = keys.begin / kTile;
    const int num_tiles = keys.begin < keys.end ? (keys.end - 1) / kTile + 1 - first_tile : 0;
    const auto find_tile = [&](int i, Tile<T>& tile) {
      const int begin = (first_tile + i) * kTile;
      const KvRange range = intersect({begin, begin + kTile}, keys);
      find_tokens(params_, unit_.seq, unit_.kv_head, range.begin, range.end, tile);
    };
    Tile<T> tiles[2];
    Tile<T>* tile = &tiles[0];
    Tile<T>* next = &tiles[1];
    if (num_tiles > 0) find_tile(0, *tile);
    for (int i = 0; i < num_tiles; ++i) {
      const bool last = i + 1 == num_tiles;
      if (!last) find_tile(i + 1, *next);
      attend(*tile, last ? *tile : *next);
      std::swap(tile, next);
    }
  }

  // Where every row sees the whole tile, rows are taken in blocks across tokens; elsewhere token by
  // token with only the keys that it sees, so that nothing else can reach its output, even as
  // 0 * NaN.
  void attend(const Tile<T>& tile, const Tile<T>& next) {
    if (all_see(tile.begin, tile.begin + tile.count)) {
      attend_rows(0, rows_per_kv_head_, tile, &next);
      return;
    }
    Tile<T> seen;
    for (int i = 0; i < unit_.num_tokens; ++i) {
      const int row = i * unit_.num_heads;
      const KvRange range = visible_range(params_.masks, rows_[row].position, unit_.seq_len);
      select_tokens(
          tile,
          [&](int position) {
            return position >= range.begin && position < range.end && in_tree(i, position);
          },
          seen);
      if (seen.count > 0) attend_rows(row, unit_.num_heads, seen, nullptr);
    }
  }

  bool all_see(int begin, int end) const {
    const KvRange first = visible_range(params_.masks, rows_[0].position, unit_.seq_len);
    const KvRange last = visible_range(params_.masks, rows_[num_rows_ - 1].position, unit_.seq_len);
    const bool drafts = params_.masks.tree_mask && end > unit_.seq_len - unit_.query_len;
    return begin >= last.begin && end <= first.end && !drafts;
  }

  bool in_tree(int token_in_unit, int position) const {
    const MaskParams& masks = params_.masks;
    const int column = position - (unit_.seq_len - unit_.query_len);
    return masks.tree_mask == nullptr || column < 0 ||
           masks.tree_mask[(unit_.first_token + token_in_unit) * masks.tree_mask_token_stride +
                           column * masks.tree_mask_column_stride];
  }

  // Rows [first, first + count) of each kv head.
  void attend_rows(int first, int count, const Tile<T>& tile, const Tile<T>* next) {
    const ReadingOrder<T> order(params_.cache, unit_.num_kv_heads, tile, next);
    for_chunks(tile, [&](int chunk, int tokens, int k) {
      products_.score(order.keys(chunk, k), tokens, chunk * kChunk, first_row_of(k) + first, count);
    });
    for (int k = 0; k < unit_.num_kv_heads; ++k) {
      weigh_tile(k, first_row_of(k) + first, count, tile);
    }
    for_chunks(tile, [&](int chunk, int tokens, int k) {
      products_.add_values(order.values(chunk, k), tokens, chunk * kChunk, first_row_of(k) + first,
                           count);
    });
  }

  int first_row_of(int kv_head_in_unit) const { return kv_head_in_unit * rows_per_kv_head_; }

  // f(chunk, number of its tokens, kv head) in the order of reading.
  template <typename F>
  void for_chunks(const Tile<T>& tile, const F& f) const {
    for (int chunk = 0; chunk < tile.num_chunks(); ++chunk) {
      const int rest = tile.count - chunk * kChunk;
      for (int k = 0; k < unit_.num_kv_heads; ++k) f(chunk, rest < kChunk ? rest : kChunk, k);
    }
  }

  // From scores to weights, for `count` rows of a kv head.
  void weigh_tile(int kv_head_in_unit, int first, int count, const Tile<T>& tile) {
    const LogitRule& rule = rules_[kv_head_in_unit];
    float key_scales[kTile];
    float value_scales[kTile];
    if (rule.scale_per_key) {
      read_scales(params_.cache.key.scale, tile.key_scale, kv_head_in_unit, tile.count, key_scales);
    }
    if (scale_per_value_) {
      read_scales(params_.cache.value.scale, tile.value_scale, kv_head_in_unit, tile.count,
                  value_scales);
    }
    for (int i = first; i < first + count; ++i) {
      TileRow row;
      finish_logits(rule, rows_[i], tile, key_scales, weights_.row(i), row);
      const float correction = raise_reference<Products::kExpDegree>(row, rows_[i]);
      if (correction != 1.0f) scale_row(out_.row(i), correction);
      weigh<Products::kExpDegree>(row, rows_[i]);
      if (scale_per_value_) {
        for (int v = 0; v < TileRow::kVectors; ++v) {
          row.v[v] = row.v[v] * load(value_scales + v * kWidth);
        }
      }
      products_.take_weights(i, row);
    }
  }

  // Zeros past `count`.
  static void read_scales(const ScaleView& scale, const float* const* places, int kv_head_in_unit,
                          int count, float* out) {
    for (int t = 0; t < count; ++t) out[t] = places[t][kv_head_in_unit * scale.head_stride];
    for (int t = count; t < kTile; ++t) out[t] = 0.0f;
  }

  void scale_row(float* row, float factor) const {
    for (int d = 0; d < stride_; d += kWidth) store(row + d, load(row + d) * Vec(factor));
  }

  void write_results() {
    const bool partial = params_.partial.partition_size > 0;
    for (int i = 0; i < num_rows_; ++i) {
      products_.finish(i);
      const float* const sinks = partial ? nullptr : params_.masks.sinks;
      const RowResult result = finish_softmax(rows_[i].reference, sum_lanes(rows_[i].sum),
                                              sinks ? sinks + head(i) : nullptr);
      const int kv_head = unit_.kv_head + i / rows_per_kv_head_;
      const float factor = result.factor * common_scale(params_.cache.value.scale, kv_head);
      if (partial) {
        write_partial(i, result.lse, factor);
      } else {
        write_output(i, result.lse, factor);
      }
    }
  }

  void write_output(int i, float lse, float factor) {
    with_compute_type(params_.dtype, [&](auto type) {
      write_row(out_.row(i), factor, head_dim_,
                row_of<decltype(type)>(params_.out, token(i), head(i)));
    });
    if (params_.lse) {
      params_.lse[token(i) * params_.lse_token_stride + head(i) * params_.lse_head_stride] = lse;
    }
  }

  void write_partial(int i, float lse, float factor) {
    const PartialParams& partial = params_.partial;
    const int64_t index =
        (token(i) * params_.num_q_heads + head(i)) * partial.num_partitions + unit_.partition;
    write_row(out_.row(i), factor, head_dim_, partial.out + index * head_dim_);
    partial.lse[index] = lse;
  }

  // Rows of the unit: [kv head][token][query head of the kv head].
  int token_in_unit(int i) const { return i / unit_.num_heads % unit_.num_tokens; }
  int64_t token(int i) const { return unit_.first_token + token_in_unit(i); }
  int head(int i) const {
    return unit_.first_head + i / rows_per_kv_head_ * unit_.num_heads + i % unit_.num_heads;
  }

  const AttentionParams& params_;
  const Unit& unit_;
  const int rows_per_kv_head_;
  const int num_rows_;
  const int head_dim_;
  const int stride_;
  LogitRule rules_[kMaxRows];  // of each kv head
  bool scale_per_value_;
  RowState rows_[kMaxRows];
  const ScoreRows weights_{weights_data_};
  const FloatRows out_;
  Products products_;
  alignas(64) float weights_data_[kMaxRows * kTile];
  alignas(64) float out_data_[kMaxRows * kMaxHeadDim];
};

}  // namespace pagedattn::PAGEDATTN_ISA
