#include "prefix_index.h"

#include <cstring>

namespace pagedattn {

PrefixIndex::PrefixIndex(std::int32_t block_size, std::int32_t expected_prefixes)
    : block_size_(block_size),
      secret_(random_secret()),
      nodes_(1),
      tokens_(block_size),
      index_(expected_prefixes) {
  unsalted_root_ = new_node(kNoPrefix, mix(secret_, kMixA));
  acquire(unsalted_root_);  // never forgotten
}

PrefixId PrefixIndex::find_root(CacheSalt salt) const {
  if (!salt) return unsalted_root_;
  const auto found = salted_roots_.find(std::string(*salt));
  return found == salted_roots_.end() ? kNoPrefix : found->second;
}

PrefixId PrefixIndex::find_or_create_root(CacheSalt salt) {
  const PrefixId known = find_root(salt);
  if (known != kNoPrefix) return known;
  const PrefixId id = new_node(kNoPrefix, hash_bytes(secret_, salt->data(), salt->size()));
  salted_roots_.emplace(*salt, id);
  salts_.emplace(id, *salt);
  return id;
}

CacheSalt PrefixIndex::root_salt(PrefixId root) const {
  const auto found = salts_.find(root);
  return found == salts_.end() ? CacheSalt() : CacheSalt(found->second);
}

PrefixId PrefixIndex::find_child(PrefixId parent, std::uint64_t hash,
                                 const Token* block_tokens) const {
  return index_.find(hash, [&](PrefixId id) {
    return node(id).parent == parent &&
           std::memcmp(tokens_[id], block_tokens, block_size_ * sizeof(Token)) == 0;
  });
}

PrefixId PrefixIndex::find_or_create_child(PrefixId parent, std::uint64_t hash,
                                           const Token* block_tokens) {
  const PrefixId known = find_child(parent, hash, block_tokens);
  if (known != kNoPrefix) return known;
  const PrefixId id = new_node(parent, hash);
  std::memcpy(tokens_[id], block_tokens, block_size_ * sizeof(Token));
  index_.insert(hash, id);
  acquire(parent);
  return id;
}

PrefixId PrefixIndex::ancestor(PrefixId id, std::int64_t levels) const {
  for (; levels > 0; --levels) id = node(id).parent;
  return id;
}

void PrefixIndex::release(PrefixId id) {
  while (id != kNoPrefix && --node(id).ref_count == 0) {
    const PrefixId parent = node(id).parent;
    if (parent != kNoPrefix) {
      index_.erase(node(id).hash, id);
    } else {
      const auto salt = salts_.find(id);
      salted_roots_.erase(salt->second);
      salts_.erase(salt);
    }
    node(id).parent = unused_;
    unused_ = id;
    ++num_unused_;
    id = parent;
  }
}

PrefixId PrefixIndex::new_node(PrefixId parent, std::uint64_t hash) {
  PrefixId id;
  if (unused_ != kNoPrefix) {
    id = unused_;
    unused_ = node(id).parent;
    --num_unused_;
  } else {
    id = num_ids_++;
    nodes_.grow_to(num_ids_);
    tokens_.grow_to(num_ids_);
  }
  node(id) = {hash, parent, kNoBlock, 0, 0};
  return id;
}

}  // namespace pagedattn
