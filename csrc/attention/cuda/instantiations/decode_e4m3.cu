#include "../decode_launch.cuh"

namespace pagedattn {
template void launch_decode<__nv_fp8_e4m3>(const AttentionParams&, Stream);
}
