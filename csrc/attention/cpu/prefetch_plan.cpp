#include "prefetch_plan.h"

namespace pagedattn {
namespace {

// CPUs that drop prefetches under load, as Zen does: each line is asked for twice.
constexpr PrefetchPlan kTwice = {2, 4};
// CPUs that do not, as Intel's: a second request only takes a load slot.
constexpr PrefetchPlan kOnce = {1, 0};

const PrefetchPlan& choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel")) return kOnce;
#endif
  return kTwice;
}

}  // namespace

const PrefetchPlan& prefetch_plan() {
  static const PrefetchPlan& plan = choose();
  return plan;
}

}  // namespace pagedattn
