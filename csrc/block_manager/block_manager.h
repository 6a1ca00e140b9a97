// Virtual memory for the KV cache: which blocks hold which tokens of which request.
//
// The manager hands out block ids and says what to copy and where to write; it touches no tensor.
// Calls cost O(blocks touched), leave the state as it was when they throw, and are not
// synchronised: whoever shares a manager between threads holds a lock.
//
// Every call throws UnknownRequest for an id that is not live, and std::invalid_argument for a
// request that is swapped out unless it says otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "kv_events.h"
#include "prefix_cache.h"
#include "sequence.h"
#include "swap_space.h"
#include "types.h"

namespace pagedattn {

struct BlockManagerConfig {
  std::int64_t num_blocks = 0;
  std::int64_t block_size = 16;  // tokens
  bool enable_prefix_caching = true;
  std::int64_t num_host_blocks = 0;
  double watermark = 0.0;                   // fraction of num_blocks that can_allocate keeps free
  std::optional<std::int64_t> window = {};  // tokens a query sees before its own
  bool record_events = false;
};

struct Allocation {
  std::vector<BlockId> block_ids;
  std::int64_t num_cached_tokens;
};

enum class AllocationStatus { kOk, kLater, kNever };

// Where a batch call writes, as far as wanted. What lies past the batch is padded as empty
// sequences: tables with 0, seq_lens with 0, slot_mapping with -1.
struct BatchBuffers {
  std::optional<Span<std::int64_t>> slot_mapping;  // one entry per token of the batch
  std::optional<Int32Rows> block_tables;           // one row per request
  std::optional<Span<std::int32_t>> seq_lens;      // one entry per request
};

struct BatchResult {
  std::vector<std::int64_t> failed;             // positions of the requests that did not fit
  std::vector<BlockCopy> copies;                // may run in one launch
  std::vector<std::int64_t> num_cached_tokens;  // allocate_batch only, one per request
};

// A batch of requests and their tokens, one after the other; counts[i] of them for request i,
// without counts one each.
struct TokenBatch {
  Span<const std::string_view> request_ids;
  TokenSpan tokens;
  std::optional<Span<const std::int64_t>> counts = {};

  std::int64_t count(std::int64_t i) const { return counts ? (*counts)[i] : 1; }
};

struct BlockManagerStats {
  std::int64_t num_blocks;
  std::int64_t num_free;
  std::int64_t num_hittable_free;
  std::int64_t num_pinned;
  double usage;
  std::int64_t num_host_blocks;
  std::int64_t num_host_free;
  std::int64_t prefix_queried_tokens;
  std::int64_t prefix_hit_tokens;
  std::int64_t num_evictions;
  std::int64_t num_copies_on_write;
};

class BlockManager {
 public:
  // Throws std::invalid_argument for a number out of range.
  explicit BlockManager(const BlockManagerConfig& config);

  const BlockManagerConfig& config() const { return config_; }

  // Starts a request: the longest published prefix is shared, the rest gets new blocks, and full
  // ones are published. Throws OutOfBlocks, or std::invalid_argument if tokens is empty or the id
  // is live.
  Allocation allocate(std::string_view request_id, TokenSpan tokens, CacheSalt salt);
  // As allocate for each request in order; one that does not fit fails alone. slot_mapping is -1
  // for tokens that are cached already.
  BatchResult allocate_batch(const TokenBatch& batch, CacheSalt salt, const BatchBuffers& out);
  std::int64_t lookup(TokenSpan tokens, CacheSalt salt) const;
  AllocationStatus can_allocate(std::int64_t num_tokens) const;

  // Grows a request by tokens, writes one slot each, and returns the copy on write if there is
  // one. Throws OutOfBlocks.
  std::optional<BlockCopy> append(std::string_view request_id, TokenSpan tokens,
                                  Span<std::int64_t> slots);
  // As append for each request in order; one that does not fit fails alone, its slots are -1.
  BatchResult append_batch(const TokenBatch& batch, const BatchBuffers& out);

  void fork(std::string_view parent_id, std::string_view child_id);
  void truncate(std::string_view request_id, std::int64_t num_tokens);
  // Ends a request, swapped out or not. With num_computed, unpublishes the blocks it filled past
  // that many tokens and returns the other requests that hold one of them.
  std::vector<std::string> free(std::string_view request_id,
                                std::optional<std::int64_t> num_computed);

  // Return how many tokens they pinned or unpinned. A pin of n tokens is undone by an unpin of the
  // first n: of more tokens, unpin also takes pins of longer prefixes.
  std::int64_t pin_prefix(TokenSpan tokens, CacheSalt salt);
  std::int64_t unpin_prefix(TokenSpan tokens, CacheSalt salt);

  // Moves (device, host) and back (host, device). Throw OutOfBlocks.
  std::vector<BlockMove> swap_out(std::string_view request_id);
  std::vector<BlockMove> swap_in(std::string_view request_id);

  const std::vector<BlockId>& block_table(std::string_view request_id) const;
  std::int64_t num_tokens(std::string_view request_id) const;  // swapped out too
  bool has_request(std::string_view request_id) const { return sequences_.find(request_id); }
  std::int64_t num_requests() const { return sequences_.size(); }
  // Throws std::out_of_range.
  std::int32_t ref_count(std::int64_t block_id) const;
  std::int32_t num_free_blocks() const { return cache_.pool().num_free(); }
  std::int32_t num_host_free_blocks() const { return swap_space_.num_host_free(); }
  // How many leading blocks are full in, and shared by, all the requests.
  std::int64_t common_prefix_blocks(Span<const std::string_view> request_ids) const;
  void fill_batch(Span<const std::string_view> request_ids, const BatchBuffers& out);

  BlockManagerStats stats() const;
  // Forgets all cached content and returns true, or returns false if a block is used or pinned.
  bool reset_prefix_cache();
  std::vector<KvEvent> take_events() { return cache_.events().take(); }

  // Recomputes everything that is kept in two places; throws std::logic_error on a contradiction.
  // O(num_blocks).
  void check_invariants() const;

 private:
  struct Shortage {
    std::int64_t needed;
    std::int64_t free;
  };

  Sequence& find(std::string_view request_id);
  const Sequence& find(std::string_view request_id) const;
  Sequence& find_resident(std::string_view request_id);
  const Sequence& find_resident(std::string_view request_id) const;

  std::int64_t blocks_for(std::int64_t num_tokens) const {
    return (num_tokens + block_size_ - 1) / block_size_;
  }
  std::int64_t capacity() const;

  // The longest published prefix of the tokens, block by block, at most max_blocks long.
  std::vector<PrefixId> match_prefix(TokenSpan tokens, CacheSalt salt,
                                     std::int64_t max_blocks) const;
  // How much of a prompt may come from the cache: one token is always computed.
  std::int64_t max_hit_blocks(TokenSpan tokens) const {
    return tokens.size > 0 ? (tokens.size - 1) / block_size_ : 0;
  }
  // Publishes the next `count` full blocks of a sequence, whose tokens lie one after the other.
  void publish_blocks(Sequence& sequence, std::int64_t first_block, const Token* tokens,
                      std::int64_t count);
  void move_to_prefix(Sequence& sequence, PrefixId prefix);
  // Notes the tokens that a sequence's blocks hold from the end of what it noted before, which lies
  // in first_block; publishes full blocks.
  void add_tokens(Sequence& sequence, std::int64_t first_block, TokenSpan tokens);

  // allocate and append without the exception; nothing has changed if a Shortage is returned.
  std::optional<Shortage> start(std::string_view request_id, TokenSpan tokens, CacheSalt salt,
                                Sequence** started);
  std::optional<Shortage> grow(Sequence& sequence, TokenSpan tokens, std::int64_t* slots,
                               std::optional<BlockCopy>* copy);
  bool grow_in_place(Sequence& sequence, TokenSpan tokens, std::int64_t* slots);
  std::optional<Shortage> grow_table(Sequence& sequence, TokenSpan tokens, std::int64_t* slots,
                                     std::optional<BlockCopy>* copy);
  // Writes the slots of the sequence's last `count` tokens.
  void write_slots(const Sequence& sequence, std::int64_t count, std::int64_t* slots) const;
  // Needs no division unless the table grows.
  std::int64_t table_size_after(const Sequence& sequence, std::int64_t num_new_tokens) const {
    const auto size = static_cast<std::int64_t>(sequence.blocks.size());
    const std::int64_t overflow = sequence.num_tokens + num_new_tokens - size * block_size_;
    return size + (overflow > 0 ? blocks_for(overflow) : 0);
  }

  // Whether other requests or a pin keep a request from writing into its block.
  bool is_shared(BlockId block) const;
  std::int64_t num_expired_blocks(const Sequence& sequence) const;
  void give_back(Sequence& sequence, std::int64_t num_expired);

  // Finds the sequences of a batch into batch_; throws if one is named twice.
  void resolve_batch(Span<const std::string_view> request_ids);
  void republish(const Sequence& sequence, const std::vector<BlockMove>& moves);

  void release_blocks(Sequence& sequence, std::int64_t keep);
  std::vector<std::string> unpublish_uncomputed(const Sequence& sequence,
                                                std::int64_t num_computed);
  BlockId device_block(const Sequence& sequence, std::int64_t index) const;

  BlockManagerConfig config_;
  std::int64_t block_size_;
  PrefixCache cache_;
  SequenceMap sequences_;
  SwapSpace swap_space_;

  std::int64_t prefix_queried_tokens_ = 0;
  std::int64_t prefix_hit_tokens_ = 0;
  std::int64_t num_copies_on_write_ = 0;

  // Sources of the running batch's copies, each with one reference of the batch's own.
  std::unordered_set<BlockId> held_sources_;
  // Scratch, kept between calls to save allocations.
  std::vector<Sequence*> batch_;
  std::uint64_t batch_number_ = 0;
};

}  // namespace pagedattn
