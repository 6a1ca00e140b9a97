#include "../varlen_launch.cuh"

namespace pagedattn {
template void launch_varlen<uint16_t>(const AttentionParams&, Stream);
}
