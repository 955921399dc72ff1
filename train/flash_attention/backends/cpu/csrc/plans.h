// How a problem becomes tasks.
#pragma once

#include <vector>

#include "kernels.h"
#include "tasks.h"

namespace flash_attention {

// Multiplications of one product over all visible pairs.
double work_of(const Problem& problem);

// The forward pass in `wanted` tasks or more, where there are enough rows.
ForwardPlan plan_forward(const Problem& problem, const ForwardOutputs& outputs, int64_t wanted);

// Runs the tasks task_at(0), ... of forward passes with one dtype. False without memory.
template <class TaskAt>
bool run_forward_tasks(const Kernels& kernels, int threads, int64_t tasks, int64_t scratch_bytes, const TaskAt& task_at) {
  std::atomic<bool> failed{false};
  return run_tasks(threads, tasks, scratch_bytes, failed,
                   [&](int64_t index, char* scratch, const std::atomic<int64_t>& next) {
                     const auto look = [&](ForwardTask& task) {
                       const int64_t following = next.load(std::memory_order_relaxed);
                       if (following < tasks) task = task_at(following);
                       return following < tasks;
                     };
                     using Look = decltype(look);
                     const auto find = [](const void* state, ForwardTask& task) {
                       return (*static_cast<const Look*>(state))(task);
                     };
                     kernels.forward_task(task_at(index), {find, &look}, scratch);
                   });
}

// Whether the forward pass of a problem goes by chunks of keys.
bool decodes(const Problem& problem);

// That pass. block_size, key_block and value_block as in DecodePlan; of the caches, `band` and `blocks` count.
int decode(const Problem& problem, std::vector<DecodeCache> caches, int64_t block_size, int64_t key_block,
           int64_t value_block, const ForwardOutputs& outputs);

}  // namespace flash_attention
