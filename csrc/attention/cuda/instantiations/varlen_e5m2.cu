#include "../varlen_launch.cuh"

namespace pagedattn {
template void launch_varlen<__nv_fp8_e5m2>(const AttentionParams&, Stream);
}
