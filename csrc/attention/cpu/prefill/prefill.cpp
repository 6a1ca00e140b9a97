#include "prefill.h"

#include <type_traits>

#include "../../../common/cpu/rows.h"
#include "micro_kernel_bf16.h"
#include "unit.h"

namespace pagedattn::PAGEDATTN_ISA {
namespace {

template <typename Kernel, typename T>
void work_off(const AttentionParams& params, const PrefillPlan& plan, UnitQueue& queue) {
  PrefillWorker<Kernel> worker(params, Packer<Kernel>::template of<T>(), sizeof(T),
                               plan.max_rows());
  for (int64_t i; queue.take(i);) worker.run(plan.unit(i));
}

}  // namespace

void prefill(const AttentionParams& params, const PrefillPlan& plan, UnitQueue& queue) {
  if (queue.empty()) return;
  with_storage_type(params.cache.dtype, [&](auto type) {
    using T = decltype(type);
#if defined(PAGEDATTN_BF16_PAIRS)
    // bf16 holds bf16 and every 8-bit type exactly.
    if constexpr (std::is_same_v<T, BFloat16> || sizeof(T) == 1) {
      if (params.dtype == DType::kBFloat16 && bf16_kernel_is_faster()) {
        [[maybe_unused]] const TileConfiguration tiles;
        return work_off<BFloat16Kernel, T>(params, plan, queue);
      }
    }
#endif
    work_off<FloatKernel, T>(params, plan, queue);
  });
}

}  // namespace pagedattn::PAGEDATTN_ISA
