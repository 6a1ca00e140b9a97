// How far ahead, and how often, attention asks memory for rows: a matter of the CPU's make, not of
// its instruction set.
#pragma once

namespace pagedattn {

// Distances in chunks of rows (tile.h); 0: none.
struct PrefetchPlan {
  int near;
  int far;
};

const PrefetchPlan& prefetch_plan();

}  // namespace pagedattn
