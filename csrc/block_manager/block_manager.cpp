#include "block_manager.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace pagedattn {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

[[noreturn]] void refuse_range(const std::string& name, std::int64_t least, std::int64_t most,
                               std::int64_t given) {
  refuse(name + " must be in [" + std::to_string(least) + ", " + std::to_string(most) + "], got " +
         std::to_string(given));
}

void check_range(const char* name, std::int64_t value, std::int64_t least) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (value < least || value > most) refuse_range(name, least, most, value);
}

const BlockManagerConfig& checked(const BlockManagerConfig& config) {
  // A windowed manager keeps block 0 to itself.
  check_range(config.window ? "num_blocks of a manager with a window" : "num_blocks",
              config.num_blocks, config.window ? 2 : 1);
  check_range("block_size", config.block_size, 1);
  check_range("num_host_blocks", config.num_host_blocks, 0);
  if (!(config.watermark >= 0.0 && config.watermark <= 1.0)) {
    refuse("watermark must be in [0, 1], got " + std::to_string(config.watermark));
  }
  if (config.window && *config.window < 0) {
    refuse("window must be at least 0, got " + std::to_string(*config.window));
  }
  return config;
}

}  // namespace

BlockManager::BlockManager(const BlockManagerConfig& config)
    : config_(checked(config)),
      block_size_(config.block_size),
      cache_(static_cast<std::int32_t>(config.num_blocks), config.window ? kNullBlock + 1 : 0,
             static_cast<std::int32_t>(config.block_size), config.enable_prefix_caching,
             config.record_events),
      swap_space_(static_cast<std::int32_t>(config.num_host_blocks)) {}

std::int64_t BlockManager::capacity() const {
  return config_.window ? config_.num_blocks - 1 : config_.num_blocks;
}

const Sequence& BlockManager::find(std::string_view request_id) const {
  const Sequence* sequence = sequences_.find(request_id);
  if (sequence == nullptr) throw UnknownRequest(request_id);
  return *sequence;
}

Sequence& BlockManager::find(std::string_view request_id) {
  return const_cast<Sequence&>(std::as_const(*this).find(request_id));
}

const Sequence& BlockManager::find_resident(std::string_view request_id) const {
  const Sequence& sequence = find(request_id);
  if (sequence.is_swapped) refuse(request_name(request_id) + " is swapped out");
  return sequence;
}

Sequence& BlockManager::find_resident(std::string_view request_id) {
  return const_cast<Sequence&>(std::as_const(*this).find_resident(request_id));
}

// ---- prefixes

std::vector<PrefixId> BlockManager::match_prefix(TokenSpan tokens, CacheSalt salt,
                                                 std::int64_t max_blocks) const {
  std::vector<PrefixId> matched;
  if (!cache_.enabled()) return matched;
  const PrefixIndex& index = cache_.index();
  PrefixId prefix = index.find_root(salt);
  if (prefix == kNoPrefix) return matched;

  const Token* next = tokens.data;
  for (std::int64_t i = 0; i < max_blocks; ++i, next += block_size_) {
    prefix = index.find_child(prefix, next);
    if (prefix == kNoPrefix || index.node(prefix).block == kNoBlock) break;
    if (i == 0) matched.reserve(max_blocks);
    matched.push_back(prefix);
  }
  return matched;
}

void BlockManager::publish_blocks(Sequence& sequence, std::int64_t first_block, const Token* tokens,
                                  std::int64_t count) {
  if (count == 0) return;
  const Span<const BlockId> blocks{sequence.blocks.data() + first_block, count};
  move_to_prefix(sequence, cache_.publish(blocks, sequence.prefix, tokens));
}

void BlockManager::move_to_prefix(Sequence& sequence, PrefixId prefix) {
  cache_.index().acquire(prefix);
  if (sequence.prefix != kNoPrefix) cache_.index().release(sequence.prefix);
  sequence.prefix = prefix;
}

std::int64_t BlockManager::lookup(TokenSpan tokens, CacheSalt salt) const {
  const auto matched = match_prefix(tokens, salt, max_hit_blocks(tokens));
  return static_cast<std::int64_t>(matched.size()) * block_size_;
}

std::int64_t BlockManager::pin_prefix(TokenSpan tokens, CacheSalt salt) {
  const auto matched = match_prefix(tokens, salt, tokens.size / block_size_);
  for (const PrefixId prefix : matched) cache_.pin(prefix);
  return static_cast<std::int64_t>(matched.size()) * block_size_;
}

std::int64_t BlockManager::unpin_prefix(TokenSpan tokens, CacheSalt salt) {
  const PrefixIndex& index = cache_.index();
  std::vector<PrefixId> pinned;
  PrefixId prefix = cache_.enabled() ? index.find_root(salt) : kNoPrefix;
  // Pinned prefixes stay known without a block, so this walk does not stop where a hit would.
  for (std::int64_t i = 0; prefix != kNoPrefix && i < tokens.size / block_size_; ++i) {
    prefix = index.find_child(prefix, tokens.data + i * block_size_);
    if (prefix != kNoPrefix && index.node(prefix).pin_count > 0) pinned.push_back(prefix);
  }
  // Later blocks first: they become the first to evict.
  for (auto it = pinned.rbegin(); it != pinned.rend(); ++it) cache_.unpin(*it);
  return static_cast<std::int64_t>(pinned.size()) * block_size_;
}

bool BlockManager::reset_prefix_cache() {
  if (cache_.pool().num_free() != capacity() || cache_.num_pins() > 0) return false;
  if (swap_space_.num_host_free() != swap_space_.num_host_blocks()) return false;
  cache_.clear();
  return true;
}

// ---- a request's life

std::optional<BlockManager::Shortage> BlockManager::start(std::string_view request_id,
                                                          TokenSpan tokens, CacheSalt salt,
                                                          Sequence** started) {
  const auto matched = match_prefix(tokens, salt, max_hit_blocks(tokens));
  const auto num_hits = static_cast<std::int64_t>(matched.size());
  const std::int64_t num_blocks = blocks_for(tokens.size);
  PrefixIndex& index = cache_.index();

  // A hit on a free block takes it from the free ones like a new block.
  std::int64_t needed = num_blocks - num_hits;
  for (const PrefixId prefix : matched) needed += cache_.is_free(index.node(prefix).block);
  if (needed > num_free_blocks()) return Shortage{needed, num_free_blocks()};

  Sequence& sequence = sequences_.insert(request_id);
  sequence.num_tokens = tokens.size;
  sequence.first_own_block = static_cast<std::int32_t>(num_hits);
  sequence.blocks.reserve(num_blocks);
  for (const PrefixId prefix : matched) {
    sequence.blocks.push_back(index.node(prefix).block);
    cache_.acquire(sequence.blocks.back());
  }
  if (cache_.enabled()) {
    move_to_prefix(sequence, num_hits > 0 ? matched.back() : index.find_or_create_root(salt));
    prefix_queried_tokens_ += tokens.size;
    prefix_hit_tokens_ += num_hits * block_size_;
  }
  cache_.allocate(num_blocks - num_hits, &sequence.blocks);
  const std::int64_t num_hit_tokens = num_hits * block_size_;
  add_tokens(sequence, num_hits, tokens.subspan(num_hit_tokens, tokens.size - num_hit_tokens));
  *started = &sequence;
  return std::nullopt;
}

void BlockManager::add_tokens(Sequence& sequence, std::int64_t first_block, TokenSpan tokens) {
  if (!cache_.enabled()) return;
  std::vector<Token>& partial = sequence.partial_tokens;
  const auto num_partial = static_cast<std::int64_t>(partial.size());
  if (num_partial + tokens.size < block_size_) {
    for (std::int64_t i = 0; i < tokens.size; ++i) partial.push_back(tokens[i]);
    return;
  }
  if (num_partial > 0) {
    const std::int64_t taken = block_size_ - num_partial;
    for (std::int64_t i = 0; i < taken; ++i) partial.push_back(tokens[i]);
    publish_blocks(sequence, first_block++, partial.data(), 1);
    tokens = tokens.subspan(taken, tokens.size - taken);
  }
  const std::int64_t num_full = tokens.size / block_size_;
  publish_blocks(sequence, first_block, tokens.data, num_full);
  partial.assign(tokens.data + num_full * block_size_, tokens.data + tokens.size);
}

Allocation BlockManager::allocate(std::string_view request_id, TokenSpan tokens, CacheSalt salt) {
  if (sequences_.find(request_id) != nullptr) refuse(request_name(request_id) + " exists already");
  if (tokens.size == 0) refuse("token_ids of " + request_name(request_id) + " is empty");
  Sequence* sequence = nullptr;
  if (const auto shortage = start(request_id, tokens, salt, &sequence)) {
    throw OutOfBlocks(OutOfBlocks::Pool::kDevice, request_id, shortage->needed, shortage->free,
                      capacity());
  }
  return {sequence->blocks, sequence->first_own_block * block_size_};
}

AllocationStatus BlockManager::can_allocate(std::int64_t num_tokens) const {
  if (num_tokens < 0) refuse("num_tokens must be at least 0, got " + std::to_string(num_tokens));
  const std::int64_t needed = num_tokens / block_size_ + (num_tokens % block_size_ != 0);
  const auto reserve = static_cast<std::int64_t>(
      std::ceil(config_.watermark * static_cast<double>(config_.num_blocks)));
  if (num_free_blocks() - needed >= reserve) return AllocationStatus::kOk;
  return capacity() - needed >= reserve ? AllocationStatus::kLater : AllocationStatus::kNever;
}

void BlockManager::fork(std::string_view parent_id, std::string_view child_id) {
  const Sequence& parent = find_resident(parent_id);
  if (sequences_.find(child_id) != nullptr) refuse(request_name(child_id) + " exists already");
  Sequence& child = sequences_.insert(child_id);
  child.num_tokens = parent.num_tokens;
  child.blocks = parent.blocks;
  child.partial_tokens = parent.partial_tokens;
  child.first_own_block = static_cast<std::int32_t>(parent.blocks.size());
  child.window_position = parent.window_position;
  child.num_given_back = parent.num_given_back;
  if (parent.prefix != kNoPrefix) move_to_prefix(child, parent.prefix);
  for (std::size_t i = child.num_given_back; i < child.blocks.size(); ++i) {
    cache_.acquire(child.blocks[i]);
  }
}

void BlockManager::truncate(std::string_view request_id, std::int64_t num_tokens) {
  Sequence& sequence = find_resident(request_id);
  if (num_tokens < 0 || num_tokens > sequence.num_tokens) {
    refuse_range("num_tokens of " + request_name(request_id), 0, sequence.num_tokens, num_tokens);
  }
  if (num_tokens < sequence.window_position) {
    refuse("num_tokens of " + request_name(request_id) + " must be at least " +
           std::to_string(sequence.window_position) +
           ", where its last append began: the window moved on; got " + std::to_string(num_tokens));
  }

  const std::int64_t num_partial = num_tokens % block_size_;
  const std::int64_t full_before = sequence.num_tokens / block_size_;
  const std::int64_t full_after = num_tokens / block_size_;
  if (cache_.enabled()) {
    if (full_after < full_before) {
      const PrefixIndex& index = cache_.index();
      // The first prefix that is cut, whole or in part.
      const PrefixId cut = index.ancestor(sequence.prefix, full_before - full_after - 1);
      sequence.partial_tokens = index.block_tokens(cut);
      move_to_prefix(sequence, index.node(cut).parent);
    }
    sequence.partial_tokens.resize(num_partial);
  }
  sequence.num_tokens = num_tokens;
  release_blocks(sequence, blocks_for(num_tokens));
}

// Later blocks first: they become the first to evict.
void BlockManager::release_blocks(Sequence& sequence, std::int64_t keep) {
  std::vector<BlockId>& blocks = sequence.blocks;
  const std::int64_t last_kept = std::max<std::int64_t>(keep, sequence.num_given_back);
  while (static_cast<std::int64_t>(blocks.size()) > last_kept) {
    if (sequence.is_swapped) {
      const BlockId on_device = swap_space_[blocks.back()].device_block;
      swap_space_.drop(blocks.back());
      if (on_device != kNoBlock) cache_.release(on_device);
    } else {
      cache_.release(blocks.back());
    }
    blocks.pop_back();
  }
  blocks.resize(keep);
}

std::vector<std::string> BlockManager::free(std::string_view request_id,
                                            std::optional<std::int64_t> num_computed) {
  Sequence& sequence = find(request_id);
  std::vector<std::string> affected;
  if (num_computed) {
    if (*num_computed < 0 || *num_computed > sequence.num_tokens) {
      refuse_range("num_computed of " + request_name(request_id), 0, sequence.num_tokens,
                   *num_computed);
    }
    affected = unpublish_uncomputed(sequence, *num_computed);
  }
  release_blocks(sequence, 0);
  if (sequence.prefix != kNoPrefix) cache_.index().release(sequence.prefix);
  sequences_.erase(sequence);
  return affected;
}

// What went to the host was computed before it went, so only device blocks matter here.
std::vector<std::string> BlockManager::unpublish_uncomputed(const Sequence& sequence,
                                                            std::int64_t num_computed) {
  const std::int64_t end =
      num_computed < sequence.num_tokens ? static_cast<std::int64_t>(sequence.blocks.size()) : 0;
  const std::int64_t begin = std::max<std::int64_t>(
      {num_computed / block_size_, sequence.first_own_block, sequence.num_given_back});
  bool is_shared = false;
  for (std::int64_t i = begin; i < end; ++i) {
    const BlockId block = device_block(sequence, i);
    if (block == kNoBlock) continue;
    cache_.unpublish(block);
    is_shared |= cache_.ref_count(block) > 1;
  }
  std::vector<std::string> holders;
  if (!is_shared) return holders;
  // Blocks know no holders: look at every request. A shared block is at the same place in the
  // tables of all that share it.
  sequences_.for_each([&](const Sequence& other) {
    const std::int64_t last = std::min<std::int64_t>(end, other.blocks.size());
    for (std::int64_t i = begin; &other != &sequence && i < last; ++i) {
      const BlockId block = device_block(sequence, i);
      if (block != kNoBlock && block == device_block(other, i)) {
        holders.push_back(other.request_id);
        return;
      }
    }
  });
  return holders;
}

BlockId BlockManager::device_block(const Sequence& sequence, std::int64_t index) const {
  if (index < sequence.num_given_back) return kNoBlock;
  const BlockId entry = sequence.blocks[index];
  return sequence.is_swapped ? swap_space_[entry].device_block : entry;
}

// ---- queries

const std::vector<BlockId>& BlockManager::block_table(std::string_view request_id) const {
  return find_resident(request_id).blocks;
}

std::int64_t BlockManager::num_tokens(std::string_view request_id) const {
  return find(request_id).num_tokens;
}

std::int32_t BlockManager::ref_count(std::int64_t block_id) const {
  if (block_id < 0 || block_id >= config_.num_blocks) {
    throw std::out_of_range("block_id must be in [0, " + std::to_string(config_.num_blocks) +
                            "), got " + std::to_string(block_id));
  }
  return cache_.ref_count(static_cast<BlockId>(block_id));
}

std::int64_t BlockManager::common_prefix_blocks(Span<const std::string_view> request_ids) const {
  if (request_ids.size == 0) return 0;
  const Sequence& first = find_resident(request_ids[0]);
  std::int64_t common = first.num_given_back > 0 ? 0 : first.num_tokens / block_size_;
  for (std::int64_t r = 1; r < request_ids.size; ++r) {
    const Sequence& other = find_resident(request_ids[r]);
    common = std::min(common, other.num_given_back > 0 ? 0 : other.num_tokens / block_size_);
    const auto differ =
        std::mismatch(first.blocks.begin(), first.blocks.begin() + common, other.blocks.begin());
    common = differ.first - first.blocks.begin();
  }
  return common;
}

BlockManagerStats BlockManager::stats() const {
  const std::int64_t num_free = num_free_blocks();
  return {config_.num_blocks,
          num_free,
          cache_.pool().num_cached_free(),
          cache_.num_pinned_blocks(),
          static_cast<double>(capacity() - num_free) / static_cast<double>(capacity()),
          config_.num_host_blocks,
          num_host_free_blocks(),
          prefix_queried_tokens_,
          prefix_hit_tokens_,
          cache_.num_evictions(),
          num_copies_on_write_};
}

}  // namespace pagedattn
