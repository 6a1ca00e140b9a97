#include "../decode_launch.cuh"

namespace pagedattn {
template void launch_decode<uint16_t>(const AttentionParams&, Stream);
}
