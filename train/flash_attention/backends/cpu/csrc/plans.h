// How a problem becomes tasks.
#pragma once

#include "kernels.h"

namespace flash_attention {

// Multiplications of one product over all visible pairs.
double work_of(const Problem& problem);

// The forward pass in `wanted` tasks or more, where there are enough rows.
ForwardPlan plan_forward(const Problem& problem, const ForwardOutputs& outputs, int64_t wanted);

}  // namespace flash_attention
