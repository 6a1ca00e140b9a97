// Moving requests between the device and the host.
#include <algorithm>

#include "block_manager.h"

namespace pagedattn {

std::vector<BlockMove> BlockManager::swap_out(std::string_view request_id) {
  Sequence& sequence = find_resident(request_id);
  const auto begin = sequence.blocks.begin() + sequence.num_given_back;
  const auto end = sequence.blocks.end();
  // A block leaves the device when, after this call, only swapped requests hold it.
  const auto leaves = [&](BlockId block) {
    return cache_.ref_count(block) == swap_space_.num_holders_of(block) + 1 &&
           !cache_.is_pinned(block);
  };
  const std::int64_t needed = std::count_if(begin, end, leaves);
  if (needed > num_host_free_blocks()) {
    throw OutOfBlocks(OutOfBlocks::Pool::kHost, request_id, needed, num_host_free_blocks(),
                      swap_space_.num_host_blocks());
  }

  std::vector<BlockMove> moves;
  for (auto entry = begin; entry != end; ++entry) {
    const BlockId block = *entry;
    const bool moves_now = leaves(block);
    *entry = swap_space_.hold(block);
    if (moves_now) moves.push_back({block, swap_space_.move_to_host(*entry)});
  }
  sequence.is_swapped = true;
  // Later blocks first: they become the first to evict.
  for (auto move = moves.rbegin(); move != moves.rend(); ++move) {
    while (cache_.ref_count(move->src) > 0) cache_.release(move->src);
  }
  return moves;
}

std::vector<BlockMove> BlockManager::swap_in(std::string_view request_id) {
  Sequence& sequence = find(request_id);
  if (!sequence.is_swapped) {
    throw std::invalid_argument(request_name(request_id) + " is not swapped out");
  }
  const auto begin = sequence.blocks.begin() + sequence.num_given_back;
  const auto end = sequence.blocks.end();
  const std::int64_t needed = std::count_if(
      begin, end, [&](SwappedId id) { return swap_space_[id].device_block == kNoBlock; });
  if (needed > num_free_blocks()) {
    throw OutOfBlocks(OutOfBlocks::Pool::kDevice, request_id, needed, num_free_blocks(),
                      capacity());
  }

  std::vector<BlockMove> moves;
  for (auto entry = begin; entry != end; ++entry) {
    const SwappedId id = *entry;
    if (swap_space_[id].device_block == kNoBlock) {
      const BlockId block = cache_.allocate();
      moves.push_back({swap_space_[id].host_block, block});
      swap_space_.move_to_device(id, block);
      // Whoever else swapped this block out holds it here from now on.
      for (std::int32_t i = 1; i < swap_space_[id].num_holders; ++i) cache_.acquire(block);
    }
    *entry = swap_space_[id].device_block;
    swap_space_.drop(id);
  }
  sequence.is_swapped = false;
  republish(sequence, moves);
  return moves;
}

// Full blocks that came back serve hits again where no other block took their place.
void BlockManager::republish(const Sequence& sequence, const std::vector<BlockMove>& moves) {
  if (!cache_.enabled()) return;
  PrefixId prefix = sequence.prefix;
  auto move = moves.rbegin();
  for (auto i = static_cast<std::int64_t>(sequence.blocks.size()); move != moves.rend();) {
    const BlockId block = sequence.blocks[--i];
    const bool is_full = i < sequence.num_tokens / block_size_;
    if (block == move->dst) {
      if (is_full) cache_.publish(block, prefix);
      ++move;
    }
    if (is_full) prefix = cache_.index().node(prefix).parent;
  }
}

}  // namespace pagedattn
