#include "tuning.h"

namespace pagedattn {
namespace {

// Drops prefetches under load, so each line is asked for two or three times; vdpbf16ps at the rate
// of FMA.
constexpr Tuning kZen = {4, 2, true, true};
// Drops none: a second request only takes a load slot. vdpbf16ps at a quarter of the rate of FMA.
constexpr Tuning kIntel = {0, 1, false, false};

const Tuning& choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel")) return kIntel;
#endif
  return kZen;
}

}  // namespace

const Tuning& tuning() {
  static const Tuning& chosen = choose();
  return chosen;
}

}  // namespace pagedattn
