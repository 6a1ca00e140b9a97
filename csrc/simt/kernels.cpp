// The CUDA kernels as the kernels of CPU tensors: what makes torch.ops.pagedattn_simt.*.
#include "../kernels.h"

namespace pagedattn {

const KernelTable& cpu_kernels() { return cuda_kernels(); }
const char* cpu_isa_name() { return "simt"; }

}  // namespace pagedattn
