// Packed sequences: the tasks of all sequences together, so that threads stay busy whatever the lengths.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "attention.h"
#include "dispatch.h"
#include "plans.h"
#include "status.h"
#include "tasks.h"

namespace flash_attention {
namespace {

// One sequence, and its part of the tensors.
struct Sequence {
  Problem problem;

  Sequence(const Problem& rows, const Packing& packing, int64_t index) : problem(rows) {
    const int64_t first_query = packing.query[index], first_key = packing.key[index];
    Problem& p = problem;
    p.seq_q = packing.query[index + 1] - first_query;
    p.seq_k = packing.key[index + 1] - first_key;
    p.band.seq_k = p.seq_k;
    p.band.offset = packing.bottom_right ? p.seq_k - p.seq_q : 0;
    p.dropout.batch_offset += static_cast<uint32_t>(index);
    if (p.prefix) p.prefix += index;
    if (p.slopes) p.slopes += index * p.slope_stride;
    if (p.dropout.kind == Dropout::kGiven) p.dropout.bits += packing.keep[index];
    if (p.bias.data) p.bias.data = static_cast<const char*>(p.bias.data) + first_key * size_of(p.bias.dtype);
    first_query_ = first_query;
    first_key_ = first_key;
    p.query = like_query(p.query);
    p.key = like_key(p.key);
    p.value = like_value(p.value);
  }

  template <class T>
  T* like_query(T* tensor) const { return part(tensor, problem.query_layout, first_query_); }
  template <class T>
  T* like_output(T* tensor) const { return part(tensor, problem.output_layout, first_query_); }
  template <class T>
  T* like_key(T* tensor) const { return part(tensor, problem.key_layout, first_key_); }
  template <class T>
  T* like_value(T* tensor) const { return part(tensor, problem.value_layout, first_key_); }
  template <class T>
  T* like_logsumexp(T* tensor) const { return tensor == nullptr ? nullptr : tensor + first_query_; }

 private:
  int64_t first_query_;
  int64_t first_key_;

  void* part(void* tensor, const Layout& layout, int64_t row) const {
    return static_cast<char*>(tensor) + row * layout.row_stride * size_of(problem.dtype);
  }
  const void* part(const void* tensor, const Layout& layout, int64_t row) const {
    return static_cast<const char*>(tensor) + row * layout.row_stride * size_of(problem.dtype);
  }
};

// The query rows of one task, for every head.
struct Tile {
  int64_t plan;
  int64_t index;
  int64_t pairs;  // of query and key, about
};

int run_forward(const Problem& rows, const Packing& packing, const ForwardOutputs& outputs) {
  const Kernels* kernels = choose_kernels(rows.dtype);
  if (kernels == nullptr) return kNoTarget;
  if (poisoned()) {
    poison(outputs.output, rows.heads * rows.seq_q * rows.value_dim * size_of(rows.dtype));
    poison(outputs.logsumexp, rows.heads * rows.seq_q * static_cast<int64_t>(sizeof(float)));
  }
  std::vector<Sequence> sequences;
  std::vector<double> works;
  double work = 0;
  for (int64_t i = 0; i < packing.count(); ++i) {
    sequences.emplace_back(rows, packing, i);
    works.push_back(2 * work_of(sequences.back().problem));
    work += works.back();
  }
  const int most = thread_count(work, INT64_MAX);
  const double wanted = most == 1 ? 1 : 6 * most;

  std::vector<ForwardPlan> plans;
  std::vector<Tile> tiles;
  int64_t scratch = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    if (s.problem.seq_q == 0) continue;
    const ForwardOutputs part{s.like_output(outputs.output), s.like_logsumexp(outputs.logsumexp)};
    if (decodes(s.problem)) {
      if (const int status = forward(s.problem, part)) return status;
      continue;
    }
    const int64_t share = work > 0 ? static_cast<int64_t>(wanted * works[i] / work) : 0;
    plans.push_back(plan_forward(s.problem, part, std::max<int64_t>(1, share)));
    const ForwardPlan& plan = plans.back();
    scratch = std::max(scratch, kernels->forward_scratch(plan));
    const Band band = s.problem.band_of(0);
    for (int64_t tile = 0; tile < plan.tiles; ++tile) {
      const int64_t first = tile * plan.rows, last = std::min(first + plan.rows, s.problem.seq_q) - 1;
      const int64_t keys = std::max<int64_t>(0, band.hi(last) - band.lo(first));
      tiles.push_back({static_cast<int64_t>(plans.size()) - 1, tile, (last - first + 1) * keys});
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) { return a.pairs > b.pairs; });

  const int64_t tasks = static_cast<int64_t>(tiles.size()) * rows.heads;
  std::atomic<bool> failed{false};
  const int threads = thread_count(work, tasks);
  const bool done = run_looking_ahead(kernels->forward_task, threads, tasks, scratch, failed, [&](int64_t task) {
    const Tile& tile = tiles[task / rows.heads];
    return ForwardTask{&plans[tile.plan], every_other(task % rows.heads, rows.heads), tile.index};
  });
  return done ? kOk : kNoMemory;
}

int run_backward(const Problem& rows, const Packing& packing, const BackwardInputs& inputs,
                 const BackwardOutputs& outputs) {
  // Of each sequence, to be added up in their order.
  std::vector<float> d_sinks(outputs.d_sinks ? packing.count() * rows.heads : 0);
  const auto run = [&](int64_t index) {
    Sequence s(rows, packing, index);
    Problem& p = s.problem;
    if (p.seq_q == 0 && p.seq_k == 0) return int{kOk};
    // The gradient of a bias has its strides, and sums that lie close together: so does the bias of a sequence by itself.
    const int64_t biases = outputs.d_bias == nullptr ? 0 : p.bias.head_stride == 0 ? 1 : p.heads;
    const int64_t element = size_of(p.bias.dtype), row = p.seq_k * element, from_head = rows.seq_k * element;
    std::vector<char> bias(biases * row), d_bias(biases * row);
    for (int64_t head = 0; head < biases; ++head)
      std::memcpy(bias.data() + head * row, static_cast<const char*>(p.bias.data) + head * from_head, row);
    if (biases > 0) {
      p.bias.data = bias.data();
      if (p.bias.head_stride) p.bias.head_stride = p.seq_k;
    }
    const int status =
        backward(p,
                 {s.like_output(inputs.output), s.like_logsumexp(inputs.logsumexp), s.like_output(inputs.d_output),
                  s.like_logsumexp(inputs.d_logsumexp)},
                 {s.like_query(outputs.d_query), s.like_key(outputs.d_key), s.like_value(outputs.d_value),
                  biases ? d_bias.data() : nullptr, outputs.d_sinks ? d_sinks.data() + index * rows.heads : nullptr});
    char* result = static_cast<char*>(outputs.d_bias) + packing.key[index] * element;
    for (int64_t head = 0; head < biases; ++head) std::memcpy(result + head * from_head, d_bias.data() + head * row, row);
    return status;
  };
  std::vector<std::pair<double, int64_t>> order;
  double work = 0;
  for (int64_t i = 0; i < packing.count(); ++i) {
    order.emplace_back(work_of(Sequence(rows, packing, i).problem), i);
    work += order.back().first;
  }
  std::sort(order.rbegin(), order.rend());
  // A long sequence is shared by all threads, short ones are done by one thread each.
  const double longest_alone = work / (8.0 * thread_count(5 * work, packing.count()));
  size_t shared = 0;
  for (; shared < order.size() && order[shared].first > longest_alone; ++shared)
    if (const int status = run(order[shared].second)) return status;
  std::atomic<int> status{kOk};
  std::atomic<bool> failed{false};
  const int64_t tasks = static_cast<int64_t>(order.size() - shared);
  run_tasks(thread_count(5 * work, tasks), tasks, 0, failed, [&](int64_t task, char*, const auto&) {
    const int result = run(order[shared + task].second);
    if (result == kOk) return;
    status = result;
    failed = true;
  });
  for (int64_t head = 0; outputs.d_sinks && head < rows.heads; ++head) {
    double sum = 0;
    for (int64_t i = 0; i < packing.count(); ++i) sum += d_sinks[i * rows.heads + head];
    outputs.d_sinks[head] = static_cast<float>(sum);
  }
  return status;
}

}  // namespace

int forward_packed(const Problem& rows, const Packing& packing, const ForwardOutputs& outputs) {
  return guarded([&] { return run_forward(rows, packing, outputs); });
}

int backward_packed(const Problem& rows, const Packing& packing, const BackwardInputs& inputs,
                    const BackwardOutputs& outputs) {
  return guarded([&] { return run_backward(rows, packing, inputs, outputs); });
}

}  // namespace flash_attention
