#include "../varlen_launch.cuh"

namespace pagedattn {
template void launch_varlen<__nv_fp8_e4m3>(const AttentionParams&, Stream);
}
