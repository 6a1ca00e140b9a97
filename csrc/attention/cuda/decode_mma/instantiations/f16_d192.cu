#include "../launch.cuh"

namespace pagedattn {
template void launch_decode_mma<__half, 192>(const AttentionParams&, Stream);
}  // namespace pagedattn
