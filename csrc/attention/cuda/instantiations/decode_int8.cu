#include "../decode_launch.cuh"

namespace pagedattn {
template void launch_decode<int8_t>(const AttentionParams&, Stream);
}
