// The many-rows half of attention: sequences with enough query tokens for a matrix product.
#pragma once

#include "../../../common/cpu/parallel.h"
#include "plan.h"

namespace pagedattn::PAGEDATTN_ISA {

// One thread's share: does units of `plan` until `queue` is empty.
void prefill(const AttentionParams& params, const PrefillPlan& plan, UnitQueue& queue);

}  // namespace pagedattn::PAGEDATTN_ISA

// All that differs between CPUs with and without AMX, and all that is compiled for it.
namespace pagedattn::avx512_amx {
void prefill(const AttentionParams& params, const PrefillPlan& plan, UnitQueue& queue);
}
