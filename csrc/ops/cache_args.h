// Checks of the arguments that describe a paged KV cache, and their way into a KvCacheView.
#pragma once

#include <optional>

#include "../cache/params.h"
#include "checks.h"

namespace pagedattn::ops {

using OptionalTensor = std::optional<Tensor>;

struct CacheArgs {
  const Tensor& key_cache;
  const Tensor& value_cache;
  const OptionalTensor& k_scale;
  const OptionalTensor& v_scale;
};

// `like` is a token tensor ([.., num_heads, head_dim]) that the cache must agree with on device and
// head_dim, and on dtype unless the cache is quantised.
KvCacheView check_cache(const CacheArgs& args, const Arg& like);

// For gather_cache, where no token tensor is given.
KvCacheView check_cache(const CacheArgs& args, const char* op);

}  // namespace pagedattn::ops
