// The bytes of one block of a cache tensor as the fewest contiguous runs.
#pragma once

#include "../cache/params.h"
#include "checks.h"

namespace pagedattn::ops {

// Layouts of src and dst, two [num_blocks, ...] tensors whose blocks have the same shape and item
// size, walked in one order. Pass the same tensor twice for copies within a cache.
struct BlockLayouts {
  BlockLayout src;
  BlockLayout dst;
};

BlockLayouts block_layouts(const Arg& src, const Arg& dst);

bool operator==(const BlockLayout& a, const BlockLayout& b);

}  // namespace pagedattn::ops
