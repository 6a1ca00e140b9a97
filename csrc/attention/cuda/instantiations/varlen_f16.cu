#include "../varlen_launch.cuh"

namespace pagedattn {
template void launch_varlen<__half>(const AttentionParams&, Stream);
}
