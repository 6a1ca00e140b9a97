// Docstrings of the Python class.
#pragma once

namespace pagedattn::doc {

inline constexpr char kBlockManager[] =
    R"(Which blocks of the KV cache hold which tokens of which request.

Blocks are numbered; the manager touches no tensor. It keeps one block table per request, shares
blocks between requests (prefix caching, fork), copies them on write, evicts the least recently
used content, and moves requests to the host and back.

Args:
    num_blocks: device blocks.
    block_size: tokens in a block.
    enable_prefix_caching: keep what full blocks hold, and share them between equal prefixes.
    num_host_blocks: host blocks for swap_out.
    watermark: fraction of num_blocks that can_allocate keeps free.
    window: sliding window: how many tokens a query sees before its own. A request then gives
        blocks back as it grows, the table has 0 in their place, and block 0 is never handed out.
    enable_kv_events: record events for take_kv_events.

Every call either happens whole or raises and changes nothing. The object may be used from several
threads. Token ids are ints of 64 bits in a list, tuple, or one-dimensional int32 or int64 array
(buffer protocol or DLPack: numpy, CPU torch tensors); a contiguous int64 array is not copied.

Raises, besides what a method names: KeyError for an unknown request, ValueError for one that is
swapped out or a number out of range, TypeError for an argument of the wrong type.

PagedAttention: W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", SOSP 2023.)";

inline constexpr char kAllocate[] =
    R"(Start a request on the tokens whose KV the coming step writes.

The longest cached prefix is shared, in whole blocks and short of the last token; the rest gets new
blocks. Blocks that the tokens fill are published at once, so requests of one step share them.

Args:
    request_id: name of the new request.
    token_ids: the prompt, or its first chunk; at least one token.
    cache_salt: prefixes are shared only between equal salts.
Returns:
    Allocation(block_ids, num_cached_tokens): KV of the first num_cached_tokens, a multiple of
    block_size, is in the cache already.
Raises:
    ValueError: the request exists, or token_ids is empty.
    OutOfBlocks: too few free blocks.)";

inline constexpr char kAllocateBatch[] = R"(Start several requests.

As allocate for each in turn, except that one which does not fit fails alone.

Args:
    request_ids: names of the new requests.
    token_ids: their tokens one after the other.
    counts: how many tokens each request has.
    cache_salt: of all of them.
    slot_mapping, block_tables, seq_lens: see append_batch. slot_mapping is -1 for tokens that are
        cached already; a request that failed has an empty row.
Returns:
    AllocateBatchResult(failed, num_cached_tokens).)";

inline constexpr char kLookup[] =
    "What allocate would report as num_cached_tokens. Changes nothing, not even the LRU order.";

inline constexpr char kCanAllocate[] = R"(Whether num_tokens new tokens fit beside the watermark.

Prefix hits are ignored. OK: free - needed >= ceil(watermark * num_blocks). NEVER: that fails even
in an empty pool. LATER: otherwise. allocate and append ignore the watermark.)";

inline constexpr char kAppend[] = R"(Grow a request by tokens whose KV the coming step writes.

A last block that is partial and shared is copied first.

Returns:
    AppendResult(slots, copies): a slot, block_id * block_size + offset, for each token, and the
    (src, dst) block copies to run before the step writes: one or none.
Raises:
    OutOfBlocks: too few free blocks.)";

inline constexpr char kAppendBatch[] = R"(Grow several requests and write what the step's ops read.

As append for each in turn, except that one which does not fit fails alone. No Python object is
made per request.

Args:
    request_ids: requests, each at most once.
    token_ids: their new tokens one after the other.
    counts: how many tokens each request gets; default 1 each.
    slot_mapping: int64 [>= len(token_ids)], written: the slot of each token, -1 where the request
        failed.
    block_tables: int32 [>= len(request_ids), max_blocks], written: each request's blocks, then 0.
    seq_lens: int32 [>= len(request_ids)], written: each request's tokens, the new ones included.
        Arrays are numpy or CPU torch (pinned or not), contiguous in the last dimension. What lies
        past the batch is filled as empty sequences: table 0, length 0, slot -1.
Returns:
    BatchResult(failed, copies): positions of the requests that did not fit, which are unchanged,
    and the (src, dst) block copies, which one copy_blocks call may run.
Raises:
    ValueError: an array is too small or not writable, a request is named twice, or counts do not
        add up to the number of tokens.)";

inline constexpr char kFillBatch[] =
    "Write block_tables and seq_lens as append_batch does, without growing anything.";

inline constexpr char kFork[] = R"(Start a request that shares all blocks of another one.

Costs no block: whichever of them first appends to a shared partial block gets a copy.

Raises:
    ValueError: the child exists.)";

inline constexpr char kTruncate[] = R"(Cut a request to its first num_tokens tokens; 0 is legal.

Blocks past the cut are released and stay cached. A block the cut made partial still serves hits
until this request appends to it.

Raises:
    ValueError: the request is shorter, or the window has given back what the new end sees.)";

inline constexpr char kFree[] = R"(End a request, swapped out or not.

Its blocks keep their content and can be hit until evicted, later blocks before earlier ones.

Args:
    num_computed: after a failed step: how many tokens have KV in the cache. Blocks which this
        request filled past that are not served to anybody any more.
Returns:
    The other requests that hold such a block: they must be computed again. Empty without
    num_computed.)";

inline constexpr char kCommonPrefixBlocks[] =
    "How many leading blocks are full in, and shared by, all the requests. 0 for no request, or "
    "once a window has given blocks back.";

inline constexpr char kPinPrefix[] = R"(Keep what is cached of a prefix from eviction.

Pins the published full blocks that token_ids start with, the last one included. Pins nest: each
needs an unpin_prefix. An idle pinned block counts as used.

Returns:
    How many tokens that was: n, for unpin_prefix(token_ids[:n]).)";

inline constexpr char kUnpinPrefix[] = R"(Undo one pin_prefix.

Takes one pin from each full block of token_ids that has any, so it must be given what was pinned:
token_ids[:n], n being what pin_prefix returned. With more tokens it also takes pins that belong to
longer prefixes.

Args:
    token_ids: the first n of the tokens given to pin_prefix.
    cache_salt: as given to pin_prefix.
Returns:
    How many tokens lost a pin.)";

inline constexpr char kSwapOut[] = R"(Move a request to the host.

Blocks that a request on the device, or a pin, still holds stay there and count this request. A
swapped request allows num_tokens, swap_in and free only.

Returns:
    (device_block, host_block) moves to run before the step's other copies and writes.
Raises:
    OutOfBlocks: too few free host blocks.)";

inline constexpr char kSwapIn[] = R"(Move a request back to the device.

A block shared by several swapped requests moves once, for all of them.

Returns:
    (host_block, device_block) moves to run before the step's other copies and writes.
Raises:
    ValueError: the request is not swapped out.
    OutOfBlocks: too few free blocks.)";

inline constexpr char kBlockTable[] = "The request's block ids; 0 where the window gave one back.";

inline constexpr char kNumTokens[] = "How many tokens the request has.";

inline constexpr char kRefCount[] =
    "How many requests hold the block, swapped ones included. IndexError if there is no such "
    "block.";

inline constexpr char kStats[] = "Sizes and counters as a BlockManagerStats.";

inline constexpr char kResetPrefixCache[] =
    "Forget all cached content and return True; return False, and do nothing, while a request "
    "holds a block or a pin is held.";

inline constexpr char kTakeKvEvents[] = R"(The changes of the prefix cache since the last call.

Each is a KvEvent. Apply them in order: a prefix_id may name another prefix after its removal.
Empty unless made with enable_kv_events=True; then they are kept until taken.)";

inline constexpr char kCheckInvariants[] =
    "Recompute everything that is kept twice; RuntimeError on a contradiction. O(num_blocks).";

inline constexpr char kNumFreeBlocks[] = "Blocks that can be handed out, cached content or not.";

inline constexpr char kNumHostFreeBlocks[] = "Host blocks that are free.";

}  // namespace pagedattn::doc
