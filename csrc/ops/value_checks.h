// Checks of the values in integer tensors, on the CPU only: on CUDA the host must not wait for
// them.
#pragma once

#include "../attention/params.h"
#include "../cache/params.h"

namespace pagedattn::ops {

// seq_lens, cu_seqlens_q and every block id that a visible key lies in.
void check_values(const char* op, const AttentionParams& params);

// cu_seq_lens and the block ids they reach.
void check_values(const char* op, const GatherParams& params);

void check_slots(const char* op, const ReshapeParams& params);

// Block pairs: ids in range, destinations distinct, and, where `in_place`, no block both source and
// destination.
void check_block_mapping(const char* op, const int64_t* mapping, int64_t num_pairs,
                         int64_t num_src_blocks, int64_t num_dst_blocks, bool in_place);

}  // namespace pagedattn::ops
