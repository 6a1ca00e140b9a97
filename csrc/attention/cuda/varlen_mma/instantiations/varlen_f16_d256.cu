#include "../launch.cuh"

namespace pagedattn {
template void launch_varlen_mma<__half, 256>(const AttentionParams&, Stream);
}  // namespace pagedattn
