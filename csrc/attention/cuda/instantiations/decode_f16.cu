#include "../decode_launch.cuh"

namespace pagedattn {
template void launch_decode<__half>(const AttentionParams&, Stream);
}
