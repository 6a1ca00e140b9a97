#include "../varlen_launch.cuh"

namespace pagedattn {
template void launch_varlen<uint8_t>(const AttentionParams&, Stream);
}
