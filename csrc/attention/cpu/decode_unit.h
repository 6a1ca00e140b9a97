// A unit of work with few query rows, as decode has them: walks over its keys tile by tile
// (tile.h); in a tile, blocks of query rows go through scores, softmax (softmax.h) and weighted
// values (products.h).
#pragma once

#include <type_traits>
#include <utility>

#include "../../common/cpu/rows.h"
#include "prefetch.h"
#include "softmax.h"
#include "tile.h"
#include "work.h"

namespace pagedattn::PAGEDATTN_ISA {

// From this many query rows on a tile is widened to float once for all of them.
constexpr int kRowsWorthWidening = 4 * kRowBlock;

template <typename T>
class DecodeUnit {
 public:
  DecodeUnit(const AttentionParams& params, const Unit& unit)
      : params_(params),
        unit_(unit),
        num_rows_(unit.num_tokens * unit.num_heads),
        head_dim_(params.cache.head_dim),
        stride_(round_up(head_dim_, kWidth)),
        query_{query_data_, stride_},
        out_{out_data_, stride_} {
    const KvCacheView& cache = params.cache;
    rule_ = {params.scale * common_scale(cache.key.scale, unit.kv_head), params.masks.softcap,
             cache.key.scale.kind == ScaleKind::kPerTokenHead};
    scale_per_value_ = cache.value.scale.kind == ScaleKind::kPerTokenHead;
  }

  void run() {
    load_queries();
    walk_tiles();
    write_results();
  }

 private:
  void load_queries() {
    with_compute_type(params_.dtype, [&](auto type) {
      for (int i = 0; i < num_rows_; ++i) {
        read_row(row_of<decltype(type)>(params_.query, token(i), head(i)), head_dim_,
                 query_.row(i));
      }
    });
    for (int i = 0; i < num_rows_ * stride_; i += kWidth) store(out_data_ + i, Vec(0.0f));
    const float* const slopes = params_.masks.alibi_slopes;
    for (int i = 0; i < num_rows_; ++i) {
      rows_[i].position =
          query_position(unit_.first_row + i / unit_.num_heads, unit_.query_len, unit_.seq_len);
      rows_[i].alibi_slope = slopes ? slopes[head(i)] : 0.0f;
      rows_[i].max = -kInfinity;
      rows_[i].sum = 0.0f;
    }
  }

  void walk_tiles() {
    const PagedSequence<T> sequence = paged_sequence<T>(params_, unit_.seq, unit_.kv_head);
    Tile<T> tiles[2];
    Tile<T>* tile = &tiles[0];
    Tile<T>* next = &tiles[1];
    const auto find_tile = [&](int begin, Tile<T>& out) {
      const KvRange range = intersect({begin, begin + kTile}, unit_.keys);
      find_tokens(sequence, range.begin, range.end, out);
    };
    int begin = unit_.keys.begin / kTile * kTile;
    if (begin < unit_.keys.end) find_tile(begin, *tile);
    for (; begin < unit_.keys.end; begin += kTile) {
      next->count = 0;
      if (begin + kTile < unit_.keys.end) find_tile(begin + kTile, *next);
      during_values_ = {next->key, next->count, head_dim_};
      if (std::is_same_v<T, float> || num_rows_ < kRowsWorthWidening) {
        during_scores_ = {tile->value, tile->count, head_dim_};
        attend(*tile);
      } else {
        widen(*tile);
        during_scores_ = {next->value, next->count, head_dim_};
        attend(wide_tile_);
      }
      std::swap(tile, next);
    }
  }

  void widen(const Tile<T>& tile) {
    for (int t = 0; t < tile.count; ++t) {
      float* const key = wide_key_ + t * stride_;
      float* const value = wide_value_ + t * stride_;
      read_row(tile.key[t], head_dim_, key);
      read_row(tile.value[t], head_dim_, value);
      wide_tile_.key[t] = key;
      wide_tile_.value[t] = value;
      wide_tile_.offset[t] = tile.offset[t];
      wide_tile_.key_scale[t] = tile.key_scale[t];
      wide_tile_.value_scale[t] = tile.value_scale[t];
    }
    wide_tile_.begin = tile.begin;
    wide_tile_.count = tile.count;
    wide_tile_.pad();
  }

  // Where every row sees the whole tile, rows are taken in blocks across tokens; elsewhere token by
  // token with only the keys that it sees, so that nothing else can reach its output, even as
  // 0 * NaN.
  template <typename U>
  void attend(const Tile<U>& tile) {
    if (all_see(tile.begin, tile.begin + tile.count)) {
      attend_rows(0, num_rows_, tile);
      return;
    }
    Tile<U> seen;
    for (int i = 0; i < unit_.num_tokens; ++i) {
      const KvRange range =
          visible_range(params_.masks, rows_[i * unit_.num_heads].position, unit_.seq_len);
      select_tokens(
          tile,
          [&](int position) {
            return position >= range.begin && position < range.end && in_tree(i, position);
          },
          seen);
      if (seen.count > 0) attend_rows(i * unit_.num_heads, unit_.num_heads, seen);
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

  template <typename U>
  void attend_rows(int first, int count, const Tile<U>& tile) {
    int i = first;
    for (; i + kRowBlock <= first + count; i += kRowBlock) attend_block<kRowBlock>(i, tile);
    switch (first + count - i) {
      case 3:
        return attend_block<3>(i, tile);
      case 2:
        return attend_block<2>(i, tile);
      case 1:
        return attend_block<1>(i, tile);
    }
  }

  template <int Rows, typename U>
  void attend_block(int first, const Tile<U>& tile) {
    alignas(64) float weights_data[Rows * kTile];
    const FloatRows weights{weights_data, kTile};
    const FloatRows query{query_.row(first), stride_};
    const FloatRows out{out_.row(first), stride_};
    query_key_product<Rows>(query, tile.key, tile.count, head_dim_, weights, during_scores_);
    for (int r = 0; r < Rows; ++r) {
      RowState& row = rows_[first + r];
      finish_logits(rule_, row, tile, weights.row(r));
      const float correction = update_softmax(weights.row(r), tile.count, row);
      if (correction != 1.0f) scale_row(out.row(r), correction);
      if (scale_per_value_) {
        for (int t = 0; t < tile.count; ++t) weights.row(r)[t] *= tile.value_scale[t];
      }
    }
    weight_value_product<Rows>(weights, tile.value, tile.count, head_dim_, out, during_values_);
  }

  void scale_row(float* row, float factor) const {
    for (int d = 0; d < stride_; d += kWidth) store(row + d, load(row + d) * Vec(factor));
  }

  void write_results() {
    const float value_scale = common_scale(params_.cache.value.scale, unit_.kv_head);
    const bool partial = params_.partial.partition_size > 0;
    for (int i = 0; i < num_rows_; ++i) {
      const float* const sinks = partial ? nullptr : params_.masks.sinks;
      const RowResult result = finish_softmax(rows_[i], sinks ? sinks + head(i) : nullptr);
      const float factor = result.factor * value_scale;
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

  // Row i of the unit is head i % num_heads of token i / num_heads.
  int64_t token(int i) const { return unit_.first_token + i / unit_.num_heads; }
  int head(int i) const { return unit_.first_head + i % unit_.num_heads; }

  const AttentionParams& params_;
  const Unit& unit_;
  const int num_rows_;
  const int head_dim_;
  const int stride_;
  LogitRule rule_;
  bool scale_per_value_;
  const FloatRows query_;
  const FloatRows out_;
  RowState rows_[kMaxRows];
  // What to ask memory for during each of the two products. The first block of rows of a tile runs
  // them dry; the tile is in the cache for the others.
  RowPrefetcher<T> during_scores_;
  RowPrefetcher<T> during_values_;
  Tile<float> wide_tile_;
  alignas(64) float query_data_[kMaxRows * kMaxHeadDim];
  alignas(64) float out_data_[kMaxRows * kMaxHeadDim];
  alignas(64) float wide_key_[kTile * kMaxHeadDim];
  alignas(64) float wide_value_[kTile * kMaxHeadDim];
};

}  // namespace pagedattn::PAGEDATTN_ISA
