// Runs a validated problem: splits it into tasks, finds threads and memory for them.
#pragma once

#include <vector>

#include "problem.h"

namespace flash_attention {

// All give a Status and throw nothing.
int forward(const Problem& problem, const ForwardOutputs& outputs);
int backward(const Problem& problem, const BackwardInputs& inputs, const BackwardOutputs& outputs);

// Sequences that lie one behind the other in the rows of a problem of batch 1, each a problem of its own: sequence i has
// the queries [query[i], query[i + 1]) and the keys [key[i], key[i + 1]).
struct Packing {
  std::vector<int64_t> query;
  std::vector<int64_t> key;
  bool bottom_right;

  int64_t count() const { return static_cast<int64_t>(query.size()) - 1; }
};

int forward_packed(const Problem& rows, const Packing& packing, const ForwardOutputs& outputs);
int backward_packed(const Problem& rows, const Packing& packing, const BackwardInputs& inputs,
                    const BackwardOutputs& outputs);

}  // namespace flash_attention
