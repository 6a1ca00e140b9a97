#include "../decode_launch.cuh"

namespace pagedattn {
template void launch_decode<uint32_t>(const AttentionParams&, Stream);
}
