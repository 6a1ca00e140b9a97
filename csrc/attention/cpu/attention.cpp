// Attention over the paged cache, as units of work that one thread each does. Sequences with many
// query rows take matrix products over packed tiles (prefill/); decode (V1, and V2's partitions)
// and sequences with few query rows are bound by memory and read the cache in place.
#include "../../common/cpu/kernel_table.h"
#include "../../common/cpu/parallel.h"
#include "../../common/cpu/rows.h"
#include "decode_unit.h"
#include "kernels.h"
#include "prefill/prefill.h"
#include "work.h"

namespace pagedattn::PAGEDATTN_ISA {
namespace {

using Prefill = void (*)(const AttentionParams&, const PrefillPlan&, UnitQueue&);

Prefill choose_prefill() {
#if defined(__AVX512BF16__)
  if (cpu_uses_amx()) return avx512_amx::prefill;
#endif
  return prefill;
}

}  // namespace

void attention(const AttentionParams& params, Stream) {
  const PrefillPlan prefill_plan(params, num_threads());
  const WorkPlan plan(params, num_threads());
  UnitQueue prefill_queue(prefill_plan.num_units());
  UnitQueue queue(plan.num_units());
  const Prefill prefill_units = choose_prefill();
  on_threads(prefill_plan.num_units() + plan.num_units(), [&] {
    prefill_units(params, prefill_plan, prefill_queue);
    with_storage_type(params.cache.dtype, [&](auto type) {
      for (int64_t i; queue.take(i);) {
        Unit unit;
        if (plan.get(i, unit)) DecodeUnit<decltype(type)>(params, unit).run();
      }
    });
  });
}

}  // namespace pagedattn::PAGEDATTN_ISA
