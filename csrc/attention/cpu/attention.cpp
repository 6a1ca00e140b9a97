// Attention over the paged cache, as units of work that one thread each does. Sequences with many
// query rows take matrix products over packed tiles (prefill/); decode (V1, and V2's partitions)
// and sequences with few query rows are bound by memory and read the cache in place.
#include "../../common/cpu/kernel_table.h"
#include "../../common/cpu/parallel.h"
#include "../../common/cpu/rows.h"
#include "bf16_products.h"
#include "decode_unit.h"
#include "fma_products.h"
#include "int8_products.h"
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

// By the fastest arithmetic that this CPU has for rows of T and that is exact enough for the query.
template <typename T>
void run(const AttentionParams& params, const Unit& unit) {
#if defined(__AVX512BF16__)
  const bool bf16_query = params.dtype == DType::kBFloat16;
  if constexpr (std::is_same_v<T, int8_t>) {
    if (bf16_query) return DecodeUnit<T, Int8Products<2>>(params, unit).run();
    return DecodeUnit<T, Int8Products<3>>(params, unit).run();
  } else if constexpr (sizeof(T) == 1 || std::is_same_v<T, BFloat16>) {
    if (bf16_query && tuning().dots_bf16) {
      return DecodeUnit<T, Bf16Products<T>>(params, unit).run();
    }
  }
#endif
  DecodeUnit<T, FmaProducts<T>>(params, unit).run();
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
        if (plan.get(i, unit)) run<decltype(type)>(params, unit);
      }
    });
  });
}

}  // namespace pagedattn::PAGEDATTN_ISA
