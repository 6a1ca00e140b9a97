// The tokens of each known prefix's last block, kept to be compared.
//
// Four bytes a token, as token ids are small. A block with a token that needs more is kept whole
// in a side table; its row here means nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "block_pool.h"
#include "reserved_array.h"
#include "types.h"

namespace pagedattn {

class TokenStore {
 public:
  TokenStore(std::int64_t block_size, std::int64_t reserved)
      : block_size_(block_size), rows_(block_size, reserved) {}

  void grow_to(std::int64_t size) { rows_.grow_to(size); }

  void set(PrefixId id, const Token* tokens) {
    std::int32_t* row = rows_[id];
    std::int32_t lost = 0;
    for (std::int64_t i = 0; i < block_size_; ++i) {
      const auto low = static_cast<std::int32_t>(tokens[i]);
      const auto high = static_cast<std::int32_t>(static_cast<std::uint64_t>(tokens[i]) >> 32);
      row[i] = low;
      lost |= high ^ (low >> 31);  // what is lost unless the high half is the low half's sign
    }
    if (lost != 0) wide_.emplace(id, std::vector<Token>(tokens, tokens + block_size_));
  }

  // A prefix set before must be cleared before its id is set again.
  void clear(PrefixId id) {
    if (!wide_.empty()) wide_.erase(id);
  }

  bool equal(PrefixId id, const Token* tokens) const {
    if (const std::vector<Token>* wide = find_wide(id)) {
      return std::equal(wide->begin(), wide->end(), tokens);
    }
    const std::int32_t* row = rows_[id];
    Token difference = 0;  // without a branch, so that the loop is one of vectors
    for (std::int64_t i = 0; i < block_size_; ++i) difference |= row[i] ^ tokens[i];
    return difference == 0;
  }

  std::vector<Token> get(PrefixId id) const {
    if (const std::vector<Token>* wide = find_wide(id)) return *wide;
    const std::int32_t* row = rows_[id];
    return {row, row + block_size_};
  }

 private:
  const std::vector<Token>* find_wide(PrefixId id) const {
    if (wide_.empty()) return nullptr;
    const auto found = wide_.find(id);
    return found == wide_.end() ? nullptr : &found->second;
  }

  std::int64_t block_size_;
  ReservedArray<std::int32_t> rows_;
  std::unordered_map<PrefixId, std::vector<Token>> wide_;
};

}  // namespace pagedattn
