// The device blocks: reference counts and the two free lists.
//
//   empty   blocks that hold nothing cached; handed out first, most recently freed first
//   cached  free blocks whose content can still be hit; handed out least recently used first
//
// Both lists are threaded through the blocks, so every operation is O(1) and a block costs
// 16 bytes. A block with references is in no list; neither is an idle pinned one.
#pragma once

#include <cstdint>
#include <vector>

#include "types.h"

namespace pagedattn {

// A published prefix in the PrefixIndex.
using PrefixId = std::int32_t;
inline constexpr PrefixId kNoPrefix = -1;

struct Block {
  std::int32_t ref_count = 0;
  BlockId prev = kNoBlock;
  BlockId next = kNoBlock;
  PrefixId prefix = kNoPrefix;  // what the block's content is published as
};

// Doubly linked list through Block::prev and Block::next.
class BlockList {
 public:
  BlockId front() const { return head_; }
  std::int32_t size() const { return size_; }

  void push_front(std::vector<Block>& blocks, BlockId id) { insert(blocks, id, kNoBlock, head_); }
  void push_back(std::vector<Block>& blocks, BlockId id) { insert(blocks, id, tail_, kNoBlock); }

  void remove(std::vector<Block>& blocks, BlockId id) {
    const Block& block = blocks[id];
    (block.prev == kNoBlock ? head_ : blocks[block.prev].next) = block.next;
    (block.next == kNoBlock ? tail_ : blocks[block.next].prev) = block.prev;
    --size_;
  }

 private:
  void insert(std::vector<Block>& blocks, BlockId id, BlockId prev, BlockId next) {
    blocks[id].prev = prev;
    blocks[id].next = next;
    (prev == kNoBlock ? head_ : blocks[prev].next) = id;
    (next == kNoBlock ? tail_ : blocks[next].prev) = id;
    ++size_;
  }

  BlockId head_ = kNoBlock;
  BlockId tail_ = kNoBlock;
  std::int32_t size_ = 0;
};

class BlockPool {
 public:
  // Blocks [first_block, num_blocks) can be handed out, the lowest first.
  BlockPool(std::int32_t num_blocks, BlockId first_block) : blocks_(num_blocks) {
    for (BlockId id = first_block; id < num_blocks; ++id) empty_.push_back(blocks_, id);
  }

  std::int32_t num_blocks() const { return static_cast<std::int32_t>(blocks_.size()); }
  std::int32_t num_free() const { return empty_.size() + cached_.size(); }
  std::int32_t num_cached_free() const { return cached_.size(); }

  Block& operator[](BlockId id) { return blocks_[id]; }
  const Block& operator[](BlockId id) const { return blocks_[id]; }

  const BlockList& empty() const { return empty_; }
  const BlockList& cached() const { return cached_; }

  // The block to hand out next, or kNoBlock.
  BlockId next_free() const { return empty_.size() > 0 ? empty_.front() : cached_.front(); }

  // Takes a block out of, or puts it into, the list that its content calls for.
  void remove_free(BlockId id) {
    (blocks_[id].prefix == kNoPrefix ? empty_ : cached_).remove(blocks_, id);
  }
  void add_free(BlockId id) {
    if (blocks_[id].prefix == kNoPrefix) {
      empty_.push_front(blocks_, id);
    } else {
      cached_.push_back(blocks_, id);
    }
  }

 private:
  std::vector<Block> blocks_;
  BlockList empty_;
  BlockList cached_;
};

}  // namespace pagedattn
