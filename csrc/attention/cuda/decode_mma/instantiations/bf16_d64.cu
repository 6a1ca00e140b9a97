#include "../launch.cuh"

namespace pagedattn {
template void launch_decode_mma<__nv_bfloat16, 64>(const AttentionParams&, Stream);
}  // namespace pagedattn
