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

// An order of `count` heads: every other one, then the rest. Heads side by side may share cache lines, which threads that
// have them at the same time would write by turns.
inline int64_t every_other(int64_t index, int64_t count) {
  const int64_t even = (count + 1) / 2;
  return index < even ? 2 * index : 2 * (index - even) + 1;
}

// Runs the tasks task_at(0), ... of passes with one dtype by `kernel`, which may look ahead. False without memory.
template <class Task, class TaskAt>
bool run_looking_ahead(void (*kernel)(const Task&, const NextTask<Task>&, char*), int threads, int64_t tasks,
                       int64_t scratch_bytes, std::atomic<bool>& failed, const TaskAt& task_at) {
  return run_tasks(threads, tasks, scratch_bytes, failed,
                   [&](int64_t index, char* scratch, const auto& claim) {
                     const auto look = [&](Task& task) {
                       const int64_t following = claim();
                       if (following < tasks) task = task_at(following);
                       return following < tasks;
                     };
                     using Look = decltype(look);
                     const auto find = [](const void* state, Task& task) {
                       return (*static_cast<const Look*>(state))(task);
                     };
                     kernel(task_at(index), {find, &look}, scratch);
                   });
}

// Whether the forward pass of a problem goes by chunks of keys.
bool decodes(const Problem& problem);

// That pass.
int decode(const Problem& problem, const ForwardOutputs& outputs);

// The same for keys in blocks. block_size, key_block and value_block as in DecodePlan; of the caches, `band` and `blocks`
// count.
int decode(const Problem& problem, std::vector<DecodeCache> caches, int64_t block_size, int64_t key_block,
           int64_t value_block, const ForwardOutputs& outputs);

}  // namespace flash_attention
