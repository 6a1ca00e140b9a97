#include "../launch.cuh"

namespace pagedattn {
template void launch_decode_mma<__nv_fp8_e4m3, 256>(const AttentionParams&, Stream);
}  // namespace pagedattn
