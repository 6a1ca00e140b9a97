// A request's block table and where it stands in the prefix tree.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "block_pool.h"
#include "hash_index.h"
#include "types.h"

namespace pagedattn {

// Two cache lines: a decode step touches one sequence per request.
struct alignas(64) Sequence {
  std::string request_id;
  std::int64_t num_tokens = 0;

  // Block table: entry i holds tokens [i * block_size, (i + 1) * block_size). The first
  // num_given_back entries are kNullBlock (window). Of a swapped sequence: SwappedIds.
  std::vector<BlockId> blocks;
  std::int32_t num_given_back = 0;
  bool is_swapped = false;

  // Entries below were hit or inherited by fork; this sequence filled the others itself.
  std::int32_t first_own_block = 0;

  // Prefix of the full blocks, which this sequence keeps known, and the tokens of the last block
  // if it is partial. Unused without prefix caching.
  PrefixId prefix = kNoPrefix;
  std::vector<Token> partial_tokens;

  std::int64_t window_position = 0;  // of the first token of the last append (window)
  std::uint64_t last_batch = 0;      // number of the last batch call that named this sequence
  std::int32_t slot = -1;            // place in the SequenceMap; -1: not live
  std::int32_t next_in_batch = -1;   // slot of the sequence named after this one in that call
};

// Live sequences by request id.
class SequenceMap {
 public:
  SequenceMap() : secret_(random_secret()), index_(0) {}

  // nullptr if there is none.
  Sequence* find(std::string_view request_id);
  const Sequence* find(std::string_view request_id) const {
    return const_cast<SequenceMap*>(this)->find(request_id);
  }
  // The same, for a caller that has a guess which slot it is in.
  Sequence* find(std::string_view request_id, std::int32_t guess) {
    if (guess >= 0) {
      Sequence* sequence = slots_[guess].get();
      if (sequence->slot >= 0 && sequence->request_id == request_id) return sequence;
    }
    return find(request_id);
  }
  // There must be none of that id.
  Sequence& insert(std::string_view request_id);
  void erase(Sequence& sequence);

  std::int64_t size() const { return index_.size(); }

  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& sequence : slots_) {
      if (sequence->slot >= 0) visit(*sequence);
    }
  }

 private:
  std::uint64_t hash(std::string_view id) const {
    return hash_bytes(secret_, id.data(), id.size());
  }

  std::uint64_t secret_;
  std::vector<std::unique_ptr<Sequence>> slots_;  // addresses stay
  std::vector<std::int32_t> unused_;
  HashIndex index_;
};

}  // namespace pagedattn
