#include "../launch.cuh"

namespace pagedattn {
template void launch_decode_mma<__nv_fp8_e4m3, 128>(const AttentionParams&, Stream);
}  // namespace pagedattn
