// Prefill's units of work: which rows of which sequence are computed together, longest first.
#pragma once

#include "../../params.h"
#include "../../visibility.h"

namespace pagedattn {

constexpr int kMinPrefillRows = 32;   // query rows: tokens x heads of a group
constexpr int kMaxPrefillRows = 768;  // of a unit

// Whether K and V of a sequence are worth packing for a matrix product. Decided by nothing but the
// group and the sequence's own query_len, so that a row's arithmetic does not depend on the batch.
constexpr bool is_prefill(int64_t query_len, int group) {
  return query_len > 1 && query_len * group >= kMinPrefillRows;
}

// Some query tokens of one sequence, for some heads of one group.
struct PrefillUnit {
  int32_t seq;
  int32_t seq_len;
  int32_t query_len;
  int32_t first_row;    // query token within the sequence
  int64_t first_token;  // the same as a row of query and out
  int32_t num_tokens;
  int32_t kv_head;
  int32_t first_head;  // query head
  int32_t num_heads;
  KvRange keys;  // seen by at least one row
};

// Compiled once, not per instruction set: it may use the standard library.
class PrefillPlan {
 public:
  PrefillPlan(const AttentionParams& params, int64_t num_threads);
  ~PrefillPlan();
  PrefillPlan(const PrefillPlan&) = delete;
  PrefillPlan& operator=(const PrefillPlan&) = delete;

  int64_t num_units() const { return num_units_; }
  const PrefillUnit& unit(int64_t i) const { return units_[i]; }
  int max_rows() const { return max_rows_; }  // of any unit

 private:
  PrefillUnit* units_ = nullptr;
  int64_t num_units_ = 0;
  int max_rows_ = 0;
};

}  // namespace pagedattn
