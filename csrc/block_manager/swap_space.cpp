#include "swap_space.h"

#include <utility>

namespace pagedattn {

std::int32_t SwapSpace::num_holders_of(BlockId device_block) const {
  const auto found = on_device_.find(device_block);
  return found == on_device_.end() ? 0 : entries_[found->second].num_holders;
}

SwappedId SwapSpace::hold(BlockId device_block) {
  const auto found = on_device_.find(device_block);
  if (found != on_device_.end()) {
    ++entries_[found->second].num_holders;
    return found->second;
  }
  SwappedId id;
  if (unused_.empty()) {
    id = end_id();
    entries_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  entries_[id] = {device_block, -1, 1};
  on_device_.emplace(device_block, id);
  return id;
}

void SwapSpace::drop(SwappedId id) {
  SwappedBlock& entry = entries_[id];
  if (--entry.num_holders > 0) return;
  if (entry.host_block >= 0) {
    free_host_blocks_.push_back(entry.host_block);
  } else {
    on_device_.erase(entry.device_block);
  }
  entry = SwappedBlock();
  unused_.push_back(id);
}

std::int32_t SwapSpace::move_to_host(SwappedId id) {
  SwappedBlock& entry = entries_[id];
  entry.host_block = free_host_blocks_.back();
  free_host_blocks_.pop_back();
  on_device_.erase(std::exchange(entry.device_block, kNoBlock));
  return entry.host_block;
}

void SwapSpace::move_to_device(SwappedId id, BlockId device_block) {
  SwappedBlock& entry = entries_[id];
  free_host_blocks_.push_back(std::exchange(entry.host_block, -1));
  entry.device_block = device_block;
  on_device_.emplace(device_block, id);
}

}  // namespace pagedattn
