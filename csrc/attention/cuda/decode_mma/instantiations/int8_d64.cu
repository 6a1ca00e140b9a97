#include "../launch.cuh"

namespace pagedattn {
template void launch_decode_mma<int8_t, 64>(const AttentionParams&, Stream);
}  // namespace pagedattn
