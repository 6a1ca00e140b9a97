// The tree of known prefixes.
//
// A node stands for one exact prefix: its cache salt and all tokens from the start of the prompt
// to the end of one block. It is found by (parent node, the block's tokens) and the tokens are
// compared, so by induction two prompts meet in a node only if they are equal from the start.
//
//      root(no salt)                 root("tenant-a")
//       |          .                      |
//     [t0..t3]   [t0' ..]              [t0..t3]      same tokens, other salt: another prefix
//       |    .
//   [t4..t7] [t4'..]
//
// One child of a node, the first, is named in the node itself ( | ): a prompt that branches off
// nowhere is matched and extended without a hash. The other children ( . ) are in a hash index,
// where hashes only choose where to look.
//
// A node is alive while something refers to it: a child, a block that holds its content, a
// request whose last full block it is, or a pin. A node without a block is a prefix whose content
// is gone; it keeps the way to its descendants, which hit again when the gap is filled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "block_pool.h"
#include "hash_index.h"
#include "reserved_array.h"
#include "token_store.h"
#include "types.h"

namespace pagedattn {

using CacheSalt = std::optional<std::string_view>;

struct PrefixNode {
  PrefixId parent = kNoPrefix;
  PrefixId first_child = kNoPrefix;
  BlockId block = kNoBlock;
  std::int32_t ref_count = 0;
  std::int32_t pin_count = 0;
  bool has_hashed_children = false;  // or had
};

class PrefixIndex {
 public:
  // With room for `expected_prefixes` and the root of prompts without salt. Whoever does not know
  // the secret cannot prepare tokens whose hashes collide, which would make lookups slow.
  PrefixIndex(std::int32_t block_size, std::int32_t expected_prefixes,
              std::uint64_t secret = random_secret());

  // The empty prefix under a salt. find_root gives kNoPrefix for a salt not in use.
  PrefixId find_root(CacheSalt salt) const;
  PrefixId find_or_create_root(CacheSalt salt);
  bool is_root(PrefixId id) const { return node(id).parent == kNoPrefix; }
  CacheSalt root_salt(PrefixId root) const;

  PrefixId find_child(PrefixId parent, const Token* block_tokens) const {
    const PrefixNode& from = node(parent);
    if (from.first_child != kNoPrefix && tokens_.equal(from.first_child, block_tokens)) {
      return from.first_child;
    }
    return from.has_hashed_children ? find_hashed_child(parent, block_tokens) : kNoPrefix;
  }
  PrefixId find_or_create_child(PrefixId parent, const Token* block_tokens) {
    const PrefixId known = find_child(parent, block_tokens);
    return known != kNoPrefix ? known : create_child(parent, block_tokens);
  }

  std::int32_t block_size() const { return block_size_; }
  PrefixNode& node(PrefixId id) { return *nodes_[id]; }
  const PrefixNode& node(PrefixId id) const { return *nodes_[id]; }
  std::vector<Token> block_tokens(PrefixId id) const { return tokens_.get(id); }
  PrefixId ancestor(PrefixId id, std::int64_t levels) const;

  void acquire(PrefixId id) { ++node(id).ref_count; }
  // Forgets the node, and ancestors only it kept, when nothing refers to it any more.
  void release(PrefixId id) {
    if (--node(id).ref_count == 0) forget(id);
  }

  std::int64_t num_nodes() const { return num_ids_ - num_unused_; }
  // Every node id lies below; ids not in use have a ref_count of 0.
  PrefixId end_id() const { return num_ids_; }

 private:
  std::uint64_t child_hash(PrefixId parent, const Token* block_tokens) const {
    return hash_words(secret_, parent, block_tokens, block_size_);
  }
  PrefixId find_hashed_child(PrefixId parent, const Token* block_tokens) const;
  PrefixId create_child(PrefixId parent, const Token* block_tokens);
  PrefixId new_node(PrefixId parent);
  void add_id();
  void forget(PrefixId id);

  std::int32_t block_size_;
  std::uint64_t secret_;
  ReservedArray<PrefixNode> nodes_;
  TokenStore tokens_;
  std::int32_t num_ids_ = 0;
  std::int32_t num_unused_ = 0;
  PrefixId unused_ = kNoPrefix;  // first of a list through PrefixNode::parent
  HashIndex hashed_children_;
  PrefixId unsalted_root_;
  std::unordered_map<std::string, PrefixId> salted_roots_;
  std::unordered_map<PrefixId, std::string> salts_;
};

}  // namespace pagedattn
