#include "../decode_launch.cuh"

namespace pagedattn {
template void launch_decode<float>(const AttentionParams&, Stream);
}
