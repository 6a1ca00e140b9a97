// Growth of a request: copy on write, the sliding window, slots.
#include <algorithm>
#include <utility>

#include "block_manager.h"

namespace pagedattn {

std::optional<BlockCopy> BlockManager::append(std::string_view request_id, TokenSpan tokens,
                                              Span<std::int64_t> slots) {
  Sequence& sequence = find_resident(request_id);
  std::optional<BlockCopy> copy;
  if (const auto shortage = grow(sequence, tokens, slots.data, &copy)) {
    throw OutOfBlocks(OutOfBlocks::Pool::kDevice, request_id, shortage->needed, shortage->free,
                      capacity());
  }
  return copy;
}

std::optional<BlockManager::Shortage> BlockManager::grow(Sequence& sequence, TokenSpan tokens,
                                                         std::int64_t* slots,
                                                         std::optional<BlockCopy>* copy) {
  if (tokens.size == 0 || grow_in_place(sequence, tokens, slots)) return std::nullopt;
  return grow_table(sequence, tokens, slots, copy);
}

// Most decode steps: the tokens go into the last block, which nobody else holds or could hit. Does
// nothing and returns false where this is not so.
inline bool BlockManager::grow_in_place(Sequence& sequence, TokenSpan tokens, std::int64_t* slots) {
  const auto size = static_cast<std::int64_t>(sequence.blocks.size());
  const std::int64_t room = size * block_size_ - sequence.num_tokens;
  if (room < tokens.size || config_.window) return false;
  const BlockId block = sequence.blocks.back();
  if (cache_.ref_count(block) != 1 || cache_.is_published(block)) return false;
  sequence.first_own_block =
      std::min(sequence.first_own_block, static_cast<std::int32_t>(size - 1));
  sequence.num_tokens += tokens.size;
  if (slots != nullptr) {
    std::int64_t slot = (block + std::int64_t{1}) * block_size_ - room;
    for (std::int64_t i = 0; i < tokens.size; ++i) slots[i] = slot++;
  }
  add_tokens(sequence, size - 1, tokens);
  return true;
}

std::optional<BlockManager::Shortage> BlockManager::grow_table(Sequence& sequence, TokenSpan tokens,
                                                               std::int64_t* slots,
                                                               std::optional<BlockCopy>* copy) {
  std::vector<BlockId>& blocks = sequence.blocks;
  const auto old_size = static_cast<std::int64_t>(blocks.size());
  const std::int64_t new_size = table_size_after(sequence, tokens.size);
  const bool writes_into_last = sequence.num_tokens < old_size * block_size_;
  const std::int64_t first_block = old_size - writes_into_last;
  const bool must_copy = writes_into_last && is_shared(blocks.back());

  const std::int64_t num_expired = num_expired_blocks(sequence);
  std::int64_t needed = new_size - old_size + must_copy;
  for (std::int64_t i = sequence.num_given_back; i < num_expired; ++i) {
    needed -= cache_.ref_count(blocks[i]) == 1 && !cache_.is_pinned(blocks[i]);
  }
  if (needed > num_free_blocks()) return Shortage{needed, num_free_blocks()};

  if (config_.window) {
    give_back(sequence, num_expired);
    sequence.window_position = sequence.num_tokens;
  }
  if (must_copy) {
    const BlockId shared = blocks.back();
    blocks.back() = cache_.allocate();
    cache_.release(shared);
    *copy = BlockCopy{shared, blocks.back()};
    ++num_copies_on_write_;
  } else if (writes_into_last) {
    cache_.unpublish(blocks.back());
  }
  cache_.allocate(new_size - old_size, &blocks);
  sequence.first_own_block =
      std::min(sequence.first_own_block, static_cast<std::int32_t>(first_block));
  sequence.num_tokens += tokens.size;
  if (slots != nullptr) write_slots(sequence, tokens.size, slots);
  add_tokens(sequence, first_block, tokens);
  return std::nullopt;
}

// A pin holds the block's content as another request would; the running batch's own reference does
// not, as its copies run before its writes.
bool BlockManager::is_shared(BlockId block) const {
  const std::int32_t ref_count = cache_.ref_count(block);
  if (ref_count > 1 && ref_count - static_cast<std::int32_t>(held_sources_.count(block)) > 1) {
    return true;
  }
  return cache_.is_pinned(block);
}

// How many leading blocks no query from the next position on can see.
std::int64_t BlockManager::num_expired_blocks(const Sequence& sequence) const {
  if (!config_.window) return 0;
  return std::max<std::int64_t>(
      sequence.num_given_back,
      std::max<std::int64_t>(0, sequence.num_tokens - *config_.window) / block_size_);
}

void BlockManager::give_back(Sequence& sequence, std::int64_t num_expired) {
  for (std::int64_t i = num_expired; i-- > sequence.num_given_back;) {
    cache_.release(std::exchange(sequence.blocks[i], kNullBlock));
  }
  sequence.num_given_back = static_cast<std::int32_t>(num_expired);
}

void BlockManager::write_slots(const Sequence& sequence, std::int64_t count,
                               std::int64_t* slots) const {
  // Backwards from the end of the table, whose last block is the partial one.
  auto block = static_cast<std::int64_t>(sequence.blocks.size()) - 1;
  std::int64_t position = sequence.num_tokens - block * block_size_;
  slots += count;
  for (; count > 0; --block, position = block_size_) {
    const std::int64_t base = sequence.blocks[block] * block_size_;
    const std::int64_t taken = std::min(position, count);
    for (std::int64_t i = 0; i < taken; ++i) *--slots = base + --position;
    count -= taken;
  }
}

}  // namespace pagedattn
