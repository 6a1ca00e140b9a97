#include "plan.h"

#include <algorithm>
#include <vector>

namespace pagedattn {
namespace {

// Packing a tile of K and V is paid once per unit, so units are large, unless threads would idle.
// The size is free to depend on the batch: no row's arithmetic depends on it.
constexpr int kMinUnitRows = 64;
constexpr int64_t kUnitsPerThread = 6;

struct Sequence {
  int32_t seq;
  int32_t query_len;
  int32_t seq_len;
};

std::vector<Sequence> prefill_sequences(const AttentionParams& params) {
  std::vector<Sequence> sequences;
  if (params.cu_seqlens_q == nullptr) return sequences;
  const int group = params.num_q_heads / params.cache.num_kv_heads;
  for (int32_t seq = 0; seq < params.num_seqs; ++seq) {
    const int32_t query_len = params.cu_seqlens_q[seq + 1] - params.cu_seqlens_q[seq];
    if (!is_prefill(query_len, group)) continue;
    const int64_t seq_len = std::clamp<int64_t>(params.seq_lens[seq], 0, params.max_seq_len);
    sequences.push_back({seq, query_len, static_cast<int32_t>(seq_len)});
  }
  return sequences;
}

int64_t divide_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

// The units of one token tile: one for each kv head and chunk of its group.
void add_units(const AttentionParams& params, const Sequence& sequence, int first_row,
               int num_tokens, int heads_per_unit, std::vector<PrefillUnit>& units) {
  const int group = params.num_q_heads / params.cache.num_kv_heads;
  PrefillUnit unit{};
  unit.seq = sequence.seq;
  unit.seq_len = sequence.seq_len;
  unit.query_len = sequence.query_len;
  unit.first_row = first_row;
  unit.first_token = int64_t{params.cu_seqlens_q[sequence.seq]} + first_row;
  unit.num_tokens = num_tokens;
  const int first_position = query_position(first_row, unit.query_len, unit.seq_len);
  const int last_position = first_position + num_tokens - 1;
  unit.keys = {visible_range(params.masks, first_position, unit.seq_len).begin,
               visible_range(params.masks, last_position, unit.seq_len).end};
  for (int kv_head = 0; kv_head < params.cache.num_kv_heads; ++kv_head) {
    for (int head = 0; head < group; head += heads_per_unit) {
      unit.kv_head = kv_head;
      unit.first_head = kv_head * group + head;
      unit.num_heads = std::min(heads_per_unit, group - head);
      units.push_back(unit);
    }
  }
}

int64_t cost(const PrefillUnit& unit) {
  return int64_t{unit.keys.end - unit.keys.begin} * unit.num_tokens * unit.num_heads;
}

}  // namespace

PrefillPlan::PrefillPlan(const AttentionParams& params, int64_t num_threads) {
  const std::vector<Sequence> sequences = prefill_sequences(params);
  if (sequences.empty()) return;
  const int kv_heads = params.cache.num_kv_heads;
  const int group = params.num_q_heads / kv_heads;
  const int heads = std::min(group, kMaxPrefillRows);
  const auto count_units = [&](int tokens) {
    int64_t tiles = 0;
    for (const Sequence& sequence : sequences) tiles += divide_up(sequence.query_len, tokens);
    return tiles * kv_heads * divide_up(group, heads);
  };
  int tokens = kMaxPrefillRows / heads;
  while (tokens * heads >= 2 * kMinUnitRows &&
         count_units(tokens) < kUnitsPerThread * num_threads) {
    tokens /= 2;
  }
  max_rows_ = tokens * heads;

  std::vector<PrefillUnit> units;
  units.reserve(count_units(tokens));
  for (const Sequence& sequence : sequences) {
    for (int row = 0; row < sequence.query_len; row += tokens) {
      add_units(params, sequence, row, std::min(tokens, sequence.query_len - row), heads, units);
    }
  }
  std::stable_sort(units.begin(), units.end(),
                   [](const PrefillUnit& a, const PrefillUnit& b) { return cost(a) > cost(b); });
  num_units_ = static_cast<int64_t>(units.size());
  units_ = new PrefillUnit[units.size()];
  std::copy(units.begin(), units.end(), units_);
}

PrefillPlan::~PrefillPlan() { delete[] units_; }

}  // namespace pagedattn
