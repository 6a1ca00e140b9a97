#include "tuning.h"

namespace pagedattn {
namespace {

// Drops prefetches under load, so each line is asked for two or three times; vdpbf16ps at the rate
// of FMA.
constexpr Tuning kZen = {true, 2, 4, true};
// Drops none: a second request only takes a load slot. vdpbf16ps at a quarter of the rate of FMA.
constexpr Tuning kIntel = {false, 1, 0, false};

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
