// Device blocks and the prefixes they hold, kept consistent: the life of a block.
//
//             allocate              publish (the block is full)
//   empty ----------------> used ---------------------------------> used, published
//     ^                     |  ^                                      |       ^
//     |    last release     |  |  unpublish (overwritten, failed step)|       |
//     +---------------------+  +--------------------------------------+       |
//     |                                                               |       |
//     |                                                  last release |       | acquire: a hit
//     |                                                               v       |
//     +--- allocate evicts the least recently used <------------- free, cached
//
// A pinned prefix's block becomes idle instead of cached: in no free list, still a hit.
// At most one block is published per prefix; a second block with the same content stays private.
#pragma once

#include <cstdint>
#include <vector>

#include "block_pool.h"
#include "kv_events.h"
#include "prefix_index.h"

namespace pagedattn {

class PrefixCache {
 public:
  PrefixCache(std::int32_t num_blocks, BlockId first_block, std::int32_t block_size, bool enabled,
              bool record_events);

  // Whether content is published at all. Without, no prefix or token is kept.
  bool enabled() const { return enabled_; }
  const BlockPool& pool() const { return pool_; }
  PrefixIndex& index() { return index_; }
  const PrefixIndex& index() const { return index_; }
  KvEventLog& events() { return events_; }

  std::int32_t ref_count(BlockId id) const { return pool_[id].ref_count; }
  bool is_published(BlockId id) const { return pool_[id].prefix != kNoPrefix; }
  bool is_pinned(BlockId id) const {
    return is_published(id) && index_.node(pool_[id].prefix).pin_count > 0;
  }
  // Whether a reference to the block takes it from the free blocks, or its last one gives it back.
  bool is_free(BlockId id) const { return ref_count(id) == 0 && !is_pinned(id); }

  // A block nobody holds, with one reference. There must be a free one.
  BlockId allocate();
  // Adds `count` of them to a table.
  void allocate(std::int64_t count, std::vector<BlockId>* table);
  void acquire(BlockId id) {
    if (is_free(id)) pool_.remove_free(id);
    ++pool_[id].ref_count;
  }
  void release(BlockId id) {
    --pool_[id].ref_count;
    if (is_free(id)) pool_.add_free(id);
  }

  // Makes a used block the one that serves hits on the prefix, unless another one does.
  void publish(BlockId id, PrefixId prefix);
  // The same for blocks that follow each other behind `parent` and hold the tokens; returns the
  // prefix of the last one.
  PrefixId publish(Span<const BlockId> blocks, PrefixId parent, const Token* tokens);
  // Makes a block in no free list serve no hits. Nothing happens if it serves none.
  void unpublish(BlockId id);

  void pin(PrefixId prefix);
  void unpin(PrefixId prefix);
  std::int32_t num_pinned_blocks() const { return num_pinned_blocks_; }
  // Pins held, a prefix pinned twice counted twice.
  std::int64_t num_pins() const { return num_pins_; }

  std::int64_t num_evictions() const { return num_evictions_; }
  // Forgets the content of every free block.
  void clear();

 private:
  void record_stored(const PrefixNode& node);
  void prefetch_victims(std::int64_t count) const;
  // Breaks the tie between a block and the prefix it is published as.
  void detach(BlockId id);

  bool enabled_;
  BlockPool pool_;
  PrefixIndex index_;
  KvEventLog events_;
  std::int32_t num_pinned_blocks_ = 0;
  std::int64_t num_pins_ = 0;
  std::int64_t num_evictions_ = 0;
};

}  // namespace pagedattn
