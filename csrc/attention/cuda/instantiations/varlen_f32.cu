#include "../varlen_launch.cuh"

namespace pagedattn {
template void launch_varlen<float>(const AttentionParams&, Stream);
}
