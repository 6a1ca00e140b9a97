#include "block_layout.h"

#include <algorithm>
#include <vector>

namespace pagedattn::ops {
namespace {

struct Dim {
  int64_t count;
  int64_t src_stride;
  int64_t dst_stride;
};

}  // namespace

BlockLayouts block_layouts(const Arg& src, const Arg& dst) {
  if (src.tensor().numel() == 0) return {};  // no bytes
  const auto item = static_cast<int64_t>(src.tensor().element_size());
  std::vector<Dim> dims;
  dims.reserve(src.dim());
  for (int64_t d = 1; d < src.dim(); ++d) {
    if (src.size(d) > 1) dims.push_back({src.size(d), src.stride(d) * item, dst.stride(d) * item});
  }
  std::sort(dims.begin(), dims.end(),
            [](const Dim& a, const Dim& b) { return a.src_stride < b.src_stride; });

  // Innermost first: grow the run while both sides continue it, then keep what is left as loops.
  int64_t run = item;
  std::vector<Dim> loops;
  loops.reserve(dims.size());
  for (const Dim& dim : dims) {
    if (loops.empty() && dim.src_stride == run && dim.dst_stride == run) {
      run *= dim.count;
    } else if (!loops.empty() && dim.src_stride == loops.back().src_stride * loops.back().count &&
               dim.dst_stride == loops.back().dst_stride * loops.back().count) {
      loops.back().count *= dim.count;
    } else {
      loops.push_back(dim);
    }
  }
  if (loops.size() > 2) {
    src.fail(
        "has blocks of too many separate pieces: strides that share a contiguous last dimension "
        "are "
        "needed; got shape ",
        shape_text(src.tensor()));
  }
  const Dim once{1, 0, 0};
  const Dim& inner = loops.empty() ? once : loops[0];
  const Dim& outer = loops.size() < 2 ? once : loops[1];
  const auto layout = [&](const Arg& arg, int64_t Dim::* stride) {
    return BlockLayout{arg.stride(0) * item, outer.count,   outer.*stride,
                       inner.count,          inner.*stride, run};
  };
  return {layout(src, &Dim::src_stride), layout(dst, &Dim::dst_stride)};
}

bool operator==(const BlockLayout& a, const BlockLayout& b) {
  return a.block_stride_bytes == b.block_stride_bytes && a.outer_count == b.outer_count &&
         a.outer_stride_bytes == b.outer_stride_bytes && a.inner_count == b.inner_count &&
         a.inner_stride_bytes == b.inner_stride_bytes && a.run_bytes == b.run_bytes;
}

}  // namespace pagedattn::ops
