// One table per instruction set that the CPU kernels are compiled for.
#pragma once

#include "../../kernels.h"

namespace pagedattn {

namespace generic {
extern const KernelTable kernel_table;
}
namespace avx2 {
extern const KernelTable kernel_table;
}
namespace avx512 {
extern const KernelTable kernel_table;
}
namespace avx512_bf16 {
extern const KernelTable kernel_table;
}

// Whether prefill may use AMX's tiles; the table is that of avx512_bf16 then.
bool cpu_uses_amx();

}  // namespace pagedattn
