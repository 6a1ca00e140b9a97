#include "../varlen_launch.cuh"

namespace pagedattn {
template void launch_varlen<int8_t>(const AttentionParams&, Stream);
}
