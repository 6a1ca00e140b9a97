// Calls on many requests at once, writing straight into the buffers that the ops read.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "block_manager.h"

namespace pagedattn {
namespace {

[[noreturn]] void too_small(const char* name, const char* dimension, std::int64_t have,
                            std::int64_t want) {
  throw std::invalid_argument(std::string(name) + " has " + std::to_string(have) + " " + dimension +
                              ", needs " + std::to_string(want));
}

void check_sizes(const BatchBuffers& out, std::int64_t num_requests, std::int64_t num_tokens) {
  if (out.slot_mapping && out.slot_mapping->size < num_tokens) {
    too_small("slot_mapping", "entries", out.slot_mapping->size, num_tokens);
  }
  if (out.block_tables && out.block_tables->num_rows < num_requests) {
    too_small("block_tables", "rows", out.block_tables->num_rows, num_requests);
  }
  if (out.seq_lens && out.seq_lens->size < num_requests) {
    too_small("seq_lens", "entries", out.seq_lens->size, num_requests);
  }
}

void check_columns(const Int32Rows& block_tables, std::int64_t num_blocks) {
  if (block_tables.num_cols < num_blocks) {
    too_small("block_tables", "columns", block_tables.num_cols, num_blocks);
  }
}

void check_counts(const TokenBatch& batch) {
  const std::int64_t num_requests = batch.request_ids.size;
  if (batch.counts && batch.counts->size != num_requests) {
    throw std::invalid_argument("counts has " + std::to_string(batch.counts->size) +
                                " entries for " + std::to_string(num_requests) + " request_ids");
  }
  std::int64_t left = batch.tokens.size - (batch.counts ? 0 : num_requests);
  bool adds_up = true;
  for (std::int64_t i = 0; batch.counts && i < num_requests; ++i) {
    const std::int64_t count = batch.count(i);
    if (count < 0) {
      throw std::invalid_argument("counts[" + std::to_string(i) + "] is " + std::to_string(count));
    }
    adds_up = adds_up && count <= left;
    if (adds_up) left -= count;
  }
  if (!adds_up || left != 0) {
    throw std::invalid_argument("token_ids has " + std::to_string(batch.tokens.size) +
                                " entries, which is not the sum of counts");
  }
}

// A null sequence is an empty one.
void write_table(const Sequence* sequence, const BatchBuffers& out, std::int64_t row) {
  if (!out.block_tables) return;
  std::int32_t* entries = out.block_tables->row(row);
  std::int32_t* const end = entries + out.block_tables->num_cols;
  if (sequence) entries = std::copy(sequence->blocks.begin(), sequence->blocks.end(), entries);
  std::fill(entries, end, kNullBlock);
}

void write_row(const Sequence* sequence, const BatchBuffers& out, std::int64_t row) {
  write_table(sequence, out, row);
  if (out.seq_lens) {
    (*out.seq_lens)[row] = sequence ? static_cast<std::int32_t>(sequence->num_tokens) : 0;
  }
}

// What lies past the batch reads as empty sequences.
void pad(const BatchBuffers& out, std::int64_t num_requests, std::int64_t num_tokens) {
  if (out.slot_mapping) {
    std::fill(out.slot_mapping->data + num_tokens, out.slot_mapping->data + out.slot_mapping->size,
              kSkippedSlot);
  }
  if (out.block_tables) {
    for (std::int64_t r = num_requests; r < out.block_tables->num_rows; ++r) {
      write_table(nullptr, out, r);
    }
  }
  if (out.seq_lens) {
    std::fill(out.seq_lens->data + num_requests, out.seq_lens->data + out.seq_lens->size, 0);
  }
}

}  // namespace

// Batches change little from step to step: whoever followed a request in the last one is the guess
// for who follows it now, which saves the hash.
void BlockManager::resolve_batch(Span<const std::string_view> request_ids) {
  batch_.resize(request_ids.size);
  ++batch_number_;
  std::int32_t none = -1;
  std::int32_t* next_slot = &none;
  for (std::int64_t i = 0; i < request_ids.size; ++i) {
    Sequence* sequence = sequences_.find(request_ids[i], *next_slot);
    if (sequence == nullptr || sequence->is_swapped) find_resident(request_ids[i]);  // throws
    if (std::exchange(sequence->last_batch, batch_number_) == batch_number_) {
      throw std::invalid_argument(request_name(request_ids[i]) + " is twice in request_ids");
    }
    *next_slot = sequence->slot;
    next_slot = &sequence->next_in_batch;
    batch_[i] = sequence;
  }
}

BatchResult BlockManager::append_batch(const TokenBatch& batch, const BatchBuffers& out) {
  const std::int64_t num_requests = batch.request_ids.size;
  check_counts(batch);
  check_sizes(out, num_requests, batch.tokens.size);
  resolve_batch(batch.request_ids);
  for (std::int64_t i = 0; out.block_tables && i < num_requests; ++i) {
    check_columns(*out.block_tables, table_size_after(*batch_[i], batch.count(i)));
  }

  BatchResult result;
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < num_requests; ++i) {
    const TokenSpan tokens = batch.tokens.subspan(first, batch.count(i));
    std::int64_t* slots = out.slot_mapping ? out.slot_mapping->data + first : nullptr;
    std::optional<BlockCopy> copy;
    if (grow(*batch_[i], tokens, slots, &copy)) {
      result.failed.push_back(i);
      if (slots) std::fill_n(slots, tokens.size, kSkippedSlot);
    }
    if (copy) {
      result.copies.push_back(*copy);
      // A later request whose window passes the source must not free it: were it handed out as the
      // target of another copy, one launch could not run both.
      if (held_sources_.insert(copy->src).second) cache_.acquire(copy->src);
    }
    write_row(batch_[i], out, i);
    first += tokens.size;
  }
  for (const BlockCopy& copy : result.copies) {
    if (held_sources_.erase(copy.src) > 0) cache_.release(copy.src);
  }
  pad(out, num_requests, batch.tokens.size);
  return result;
}

BatchResult BlockManager::allocate_batch(const TokenBatch& batch, CacheSalt salt,
                                         const BatchBuffers& out) {
  const std::int64_t num_requests = batch.request_ids.size;
  check_counts(batch);
  check_sizes(out, num_requests, batch.tokens.size);
  std::unordered_set<std::string_view> seen;
  for (std::int64_t i = 0; i < num_requests; ++i) {
    const std::string_view id = batch.request_ids[i];
    if (sequences_.find(id) != nullptr) {
      throw std::invalid_argument(request_name(id) + " exists already");
    }
    if (!seen.insert(id).second) {
      throw std::invalid_argument(request_name(id) + " is twice in request_ids");
    }
    if (batch.count(i) == 0) {
      throw std::invalid_argument("token_ids of " + request_name(id) + " is empty");
    }
    if (out.block_tables) check_columns(*out.block_tables, blocks_for(batch.count(i)));
  }

  BatchResult result;
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < num_requests; ++i) {
    const TokenSpan tokens = batch.tokens.subspan(first, batch.count(i));
    Sequence* sequence = nullptr;
    if (start(batch.request_ids[i], tokens, salt, &sequence)) result.failed.push_back(i);
    const std::int64_t num_cached = sequence ? sequence->first_own_block * block_size_ : 0;
    result.num_cached_tokens.push_back(num_cached);
    if (out.slot_mapping) {
      std::int64_t* slots = out.slot_mapping->data + first;
      const std::int64_t num_skipped = sequence ? num_cached : tokens.size;
      std::fill_n(slots, num_skipped, kSkippedSlot);
      if (sequence) {
        write_slots(*sequence, tokens.size - num_cached, slots + num_cached);
      }
    }
    write_row(sequence, out, i);
    first += tokens.size;
  }
  pad(out, num_requests, batch.tokens.size);
  return result;
}

void BlockManager::fill_batch(Span<const std::string_view> request_ids, const BatchBuffers& out) {
  check_sizes(out, request_ids.size, 0);
  resolve_batch(request_ids);
  for (const Sequence* sequence : batch_) {
    if (!out.block_tables) break;
    check_columns(*out.block_tables, static_cast<std::int64_t>(sequence->blocks.size()));
  }
  for (std::int64_t i = 0; i < request_ids.size; ++i) write_row(batch_[i], out, i);
  pad(out, request_ids.size, 0);
}

}  // namespace pagedattn
