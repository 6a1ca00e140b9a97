#include "tuning.h"

namespace pagedattn {
namespace {

// Drops prefetches under load; vdpbf16ps does twice the products of FMA.
constexpr Tuning kZen = {true, true};
// Drops none; vdpbf16ps does half the products of FMA.
constexpr Tuning kIntel = {false, false};

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
