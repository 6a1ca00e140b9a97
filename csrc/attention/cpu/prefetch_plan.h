// How far ahead, and how often, attention asks memory for rows: a matter of the CPU's make, not of
// its instruction set.
#pragma once

namespace pagedattn {

constexpr int kMaxPrefetchDistance = 64;  // rows

struct PrefetchPlan {
  const int* distances;  // in rows, each at most kMaxPrefetchDistance
  int count;
};

const PrefetchPlan& prefetch_plan();

}  // namespace pagedattn
