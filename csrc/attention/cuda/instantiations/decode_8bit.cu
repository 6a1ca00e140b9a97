#include "../decode_launch.cuh"

namespace pagedattn {
template void launch_decode<uint8_t>(const AttentionParams&, Stream);
}
