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
  // Given keep decisions: bytes before those of a sequence, which are (heads, its queries, its keys / 8 rounded up).
  std::vector<int64_t> keep;

  int64_t count() const { return static_cast<int64_t>(query.size()) - 1; }
};

int forward_packed(const Problem& rows, const Packing& packing, const ForwardOutputs& outputs);
int backward_packed(const Problem& rows, const Packing& packing, const BackwardInputs& inputs,
                    const BackwardOutputs& outputs);

// Keys and values of a problem in blocks: those of batch element b are the first lengths[b], but no more than `most`, of
// the blocks that row b of the table names. Its queries stand at the end of lengths[b] tokens.
struct Paging {
  const int32_t* tables;  // (batch, table_width)
  int64_t table_width;
  const int32_t* lengths;  // (batch)
  const int32_t* first_keys;  // (batch): the keys before it are hidden; null = 0
  int64_t most;
  int64_t block_size;
  int64_t key_block;  // elements from one block of keys to the next
  int64_t value_block;
  bool causal;
  int64_t window_left;  // -1 = unlimited
  int64_t window_right;
};

int forward_paged(const Problem& problem, const Paging& paging, const ForwardOutputs& outputs);

// What the arithmetic of products can do at most: so many operations in registers alone, shared by all threads.
int multiply_adds(DType dtype, int64_t operations);

}  // namespace flash_attention
