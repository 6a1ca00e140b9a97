#include "../varlen_launch.cuh"

namespace pagedattn {
template void launch_varlen<uint32_t>(const AttentionParams&, Stream);
}
