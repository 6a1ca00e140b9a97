// The tree of known prefixes.
//
// A node stands for one exact prefix: its cache salt and all tokens from the start of the prompt
// to the end of one block. It is found by (parent node, the block's tokens) and the tokens are
// compared, so by induction two prompts meet in a node only if they are equal from the start.
// Hashes only choose where to look.
//
//      root(no salt)                 root("tenant-a")
//       |          |                      |
//     [t0..t3]   [t0' ..]              [t0..t3]      same tokens, other salt: another prefix
//       |    |
//   [t4..t7] [t4'..]
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

#include "block_pool.h"
#include "chunked_array.h"
#include "hash_index.h"
#include "types.h"

namespace pagedattn {

using CacheSalt = std::optional<std::string_view>;

struct PrefixNode {
  std::uint64_t hash = 0;  // chained over the whole prefix
  PrefixId parent = kNoPrefix;
  BlockId block = kNoBlock;
  std::int32_t ref_count = 0;
  std::int32_t pin_count = 0;
};

class PrefixIndex {
 public:
  PrefixIndex(std::int32_t block_size, std::int32_t expected_prefixes);

  // The empty prefix under a salt. find_root gives kNoPrefix for a salt not in use.
  PrefixId find_root(CacheSalt salt) const;
  PrefixId find_or_create_root(CacheSalt salt);
  bool is_root(PrefixId id) const { return node(id).parent == kNoPrefix; }
  CacheSalt root_salt(PrefixId root) const;

  // Hash of the prefix that extends one hashed `parent_hash` by a block of tokens.
  std::uint64_t child_hash(std::uint64_t parent_hash, const Token* block_tokens) const {
    return hash_words(secret_, parent_hash, block_tokens, block_size_);
  }
  void prefetch(std::uint64_t hash) const { index_.prefetch(hash); }

  PrefixId find_child(PrefixId parent, std::uint64_t hash, const Token* block_tokens) const;
  PrefixId find_or_create_child(PrefixId parent, std::uint64_t hash, const Token* block_tokens);

  std::int32_t block_size() const { return block_size_; }
  PrefixNode& node(PrefixId id) { return *nodes_[id]; }
  const PrefixNode& node(PrefixId id) const { return *nodes_[id]; }
  const Token* block_tokens(PrefixId id) const { return tokens_[id]; }
  PrefixId ancestor(PrefixId id, std::int64_t levels) const;

  void acquire(PrefixId id) { ++node(id).ref_count; }
  // Forgets the node, and ancestors only it kept, when nothing refers to it any more.
  void release(PrefixId id);

  std::int64_t num_nodes() const { return num_ids_ - num_unused_; }
  // Every node id lies below; ids not in use have a ref_count of 0.
  PrefixId end_id() const { return num_ids_; }

 private:
  PrefixId new_node(PrefixId parent, std::uint64_t hash);

  std::int32_t block_size_;
  std::uint64_t secret_;
  ChunkedArray<PrefixNode> nodes_;
  ChunkedArray<Token> tokens_;
  std::int32_t num_ids_ = 0;
  std::int32_t num_unused_ = 0;
  PrefixId unused_ = kNoPrefix;  // first of a list through PrefixNode::parent
  HashIndex index_;
  PrefixId unsalted_root_;
  std::unordered_map<std::string, PrefixId> salted_roots_;
  std::unordered_map<PrefixId, std::string> salts_;
};

}  // namespace pagedattn
