#include "../launch.cuh"

namespace pagedattn {
template void launch_decode_mma<__half, 96>(const AttentionParams&, Stream);
}  // namespace pagedattn
