#include "prefetch_plan.h"

namespace pagedattn {
namespace {

// CPUs that drop prefetches under load, as Zen does: each line is asked for several times.
constexpr int kRepeated[] = {24, 48};
// CPUs that do not, as Intel's: a second request only takes a load slot.
constexpr int kOnce[] = {16};
constexpr PrefetchPlan kRepeatedPlan = {kRepeated, sizeof(kRepeated) / sizeof(int)};
constexpr PrefetchPlan kOncePlan = {kOnce, sizeof(kOnce) / sizeof(int)};

const PrefetchPlan& choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel")) return kOncePlan;
#endif
  return kRepeatedPlan;
}

}  // namespace

const PrefetchPlan& prefetch_plan() {
  static const PrefetchPlan& plan = choose();
  return plan;
}

}  // namespace pagedattn
