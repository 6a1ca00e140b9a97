#include "../launch.cuh"

namespace pagedattn {
template void launch_varlen_mma<uint8_t, 128>(const AttentionParams&, Stream);
}  // namespace pagedattn
