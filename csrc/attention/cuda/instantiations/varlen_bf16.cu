#include "../varlen_launch.cuh"

namespace pagedattn {
template void launch_varlen<__nv_bfloat16>(const AttentionParams&, Stream);
}
