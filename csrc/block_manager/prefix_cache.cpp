#include "prefix_cache.h"

#include <algorithm>
#include <utility>

namespace pagedattn {

PrefixCache::PrefixCache(std::int32_t num_blocks, BlockId first_block, std::int32_t block_size,
                         bool enabled, bool record_events)
    : enabled_(enabled),
      pool_(num_blocks, first_block),
      index_(block_size, enabled ? num_blocks : 0),
      events_(record_events) {}

BlockId PrefixCache::allocate() {
  const BlockId id = pool_.next_free();
  pool_.remove_free(id);
  if (is_published(id)) {
    unpublish(id);
    ++num_evictions_;
  }
  pool_[id].ref_count = 1;
  return id;
}

void PrefixCache::allocate(std::int64_t count, std::vector<BlockId>* table) {
  constexpr std::int64_t kAhead = 16;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i % kAhead == 0) prefetch_victims(std::min(kAhead, count - i));
    table->push_back(allocate());
  }
}

// Eviction jumps about in memory, from the block to its prefix. Fetching these for several blocks
// at once hides the latency.
void PrefixCache::prefetch_victims(std::int64_t count) const {
  if (count < 2 || pool_.empty().size() > 0) return;
  BlockId id = pool_.cached().front();
  for (std::int64_t i = 0; i < count; ++i, id = pool_[id].next) {
    __builtin_prefetch(&index_.node(pool_[id].prefix));
  }
}

void PrefixCache::publish(BlockId id, PrefixId prefix) {
  PrefixNode& node = index_.node(prefix);
  if (node.block != kNoBlock) return;
  node.block = id;
  ++node.ref_count;
  pool_[id].prefix = prefix;
  if (node.pin_count > 0) ++num_pinned_blocks_;
  if (events_.enabled()) record_stored(node);
}

PrefixId PrefixCache::publish(Span<const BlockId> blocks, PrefixId parent, const Token* tokens) {
  for (std::int64_t i = 0; i < blocks.size; ++i, tokens += index_.block_size()) {
    parent = index_.find_or_create_child(parent, tokens);
    publish(blocks[i], parent);
  }
  return parent;
}

void PrefixCache::record_stored(const PrefixNode& node) {
  KvEvent& event = events_.add(KvEvent::Kind::kStored);
  event.prefix = pool_[node.block].prefix;
  event.block = node.block;
  event.tokens = index_.block_tokens(event.prefix);
  if (index_.is_root(node.parent)) {
    event.cache_salt = index_.root_salt(node.parent);
  } else {
    event.parent = node.parent;
  }
}

void PrefixCache::unpublish(BlockId id) {
  if (!is_published(id)) return;
  if (events_.enabled()) events_.add(KvEvent::Kind::kRemoved).prefix = pool_[id].prefix;
  detach(id);
}

void PrefixCache::pin(PrefixId prefix) {
  PrefixNode& node = index_.node(prefix);
  if (node.pin_count == 0) {
    if (is_free(node.block)) pool_.remove_free(node.block);
    ++num_pinned_blocks_;
  }
  ++node.pin_count;
  ++num_pins_;
  index_.acquire(prefix);
}

void PrefixCache::unpin(PrefixId prefix) {
  PrefixNode& node = index_.node(prefix);
  --node.pin_count;
  --num_pins_;
  if (node.pin_count == 0 && node.block != kNoBlock) {
    --num_pinned_blocks_;
    if (is_free(node.block)) pool_.add_free(node.block);
  }
  index_.release(prefix);
}

void PrefixCache::clear() {
  while (pool_.num_cached_free() > 0) {
    const BlockId id = pool_.cached().front();
    pool_.remove_free(id);
    detach(id);
    pool_.add_free(id);
  }
  if (events_.enabled()) events_.add(KvEvent::Kind::kCleared);
}

void PrefixCache::detach(BlockId id) {
  const PrefixId prefix = std::exchange(pool_[id].prefix, kNoPrefix);
  PrefixNode& node = index_.node(prefix);
  node.block = kNoBlock;
  if (node.pin_count > 0) --num_pinned_blocks_;
  index_.release(prefix);
}

}  // namespace pagedattn
