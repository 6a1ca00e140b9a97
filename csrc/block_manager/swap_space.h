// Host blocks, and where the blocks of swapped-out sequences are.
//
// A swapped sequence's table holds ids of SwappedBlocks, so that sequences which share a block
// keep sharing it: the block moves once, in one place, and all of them see it.
//
//   both sequences swapped out                    after the first one came back
//     A: [0, 1]    0: host 5, holders 2             A: [7, 8]    0: device 7, holders 1 (B)
//     B: [0, 2]    1: host 6, holders 1             B: [0, 2]    2: host 4, holders 1
//                  2: host 4, holders 1
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "types.h"

namespace pagedattn {

using SwappedId = std::int32_t;

struct SwappedBlock {
  // Exactly one of the two is set. On the device the holders are part of the block's ref_count.
  BlockId device_block = kNoBlock;
  std::int32_t host_block = -1;
  std::int32_t num_holders = 0;  // swapped sequences; 0: id not in use
};

class SwapSpace {
 public:
  explicit SwapSpace(std::int32_t num_host_blocks) : num_host_blocks_(num_host_blocks) {
    for (std::int32_t i = num_host_blocks; i-- > 0;) free_host_blocks_.push_back(i);
  }

  std::int32_t num_host_blocks() const { return num_host_blocks_; }
  std::int32_t num_host_free() const { return static_cast<std::int32_t>(free_host_blocks_.size()); }

  const SwappedBlock& operator[](SwappedId id) const { return entries_[id]; }
  SwappedId end_id() const { return static_cast<SwappedId>(entries_.size()); }

  // How many swapped sequences hold a block that is still on the device.
  std::int32_t num_holders_of(BlockId device_block) const;

  // One more swapped sequence holds this device block.
  SwappedId hold(BlockId device_block);
  // One swapped sequence less holds the entry; the last one frees its host block.
  void drop(SwappedId id);

  // Moves an entry from the device to a free host block, which is returned, or back.
  std::int32_t move_to_host(SwappedId id);
  void move_to_device(SwappedId id, BlockId device_block);

 private:
  std::int32_t num_host_blocks_;
  std::vector<std::int32_t> free_host_blocks_;
  std::vector<SwappedBlock> entries_;
  std::vector<SwappedId> unused_;
  std::unordered_map<BlockId, SwappedId> on_device_;
};

}  // namespace pagedattn
