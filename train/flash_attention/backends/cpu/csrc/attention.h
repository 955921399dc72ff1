// Runs a validated problem: splits it into tasks, finds threads and memory for them.
#pragma once

#include "problem.h"

namespace flash_attention {

// Both give a Status and throw nothing.
int forward(const Problem& problem, const ForwardOutputs& outputs);
int backward(const Problem& problem, const BackwardInputs& inputs, const BackwardOutputs& outputs);

}  // namespace flash_attention
