// check_invariants: everything kept in two places, recomputed from one of them.
#include <map>
#include <set>

#include "block_manager.h"

namespace pagedattn {
namespace {

void check(bool condition, const std::string& what) {
  if (!condition) throw std::logic_error("block manager invariant broken: " + what);
}

std::string block_name(BlockId id) { return "block " + std::to_string(id); }

// The ids of a list, from its front; checks the links on the way.
std::set<BlockId> members(const BlockPool& pool, const BlockList& list) {
  std::set<BlockId> ids;
  BlockId prev = kNoBlock;
  for (BlockId id = list.front(); id != kNoBlock; id = pool[id].next) {
    check(ids.insert(id).second, block_name(id) + " is twice in a free list");
    check(pool[id].prev == prev, block_name(id) + " has a wrong link back");
    prev = id;
  }
  check(static_cast<std::int32_t>(ids.size()) == list.size(), "a free list's size is wrong");
  return ids;
}

}  // namespace

void BlockManager::check_invariants() const {
  const BlockPool& pool = cache_.pool();
  const PrefixIndex& index = cache_.index();

  // References, as the requests' tables have them.
  std::map<BlockId, std::int32_t> block_refs;
  std::map<PrefixId, std::int32_t> prefix_refs;
  std::map<SwappedId, std::int32_t> swapped_refs;
  sequences_.for_each([&](const Sequence& s) {
    const std::string name = request_name(s.request_id);
    check(sequences_.find(s.request_id) == &s, name + " is not found by its id");
    check(static_cast<std::int64_t>(s.blocks.size()) == blocks_for(s.num_tokens),
          name + " has a table of the wrong length");
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(s.blocks.size()); ++i) {
      if (i < s.num_given_back) {
        check(s.blocks[i] == kNullBlock, name + " still names a block it gave back");
      } else if (s.is_swapped) {
        ++swapped_refs[s.blocks[i]];
      } else {
        check(!config_.window || s.blocks[i] != kNullBlock, name + " was given the null block");
        ++block_refs[s.blocks[i]];
      }
    }
    if (!cache_.enabled()) return;
    ++prefix_refs[s.prefix];
    check(static_cast<std::int64_t>(s.partial_tokens.size()) == s.num_tokens % block_size_,
          name + " has lost tokens of its last block");
    check(index.is_root(index.ancestor(s.prefix, s.num_tokens / block_size_)),
          name + " stands at the wrong depth of the prefix tree");
  });

  std::set<std::int32_t> used_host_blocks;
  for (SwappedId id = 0; id < swap_space_.end_id(); ++id) {
    const SwappedBlock& entry = swap_space_[id];
    const std::string name = "swapped block " + std::to_string(id);
    const std::int32_t expected = swapped_refs.count(id) ? swapped_refs[id] : 0;
    check(entry.num_holders == expected, name + " has a wrong number of holders");
    if (entry.num_holders == 0) continue;
    check((entry.device_block == kNoBlock) != (entry.host_block < 0),
          name + " must be in one place");
    if (entry.device_block != kNoBlock) {
      check(swap_space_.num_holders_of(entry.device_block) == entry.num_holders,
            name + " is not found by its device block");
      block_refs[entry.device_block] += entry.num_holders;
    } else {
      check(used_host_blocks.insert(entry.host_block).second, "a host block is used twice");
    }
  }
  check(num_host_free_blocks() + static_cast<std::int64_t>(used_host_blocks.size()) ==
            swap_space_.num_host_blocks(),
        "a host block is lost");

  check(held_sources_.empty(), "a batch left a copy's source held");

  // Every block is used, pinned, or in the free list that its content calls for.
  const std::set<BlockId> empty = members(pool, pool.empty());
  const std::set<BlockId> cached = members(pool, pool.cached());
  for (BlockId id = config_.window ? kNullBlock + 1 : 0; id < pool.num_blocks(); ++id) {
    const Block& block = pool[id];
    const bool is_free = block.ref_count == 0 && !cache_.is_pinned(id);
    check(block.ref_count == (block_refs.count(id) ? block_refs[id] : 0),
          block_name(id) + " has a wrong reference count");
    check(empty.count(id) == (is_free && block.prefix == kNoPrefix),
          block_name(id) + " is wrongly in or out of the empty list");
    check(cached.count(id) == (is_free && block.prefix != kNoPrefix),
          block_name(id) + " is wrongly in or out of the cached list");
    if (block.prefix != kNoPrefix) {
      check(index.node(block.prefix).block == id, block_name(id) + " is not its prefix's block");
    }
  }
  check(!config_.window || (empty.count(kNullBlock) == 0 && cached.count(kNullBlock) == 0),
        "the null block is free");

  // References between prefixes.
  std::int32_t num_pinned_blocks = 0;
  std::int64_t num_pins = 0;
  std::int64_t num_nodes = 0;
  for (PrefixId id = 0; id < index.end_id(); ++id) {
    const PrefixNode& node = index.node(id);
    if (node.ref_count == 0) continue;
    ++num_nodes;
    check(node.first_child == kNoPrefix || (index.node(node.first_child).parent == id &&
                                            index.node(node.first_child).ref_count > 0),
          "prefix " + std::to_string(id) + " names a first child that is not its own");
    if (!index.is_root(id)) {
      ++prefix_refs[node.parent];
      check(index.find_child(node.parent, index.block_tokens(id).data()) == id,
            "prefix " + std::to_string(id) + " is not found by its tokens");
    } else if (index.root_salt(id)) {
      check(index.find_root(index.root_salt(id)) == id, "a salt is not found");
    } else {
      ++prefix_refs[id];  // the unsalted root keeps itself
    }
    if (node.block != kNoBlock) {
      ++prefix_refs[id];
      check(pool[node.block].prefix == id, "a prefix names a block with other content");
    }
    prefix_refs[id] += node.pin_count;
    num_pins += node.pin_count;
    num_pinned_blocks += node.pin_count > 0 && node.block != kNoBlock;
  }
  for (const auto& [id, refs] : prefix_refs) {
    check(index.node(id).ref_count == refs,
          "prefix " + std::to_string(id) + " has a wrong reference count");
  }
  check(num_nodes == index.num_nodes(), "the number of prefixes is wrong");
  check(num_pinned_blocks == cache_.num_pinned_blocks(), "the number of pinned blocks is wrong");
  check(num_pins == cache_.num_pins(), "the number of pins is wrong");
}

}  // namespace pagedattn
