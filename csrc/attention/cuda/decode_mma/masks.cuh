// What the plain case skips: softcap and ALiBi, and the tokens outside the visible range in the
// first and the last tile.
#pragma once

#include <math.h>

#include <cstdint>

#include "../../params.h"
#include "../../visibility.h"
#include "../logits.cuh"
#include "../mma_operands.cuh"

namespace pagedattn::decode_mma {

// Turns the lane's scores of the tile that starts at `first_token` into logits in units of log2,
// -inf where the query does not see the token. `factors`: those of the plain case.
template <typename Layout>
__device__ __forceinline__ void apply_masks(float (&scores)[Layout::kScores],
                                            const float (&factors)[2],
                                            const AttentionParams& params, int first_head,
                                            int num_heads, KvRange visible, int32_t q_pos,
                                            int32_t first_token, int lane) {
  // A warp's last rows may be no heads at all; they take the last head's rule.
  const LogitRule rules[2] = {
      LogitRule(params, first_head + min(Layout::head(lane, 0), num_heads - 1)),
      LogitRule(params, first_head + min(Layout::head(lane, 1), num_heads - 1))};
#pragma unroll
  for (int e = 0; e < Layout::kScores; ++e) {
    const int32_t token = first_token + Layout::token(lane, e);
    const int state = Layout::state_of(e);
    const float scaled = scores[e] * factors[state] * kLn2;
    const float logit = rules[state].of_scaled(scaled, token - q_pos) * kLog2E;
    scores[e] = visible.begin <= token && token < visible.end ? logit : -INFINITY;
  }
}

}  // namespace pagedattn::decode_mma
