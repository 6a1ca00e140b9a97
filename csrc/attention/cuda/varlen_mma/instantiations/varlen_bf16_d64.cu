#include "../launch.cuh"

namespace pagedattn {
template void launch_varlen_mma<__nv_bfloat16, 64>(const AttentionParams&, Stream);
}  // namespace pagedattn
