#include "prefix_index.h"

#include <utility>

namespace pagedattn {

inline PrefixId PrefixIndex::new_node(PrefixId parent) {
  if (unused_ == kNoPrefix) add_id();
  const PrefixId id = unused_;
  PrefixNode& made = node(id);
  unused_ = made.parent;
  --num_unused_;
  made = PrefixNode();
  made.parent = parent;
  return id;
}

void PrefixIndex::add_id() {
  unused_ = num_ids_++;
  ++num_unused_;
  nodes_.grow_to(num_ids_);
  tokens_.grow_to(num_ids_);
}

PrefixIndex::PrefixIndex(std::int32_t block_size, std::int32_t expected_prefixes,
                         std::uint64_t secret)
    : block_size_(block_size),
      secret_(secret),
      nodes_(1, std::int64_t{expected_prefixes} + 1),
      tokens_(block_size, std::int64_t{expected_prefixes} + 1),
      hashed_children_(expected_prefixes) {
  unsalted_root_ = new_node(kNoPrefix);
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
  const PrefixId id = new_node(kNoPrefix);
  salted_roots_.emplace(*salt, id);
  salts_.emplace(id, *salt);
  return id;
}

CacheSalt PrefixIndex::root_salt(PrefixId root) const {
  const auto found = salts_.find(root);
  return found == salts_.end() ? CacheSalt() : CacheSalt(found->second);
}

PrefixId PrefixIndex::find_hashed_child(PrefixId parent, const Token* block_tokens) const {
  return hashed_children_.find(child_hash(parent, block_tokens), [&](PrefixId id) {
    return node(id).parent == parent && tokens_.equal(id, block_tokens);
  });
}

PrefixId PrefixIndex::create_child(PrefixId parent, const Token* block_tokens) {
  const PrefixId id = new_node(parent);
  tokens_.set(id, block_tokens);
  PrefixNode& from = node(parent);
  ++from.ref_count;
  if (from.first_child == kNoPrefix) {
    from.first_child = id;
  } else {
    from.has_hashed_children = true;
    hashed_children_.insert(child_hash(parent, block_tokens), id);
  }
  return id;
}

PrefixId PrefixIndex::ancestor(PrefixId id, std::int64_t levels) const {
  for (; levels > 0; --levels) id = node(id).parent;
  return id;
}

void PrefixIndex::forget(PrefixId id) {
  while (true) {
    const PrefixId parent = std::exchange(node(id).parent, unused_);
    unused_ = id;
    ++num_unused_;
    if (parent == kNoPrefix) {
      const auto salt = salts_.find(id);
      salted_roots_.erase(salt->second);
      salts_.erase(salt);
      return;
    }
    PrefixNode& from = node(parent);
    if (from.first_child == id) {
      from.first_child = kNoPrefix;
    } else {
      hashed_children_.erase(child_hash(parent, tokens_.get(id).data()), id);
    }
    tokens_.clear(id);
    if (--from.ref_count > 0) return;
    id = parent;
  }
}

}  // namespace pagedattn
