// A unit of prefill: its tiles of keys outermost, each packed once; in a tile, strips of query rows
// go through scores, weights and outputs while their scores are in the L1 cache.
#pragma once

#include <utility>

#include "../softmax.h"
#include "plan.h"
#include "workspace.h"

namespace pagedattn::PAGEDATTN_ISA {

template <typename Kernel>
class PrefillWorker {
 public:
  PrefillWorker(const AttentionParams& params, const Packer<Kernel>& packer, int element_size,
                int max_rows)
      : params_(params),
        packer_(packer),
        element_size_(element_size),
        shape_(params.cache.head_dim),
        work_(shape_, max_rows) {}

  void run(const PrefillUnit& unit) {
    unit_ = &unit;
    num_rows_ = unit.num_tokens * unit.num_heads;
    load_queries();
    walk_tiles();
    write_results();
  }

 private:
  struct Strip {
    int first;  // row of the unit
    int count;
    int padded;    // a multiple of the micro-kernel's rows
    KvRange keys;  // seen by at least one row
  };

  void load_queries() {
    const int padded = round_up(num_rows_, Kernel::kRows);
    const int units = shape_.key_units;
    std::memset(work_.query + int64_t{num_rows_} * units, 0,
                int64_t{padded - num_rows_} * units * sizeof(float));
    std::memset(work_.out, 0, int64_t{padded} * shape_.dims * sizeof(float));
    const float* const slopes = params_.masks.alibi_slopes;
    with_compute_type(params_.dtype, [&](auto type) {
      for (int i = 0; i < num_rows_; ++i) {
        const auto* const row = row_of<decltype(type)>(params_.query, token(i), head(i));
        Kernel::pack_row(row, shape_.head_dim, work_.query + int64_t{i} * units);
      }
    });
    for (int i = 0; i < num_rows_; ++i) {
      PrefillRow& row = rows_[i];
      row.token = i / unit_->num_heads;
      row.position = query_position(unit_->first_row + row.token, unit_->query_len, unit_->seq_len);
      row.keys = visible_range(params_.masks, row.position, unit_->seq_len);
      row.alibi_slope = slopes ? slopes[head(i)] : 0.0f;
      row.reference = -kInfinity;
      for (float& part : row.sum) part = 0.0f;
    }
  }

  void walk_tiles() {
    const KvCacheView& cache = params_.cache;
    const RowFinder key(cache.key, element_size_, unit_->kv_head);
    const RowFinder value(cache.value, element_size_, unit_->kv_head);
    const int32_t* const table = params_.block_tables + unit_->seq * params_.block_table_stride;
    const Logits logits(params_.masks,
                        params_.scale * common_scale(cache.key.scale, unit_->kv_head),
                        cache.key.scale.kind == ScaleKind::kPerTokenHead);
    const KvRange keys = unit_->keys;
    const auto find = [&](int begin, TileRows& rows) {
      find_rows(key, value, table, cache.block_size, begin, keys, rows);
    };
    int begin = keys.begin / kTileTokens * kTileTokens;
    if (begin < keys.end) find(begin, *next_);
    for (; begin < keys.end; begin += kTileTokens) {
      std::swap(tile_, next_);
      packer_.keys(shape_, *tile_, work_.staging, work_.keys);
      const bool finite = packer_.values(shape_, *tile_, work_.values);
      if (!finite) Kernel::zero_nonfinite(work_.values, int64_t{shape_.kTokenUnits} * shape_.dims);
      const bool more = begin + kTileTokens < keys.end;
      if (more) find(begin + kTileTokens, *next_);
      for (int first = 0; first < num_rows_; first += Kernel::kStripRows) {
        attend(make_strip(first), logits, finite);
        if (more) prefetch_next(first);
      }
    }
  }

  // A share of the next tile to the L2 cache, while the arithmetic hides it.
  void prefetch_next(int first_row) const {
    const int row_bytes = shape_.head_dim * element_size_;
    const int begin = kTileTokens * first_row / num_rows_;
    const int end = kTileTokens * (first_row + Kernel::kStripRows) / num_rows_;
    for (int t = begin; t < end && t < kTileTokens; ++t) {
      for (int i = 0; i < row_bytes; i += 64) {
        __builtin_prefetch(next_->key[t] + i, 0, 2);
        __builtin_prefetch(next_->value[t] + i, 0, 2);
      }
    }
  }

  void attend(const Strip& strip, const Logits& logits, bool finite) {
    const KvRange seen = intersect(strip.keys, {tile_->begin, tile_->begin + kTileTokens});
    if (seen.begin == seen.end) return;
    // Whole panels; what they hold beyond `seen` gets weight 0.
    const int from = (seen.begin - tile_->begin) / Kernel::kPanel * Kernel::kPanel;
    const int to = round_up(seen.end - tile_->begin, Kernel::kPanel);
    compute_scores(strip, from, to);
    compute_weights(strip, logits, from, to);
    add_values(strip, seen);
    if (!finite) add_nonfinite_values(strip);
  }

  Strip make_strip(int first) const {
    const int left = num_rows_ - first;
    const int count = left < Kernel::kStripRows ? left : Kernel::kStripRows;
    // Later rows see later keys.
    return {first,
            count,
            round_up(count, Kernel::kRows),
            {rows_[first].keys.begin, rows_[first + count - 1].keys.end}};
  }

  void compute_scores(const Strip& strip, int from, int to) {
    const int units = round_up(shape_.head_dim / Kernel::kElements, Kernel::kUnitStep);
    for (int t = from; t < to; t += Kernel::kPanel) {
      Kernel::multiply({.a = query(strip.first),
                        .lda = shape_.key_units,
                        .b = shape_.key_panel(work_.keys, t),
                        .columns = Kernel::kPanel,
                        .units = units,
                        .c = work_.scores + t,
                        .ldc = kScoreStride,
                        .accumulate = false},
                       strip.padded);
    }
  }

  void compute_weights(const Strip& strip, const Logits& logits, int from, int to) {
    const bool scale_values = params_.cache.value.scale.kind == ScaleKind::kPerTokenHead;
    for (int i = 0; i < strip.count; ++i) {
      PrefillRow& row = rows_[strip.first + i];
      float* const scores = work_.scores + i * kScoreStride;
      if (!logits.only_scaled) logits.finish(row, *tile_, from, to, scores);
      hide_unseen(row, from, to, scores);
      const float correction = update_weights<Kernel>(logits.exponent_scale(),
                                                      scale_values ? tile_->value_scale : nullptr,
                                                      from, to, scores, row);
      if (correction != 1.0f) scale_row(out(strip.first + i), correction);
    }
  }

  void hide_unseen(const PrefillRow& row, int from, int to, float* scores) const {
    const int begin = row.keys.begin - tile_->begin;
    const int end = row.keys.end - tile_->begin;
    for (int t = from; t < begin && t < to; ++t) scores[t] = -kInfinity;
    for (int t = end > from ? end : from; t < to; ++t) scores[t] = -kInfinity;
    if (params_.masks.tree_mask == nullptr) return;
    const int first_draft = unit_->seq_len - unit_->query_len - tile_->begin;
    for (int t = first_draft > from ? first_draft : from; t < to && t < end; ++t) {
      if (!in_tree(row, tile_->begin + t)) scores[t] = -kInfinity;
    }
  }

  bool in_tree(const PrefillRow& row, int position) const {
    const MaskParams& masks = params_.masks;
    const int column = position - (unit_->seq_len - unit_->query_len);
    return masks.tree_mask == nullptr || column < 0 ||
           masks.tree_mask[(unit_->first_token + row.token) * masks.tree_mask_token_stride +
                           column * masks.tree_mask_column_stride];
  }

  void add_values(const Strip& strip, KvRange seen) {
    constexpr int kStep = Kernel::kUnitStep * Kernel::kElements;
    const int from = (seen.begin - tile_->begin) / kStep * kStep;
    const int to = round_up(seen.end - tile_->begin, kStep);
    for (int d = 0; d < shape_.dims; d += Kernel::kPanel) {
      const int width = shape_.panel_width(d);
      Kernel::multiply({.a = work_.scores + from / Kernel::kElements,
                        .lda = kScoreStride,
                        .b = shape_.value_panel(work_.values, d) + from / Kernel::kElements * width,
                        .columns = width,
                        .units = (to - from) / Kernel::kElements,
                        .c = out(strip.first) + d,
                        .ldc = shape_.dims,
                        .accumulate = true},
                       strip.padded);
    }
  }

  // Infinities and NaN among the values were packed as zeros: they may reach only rows that see
  // them, and 0 * NaN is NaN. Rare, so element by element.
  void add_nonfinite_values(const Strip& strip) {
    alignas(64) float value[kMaxHeadDim];
    for (int t = tile_->first; t < tile_->last; ++t) {
      packer_.read(tile_->value[t], shape_.head_dim, value);
      for (int i = 0; i < strip.count; ++i) {
        const PrefillRow& row = rows_[strip.first + i];
        const int position = tile_->begin + t;
        if (position < row.keys.begin || position >= row.keys.end || !in_tree(row, position)) {
          continue;
        }
        const float weight = Kernel::weight(work_.scores + i * kScoreStride, t);
        float* const total = out(strip.first + i);
        for (int d = 0; d < shape_.head_dim; ++d) {
          if (!std::isfinite(value[d])) total[d] += weight * value[d];
        }
      }
    }
  }

  void scale_row(float* row, float factor) const {
    for (int d = 0; d < shape_.dims; d += kWidth) store(row + d, load(row + d) * Vec(factor));
  }

  void write_results() {
    const float value_scale = common_scale(params_.cache.value.scale, unit_->kv_head);
    const float* const sinks = params_.masks.sinks;
    for (int i = 0; i < num_rows_; ++i) {
      const RowResult result = finish_softmax(rows_[i].reference, sum_lanes(load(rows_[i].sum)),
                                              sinks ? sinks + head(i) : nullptr);
      with_compute_type(params_.dtype, [&](auto type) {
        write_row(out(i), result.factor * value_scale, shape_.head_dim,
                  row_of<decltype(type)>(params_.out, token(i), head(i)));
      });
      if (params_.lse) {
        params_.lse[token(i) * params_.lse_token_stride + head(i) * params_.lse_head_stride] =
            result.lse;
      }
    }
  }

  // Row i of the unit is head i % num_heads of token i / num_heads.
  int64_t token(int i) const { return unit_->first_token + i / unit_->num_heads; }
  int head(int i) const { return unit_->first_head + i % unit_->num_heads; }
  const float* query(int i) const { return work_.query + int64_t{i} * shape_.key_units; }
  float* out(int i) const { return work_.out + int64_t{i} * shape_.dims; }

  const AttentionParams& params_;
  const Packer<Kernel> packer_;
  const int element_size_;
  const PackedShape<Kernel> shape_;
  Workspace<Kernel> work_;
  const PrefillUnit* unit_ = nullptr;
  int num_rows_ = 0;
  TileRows tiles_[2];
  TileRows* tile_ = &tiles_[0];
  TileRows* next_ = &tiles_[1];
  PrefillRow rows_[kMaxPrefillRows];
};

}  // namespace pagedattn::PAGEDATTN_ISA
