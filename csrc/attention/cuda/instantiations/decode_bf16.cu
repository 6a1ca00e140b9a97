#include "../decode_launch.cuh"

namespace pagedattn {
template void launch_decode<__nv_bfloat16>(const AttentionParams&, Stream);
}
