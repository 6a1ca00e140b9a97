// A unit of work with few query rows, as decode has them: walks over its keys tile by tile
// (tile.h); in a tile, blocks of query rows go through scores, softmax (softmax.h) and weighted
// values (products.h).
#pragma once

#include <type_traits>
#include <utility>

#include "../../common/cpu/rows.h"
#include "prefetch.h"
#include "products.h"
#include "softmax.h"
#include "tile.h"
#include "work.h"

namespace pagedattn::PAGEDATTN_ISA {

// From this many query rows on a tile is widened to float once for all of them.
constexpr int kRowsWorthWidening = 4 * kRowBlock;

constexpr int kWideRows = 16;  // that are widened at a time
static_assert(kTile % kWideRows == 0 && kWideRows % kTokenPad == 0);

// 8-bit rows are always widened first: what that costs over widening in the registers is less than
// three more builds of the products.
template <typename T>
constexpr bool kFeedsProducts = sizeof(T) > 1;

template <typename T>
class DecodeUnit {
 public:
  DecodeUnit(const AttentionParams& params, const Unit& unit)
      : params_(params),
        unit_(unit),
        rows_per_kv_head_(unit.num_tokens * unit.num_heads),
        num_rows_(rows_per_kv_head_ * unit.num_kv_heads),
        head_dim_(params.cache.head_dim),
        stride_(round_up(head_dim_, kPair)),
        widens_(!kFeedsProducts<T> || rows_per_kv_head_ >= kRowsWorthWidening),
        query_{query_data_, stride_},
        out_{out_data_, stride_} {
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
    for (int i = 0; i < num_rows_ * stride_; i += kWidth) {
      store(query_data_ + i, Vec(0.0f));
      store(out_data_ + i, Vec(0.0f));
    }
    with_compute_type(params_.dtype, [&](auto type) {
      for (int i = 0; i < num_rows_; ++i) {
        read_row(row_of<decltype(type)>(params_.query, token(i), head(i)), head_dim_,
                 query_.row(i));
        to_pair_order<T>(query_.row(i), stride_);
      }
    });
    const float* const slopes = params_.masks.alibi_slopes;
    for (int i = 0; i < num_rows_; ++i) {
      rows_[i].position =
          query_position(unit_.first_row + token_in_unit(i), unit_.query_len, unit_.seq_len);
      rows_[i].alibi_slope = slopes ? slopes[head(i)] : 0.0f;
      rows_[i].max = -kInfinity;
      rows_[i].sum = Vec(0.0f);
    }
    for (int t = 0; t < kWideRows; ++t) wide_rows_[t] = wide_data_ + t * stride_;
  }

  // Tile by tile, and in each the kv heads in turn.
  void walk_tiles() {
    const KvRange keys = unit_.keys;
    const int first_tile = keys.begin / kTile;
    const int num_tiles = keys.begin < keys.end ? (keys.end - 1) / kTile + 1 - first_tile : 0;
    const int num_steps = num_tiles * unit_.num_kv_heads;
    TokenPlaces places;
    const auto find_step = [&](int step, Tile<T>& tile) {
      const int kv_head_in_unit = step % unit_.num_kv_heads;
      if (kv_head_in_unit == 0) {
        const int begin = (first_tile + step / unit_.num_kv_heads) * kTile;
        const KvRange range = intersect({begin, begin + kTile}, keys);
        find_tokens(params_, unit_.seq, range.begin, range.end, places);
      }
      make_tile(params_.cache, places, unit_.kv_head + kv_head_in_unit, tile);
    };
    Tile<T> tiles[2];
    Tile<T>* tile = &tiles[0];
    Tile<T>* next = &tiles[1];
    if (num_steps > 0) find_step(0, *tile);
    for (int step = 0; step < num_steps; ++step) {
      const bool last = step + 1 == num_steps;
      if (!last) find_step(step + 1, *next);
      for (int t = 0; t < kTile; ++t) {
        tile->next_key()[t] = last ? tile->value()[kTile - 1] : next->key()[t];
      }
      attend(*tile, step % unit_.num_kv_heads);
      std::swap(tile, next);
    }
  }

  // Where every row sees the whole tile, rows are taken in blocks across tokens; elsewhere token by
  // token with only the keys that it sees, so that nothing else can reach its output, even as
  // 0 * NaN.
  void attend(const Tile<T>& tile, int kv_head_in_unit) {
    const LogitRule& rule = rules_[kv_head_in_unit];
    const int first = kv_head_in_unit * rows_per_kv_head_;
    if (all_see(tile.begin, tile.begin + tile.count)) {
      attend_rows(first, rows_per_kv_head_, rule, tile, RowStream(tile.rows, head_dim_));
      return;
    }
    Tile<T> seen;
    for (int i = 0; i < unit_.num_tokens; ++i) {
      const int row = first + i * unit_.num_heads;
      const KvRange range = visible_range(params_.masks, rows_[row].position, unit_.seq_len);
      select_tokens(
          tile,
          [&](int position) {
            return position >= range.begin && position < range.end && in_tree(i, position);
          },
          seen);
      if (seen.count > 0) attend_rows(row, unit_.num_heads, rule, seen, {});
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

  void attend_rows(int first, int count, const LogitRule& rule, const Tile<T>& tile,
                   const RowStream& stream) {
    read_rows(tile.key(), tile.count, stream, [&](const auto& keys) {
      for_row_blocks(first, count, [&](auto rows, int i) __attribute__((always_inline)) {
        query_key_product<rows()>({query_.row(i), stride_}, keys.rows, keys.count, keys.head_dim,
                                  {weights_.row(i) + keys.begin, kTile},
                                  i == first ? keys.stream : RowStream());
      });
    });
    // Step by step for all rows, so that the steps of one row, each of which waits for the one
    // before, overlap with those of the others.
    for (int i = first; i < first + count; ++i) {
      finish_logits(rule, rows_[i], tile, weights_.row(i));
    }
    for (int i = first; i < first + count; ++i) {
      const float correction = raise_max(weights_.row(i), tile.count, rows_[i]);
      if (correction != 1.0f) scale_row(out_.row(i), correction);
    }
    for (int i = first; i < first + count; ++i) {
      weigh(weights_.row(i), tile.count, rows_[i]);
      if (scale_per_value_) {
        for (int t = 0; t < tile.count; ++t) weights_.row(i)[t] *= tile.value_scale[t];
      }
    }
    read_rows(tile.value(), tile.count, stream.from(kTile), [&](const auto& values) {
      for_row_blocks(first, count, [&](auto rows, int i) __attribute__((always_inline)) {
        weight_value_product<rows()>({weights_.row(i) + values.begin, kTile}, values.rows,
                                     values.count, values.head_dim, {out_.row(i), stride_},
                                     i == first ? values.stream : RowStream());
      });
    });
  }

  // Rows [begin, begin + count) of a tile as the products take them.
  template <typename U>
  struct Rows {
    const U* const* rows;
    int begin;
    int count;
    int head_dim;
    RowStream stream;  // for the first who reads them
  };

  // f(Rows) for rows that together are `rows`: widened a few at a time, so that they stay in the L1
  // cache, or as they are.
  template <typename F>
  void read_rows(const T* const* rows, int count, const RowStream& stream, const F& f) {
    if constexpr (!std::is_same_v<T, float>) {
      if (widens_) {
        for (int begin = 0; begin < count; begin += kWideRows) {
          const int end = begin + kWideRows < count ? begin + kWideRows : count;
          stream.reading(begin, kWideRows);
          for (int t = 0; t < round_up(end - begin, kTokenPad); ++t)
            widen(rows[begin + t], wide_rows_[t]);
          f(Rows<float>{wide_rows_, begin, end - begin, stride_, {}});  // padded with zeros
        }
        return;
      }
    }
    if constexpr (kFeedsProducts<T>) f(Rows<T>{rows, 0, count, head_dim_, stream});
  }

  void widen(const T* row, float* out) const {
    for_each_pair<T>(head_dim_, [=](int d, const auto& load_row) __attribute__((always_inline)) {
      Vec pair[2];
      load_row(row, pair);
      store(out + d, pair[0]);
      store(out + d + kWidth, pair[1]);
    });
  }

  // f(number of rows as a constant, first row) for blocks of rows.
  template <typename F>
  static void for_row_blocks(int first, int count, const F& f) {
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

  void scale_row(float* row, float factor) const {
    for (int d = 0; d < stride_; d += kWidth) store(row + d, load(row + d) * Vec(factor));
  }

  void write_results() {
    const bool partial = params_.partial.partition_size > 0;
    for (int i = 0; i < num_rows_; ++i) {
      to_natural_order<T>(out_.row(i), stride_);
      const float* const sinks = partial ? nullptr : params_.masks.sinks;
      const RowResult result =
          finish_softmax(rows_[i].max, sum_lanes(rows_[i].sum), sinks ? sinks + head(i) : nullptr);
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
  const bool widens_;
  LogitRule rules_[kMaxRows];  // of each kv head
  bool scale_per_value_;
  const FloatRows query_;
  const FloatRows out_;
  RowState rows_[kMaxRows];
  const FloatRows weights_{weights_data_, kTile};  // scores, then weights, of a tile
  float* wide_rows_[kWideRows];
  alignas(64) float weights_data_[kMaxRows * kTile];
  alignas(64) float query_data_[kMaxRows * kMaxHeadDim];
  alignas(64) float out_data_[kMaxRows * kMaxHeadDim];
  alignas(64) float wide_data_[kWideRows * kMaxHeadDim];
};

}  // namespace pagedattn::PAGEDATTN_ISA
