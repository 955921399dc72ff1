// How a problem becomes tasks.
#pragma once

#include <vector>

#include "kernels.h"

namespace flash_attention {

// Multiplications of one product over all visible pairs.
double work_of(const Problem& problem);

// The forward pass in `wanted` tasks or more, where there are enough rows.
ForwardPlan plan_forward(const Problem& problem, const ForwardOutputs& outputs, int64_t wanted);

// Whether the forward pass of a problem goes by chunks of keys.
bool decodes(const Problem& problem);

// That pass. block_size, key_block and value_block as in DecodePlan; of the caches, `band` and `blocks` count.
int decode(const Problem& problem, std::vector<DecodeCache> caches, int64_t block_size, int64_t key_block,
           int64_t value_block, const ForwardOutputs& outputs);

}  // namespace flash_attention
