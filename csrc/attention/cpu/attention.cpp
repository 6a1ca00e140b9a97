// Attention over the paged cache: decode (V1, and V2's partitions) and varlen, which are one kernel
// seen from the CPU: units of work (work.h), each done by one thread.
#include "../../common/cpu/parallel.h"
#include "../../common/cpu/rows.h"
#include "decode_unit.h"
#include "kernels.h"
#include "work.h"

namespace pagedattn::PAGEDATTN_ISA {

void attention(const AttentionParams& params, Stream) {
  const WorkPlan plan(params);
  with_storage_type(params.cache.dtype, [&](auto type) {
    parallel_units(plan.num_units(), [&](int64_t index) {
      Unit unit;
      if (plan.get(index, unit)) DecodeUnit<decltype(type)>(params, unit).run();
    });
  });
}

}  // namespace pagedattn::PAGEDATTN_ISA
