#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "kernels.h"
#include "plans.h"
#include "status.h"
#include "tasks.h"

namespace flash_attention {

double work_of(const Problem& p) {
  double pairs = 0;
  const int64_t step = std::max<int64_t>(1, p.seq_q / 64);
  for (int64_t row = 0; row < p.seq_q; row += step)
    pairs += static_cast<double>(std::max<int64_t>(0, p.band.hi(row) - p.band.lo(row))) * step;
  return pairs * p.blocks_share * (p.head_dim + p.value_dim) / 2 * p.batch * p.heads;
}

ForwardPlan plan_forward(const Problem& p, const ForwardOutputs& outputs, int64_t wanted) {
  // Rows of one tile of a block mask visit the same keys.
  ForwardPlan plan{p, outputs, p.blocks.data ? std::min(std::max(p.blocks.tile, kMostTile), kForwardRows) : kForwardRows, 0};
  while (plan.rows > 32 && (p.batch * p.heads * ((p.seq_q + plan.rows - 1) / plan.rows) < wanted ||
                            plan.rows * std::max(p.head_dim, p.value_dim) > kForwardRows * 160 || plan.rows >= 2 * p.seq_q))
    plan.rows /= 2;
  plan.tiles = (p.seq_q + plan.rows - 1) / plan.rows;
  return plan;
}

namespace {

// For how many key/value heads at a time keys are packed, or d_query is summed: as many as CallMemory has room for, at least
// one.
int64_t wave_of(int64_t groups, int64_t group_bytes) {
  return std::min(groups, std::max<int64_t>(1, CallMemory::kMostKept / std::max<int64_t>(1, group_bytes)));
}

// The tasks of `count` heads, the longest first.
std::vector<ForwardTask> tasks_of(const ForwardPlan& plan, int64_t first_head, int64_t count) {
  const Problem& p = plan.problem;
  std::vector<ForwardTask> tasks;
  tasks.reserve(plan.tiles * count);
  if (p.blocks.data == nullptr) {
    // Under a causal mask the last rows see most keys.
    for (int64_t tile = plan.tiles - 1; tile >= 0; --tile)
      for (int64_t head = first_head; head < first_head + count; ++head) tasks.push_back({&plan, head, tile});
    return tasks;
  }
  // Those that visit about as many tiles stay in the order of the heads, whose keys they find in the cache.
  constexpr int kSizes = 64;
  std::vector<ForwardTask> by_size[kSizes];
  for (int64_t head = first_head; head < first_head + count; ++head)
    for (int64_t tile = 0; tile < plan.tiles; ++tile) {
      const int64_t batch = head / p.heads, first = tile * plan.rows, end = std::min(first + plan.rows, p.seq_q);
      const Band band = p.band_of(batch);
      const int64_t lo = band.lo(first), hi = band.hi(end - 1);
      const int64_t visible = lo < hi ? p.blocks.count(batch, head % p.heads, first, end, lo, hi) : 0;
      by_size[kSizes - 1 - std::ilogb(2.0 * visible + 1)].push_back({&plan, head, tile});
    }
  for (const auto& some : by_size) tasks.insert(tasks.end(), some.begin(), some.end());
  return tasks;
}

int run_forward(const Problem& p, const ForwardOutputs& outputs) {
  const Kernels* kernels = choose_kernels(p.dtype);
  if (kernels == nullptr) return kNoTarget;
  if (decodes(p)) return decode(p, outputs);
  const int64_t rows = p.batch * p.heads * p.seq_q;
  if (poisoned()) {
    poison(outputs.output, rows * p.value_dim * size_of(p.dtype));
    poison(outputs.logsumexp, rows * static_cast<int64_t>(sizeof(float)));
  }
  const double work = 2 * work_of(p);
  const int most = thread_count(work, INT64_MAX);
  // Many rows share the packing of a key tile; few rows leave something to do for every thread, and stay in the cache.
  ForwardPlan plan = plan_forward(p, outputs, most == 1 ? 1 : 6 * most);
  const int64_t groups = p.batch * p.kv_heads;
  const int64_t scratch = kernels->forward_scratch(plan);
  std::atomic<bool> failed{false};
  const int64_t key_tiles = (p.seq_k + kernels->tile - 1) / kernels->tile;
  int64_t wave = groups;
  std::optional<CallMemory> packed;
  std::vector<int32_t> packing;
  if (p.blocks.data) {
    plan.packed_bytes = kernels->packed_bytes(plan);
    wave = wave_of(groups, key_tiles * plan.packed_bytes);
    plan.packed = packed.emplace(wave * key_tiles * plan.packed_bytes).get();
    packing.resize(wave * key_tiles);
    plan.packing = packing.data();
  }
  for (; plan.first_group < groups && !failed; plan.first_group += wave) {
    const int64_t count = std::min(wave, groups - plan.first_group);
    std::fill(packing.begin(), packing.end(), int32_t{kUnpacked});
    const std::vector<ForwardTask> tasks = tasks_of(plan, plan.first_group * p.group(), count * p.group());
    run_looking_ahead(kernels->forward_task, thread_count(work, tasks.size()), tasks.size(), scratch, failed,
                      [&](int64_t task) { return tasks[task]; });
  }
  return failed ? kNoMemory : kOk;
}

// A logsumexp that is greater, of either sign, has no room in float32 for what shows in the probabilities.
constexpr float kGreat = 512.0f;

// Fills plan.rest of a problem with a bias. The great logsumexps are made again; where one is of more keys than these, what
// it lacks is not known.
bool find_rest(const Kernels* kernels, const BackwardPlan& plan, std::atomic<bool>& failed) {
  Problem p = plan.problem;
  p.lse_stride = p.seq_q;
  ForwardPlan forward = plan_forward(p, {}, 1);
  std::vector<ForwardTask> tasks;
  std::vector<int64_t> great;  // by head and row
  for (int64_t at = 0; at < p.batch * p.heads * p.seq_q; ++at) {
    const int64_t head = at / p.seq_q, row = at % p.seq_q, tile = row / forward.rows;
    const float size = std::fabs(plan.inputs.logsumexp[head * plan.problem.lse_stride + row]);
    plan.rest[at] = 0.0f;
    if (!(size > kGreat && size < INFINITY)) continue;
    great.push_back(at);
    if (tasks.empty() || tasks.back().batch_head != head || tasks.back().tile != tile) tasks.push_back({&forward, head, tile});
  }
  if (great.empty()) return true;
  const Buffer<float> sums = allocate<float>(2 * p.batch * p.heads * p.seq_q);
  const float* own = forward.outputs.logsumexp = sums.get();
  const float* rest = forward.outputs.rest = sums.get() + p.batch * p.heads * p.seq_q;
  const int64_t count = static_cast<int64_t>(tasks.size());
  // As the forward pass has made them.
  const bool done =
      decodes(p) ? decode(p, forward.outputs) == kOk
                 : run_looking_ahead(kernels->forward_task, thread_count(2 * work_of(p), count), count,
                                     kernels->forward_scratch(forward), failed, [&](int64_t task) { return tasks[task]; });
  for (const int64_t at : great)
    // A sink alone leaves no rest.
    if (std::isfinite(rest[at]) && own[at] == plan.inputs.logsumexp[at / p.seq_q * plan.problem.lse_stride + at % p.seq_q])
      plan.rest[at] = -rest[at] * static_cast<float>(M_LOG2E);
  return done;
}

struct Turns {
  std::vector<std::atomic<int32_t>> of;
  std::atomic<bool>* failed;
};

bool wait_turn(const BackwardPlan& plan, int64_t index, int32_t turn) {
  const Turns& turns = *static_cast<const Turns*>(plan.state);
  for (int spins = 0; turns.of[index].load(std::memory_order_acquire) != turn; ++spins) {
    if (turns.failed->load(std::memory_order_relaxed)) return false;
    // The thread that is due may be waiting for this very core.
    if (spins > 64) std::this_thread::yield();
  }
  return true;
}

void set_turn(const BackwardPlan& plan, int64_t index, int32_t turn) {
  static_cast<Turns*>(plan.state)->of[index].store(turn, std::memory_order_release);
}

int64_t bias_elements(const Problem& p) {
  const Broadcast& b = p.bias;
  return p.seq_k * (b.row_stride ? p.seq_q : 1) * (b.head_stride ? p.heads : 1) * (b.batch_stride ? p.batch : 1);
}

// Sums of the bias gradient: where the tasks put them, and how they become the result.
struct BiasSums {
  bool wanted = false;
  bool by_row = false;   // the bias has a row axis: sums of its own shape, else one sum per (batch, head, key)
  bool shared = false;   // heads or batch elements add to the same sums
  int64_t count = 0;     // of the result
  int64_t size = 0;      // of the sums
  Buffer<float> own;
  float* sums = nullptr;

  BiasSums(const Problem& p, void* result) {
    wanted = result != nullptr;
    if (!wanted) return;
    const Broadcast& b = p.bias;
    by_row = b.row_stride != 0 || p.seq_q == 1;
    shared = (b.batch_stride == 0 && p.batch > 1) || (b.head_stride == 0 && p.heads > 1);
    count = bias_elements(p);
    size = by_row ? count : p.batch * p.heads * p.seq_k;
    if (by_row && b.dtype == DType::kFloat32) {
      sums = static_cast<float*>(result);
    } else {
      own = allocate<float>(size);
      sums = own.get();
    }
  }
  void clear() const {
    if (wanted) std::memset(sums, 0, size * sizeof(float));
  }

  void finish(const Problem& p, const Kernels* kernels, void* result) const {
    if (!wanted || sums == result) return;
    const Broadcast& b = p.bias;
    if (by_row) return kernels->convert(sums, 1.0f, count, b.dtype, result);
    Buffer<float> total = allocate<float>(count);
    std::memset(total.get(), 0, count * sizeof(float));
    for (int64_t batch = 0; batch < p.batch; ++batch)
      for (int64_t head = 0; head < p.heads; ++head) {
        const float* from = sums + (batch * p.heads + head) * p.seq_k;
        float* to = total.get() + batch * b.batch_stride + head * b.head_stride;
        for (int64_t key = 0; key < p.seq_k; ++key) to[key] += from[key];
      }
    kernels->convert(total.get(), 1.0f, count, b.dtype, result);
  }
};

int run_backward(const Problem& p, const BackwardInputs& inputs, const BackwardOutputs& outputs) {
  const Kernels* kernels = choose_kernels(p.dtype);
  if (kernels == nullptr) return kNoTarget;
  const int64_t heads = p.batch * p.heads, groups = p.batch * p.kv_heads, rows = heads * p.seq_q;
  const bool dirty = poisoned();
  if (dirty) {
    const int64_t size = size_of(p.dtype);
    poison(outputs.d_query, rows * p.head_dim * size);
    poison(outputs.d_key, groups * p.seq_k * p.head_dim * size);
    poison(outputs.d_value, groups * p.seq_k * p.value_dim * size);
    if (outputs.d_sinks) poison(outputs.d_sinks, p.heads * static_cast<int64_t>(sizeof(float)));
    if (outputs.d_bias) poison(outputs.d_bias, bias_elements(p) * size_of(p.bias.dtype));
  }
  BiasSums bias(p, outputs.d_bias);
  BackwardPlan plan{};
  plan.problem = p;
  plan.inputs = inputs;
  plan.outputs = outputs;
  plan.tile = kernels->tile;
  plan.query_tiles = (p.seq_q + plan.tile - 1) / plan.tile;
  plan.key_tiles = (p.seq_k + plan.tile - 1) / plan.tile;
  // The gradient of the scores is stored with the scale of the scores in it, unless the bias wants it plain.
  const float scale = static_cast<float>(p.scale);
  plan.score_gradient_scale = bias.wanted ? 1.0f : scale;
  plan.factor_left = bias.wanted ? scale : 1.0f;
  (bias.by_row ? plan.d_bias : plan.d_bias_columns) = bias.sums;

  const Buffer<float> row_values = allocate<float>(3 * rows);
  plan.shift = row_values.get();
  plan.delta = plan.shift + rows;
  plan.rest = plan.delta + rows;

  // Sums of d_query: float32 in rows of whole cache lines, in the result itself where that is so.
  plan.d_query_width = (p.head_dim + 15) / 16 * 16;
  const int64_t head_sums = p.seq_q * plan.d_query_width, group_sums = p.group() * head_sums;
  int64_t wave = wave_of(groups, group_sums * static_cast<int64_t>(sizeof(float)));
  if (bias.by_row && bias.shared) wave = 1;
  // Rows far apart would be slower to add to than to copy at the end.
  const bool in_result =
      p.dtype == DType::kFloat32 && plan.d_query_width == p.head_dim && p.query_layout.row_stride == p.head_dim;
  const CallMemory memory(in_result ? 0 : wave * group_sums * static_cast<int64_t>(sizeof(float)));
  float* const sums = reinterpret_cast<float*>(memory.get());
  plan.d_query = in_result ? static_cast<float*>(outputs.d_query) : sums;
  plan.d_query_layout = in_result ? p.query_layout : Layout{p.heads * head_sums, head_sums, plan.d_query_width};
  Turns turns{std::vector<std::atomic<int32_t>>(wave * p.group() * plan.query_tiles), nullptr};
  std::atomic<bool> failed{false};
  turns.failed = &failed;
  plan.state = &turns;
  plan.wait = wait_turn;
  plan.set_turn = set_turn;

  const double work = 5 * work_of(p);
  const int64_t scratch = kernels->backward_scratch(plan);
  const int64_t slices = (p.seq_q + kSliceRows - 1) / kSliceRows;
  const Buffer<double> d_sinks = allocate<double>(outputs.d_sinks ? heads * slices : 0);
  plan.d_sinks = outputs.d_sinks ? d_sinks.get() : nullptr;
  const auto slice_rows = [&](int64_t slice) { return std::min(kSliceRows, p.seq_q - slice * kSliceRows); };
  const auto unvisited = [&](int64_t batch, int64_t head, int64_t tile) {
    const Band band = p.band_of(batch);
    const int64_t first = tile * plan.tile, last = std::min(first + plan.tile, p.seq_q) - 1;
    const int64_t lo = band.lo(first), hi = band.hi(last);
    return lo >= hi || plan.visits_none(batch, head, tile, lo / plan.tile, (hi - 1) / plan.tile + 1);
  };

  if (p.biased() && !find_rest(kernels, plan, failed)) return kNoMemory;
  int32_t care = 0;
  plan.care = &care;
  run_tasks(thread_count(work, heads * slices), heads * slices, scratch, failed, [&](int64_t task, char* memory, const auto&) {
    const int64_t slice = task % slices;
    kernels->backward_rows(plan, task / slices, slice * kSliceRows, slice_rows(slice), memory);
  });
  plan.careful = care != 0;
  for (int64_t head = 0; outputs.d_sinks && head < p.heads; ++head) {
    double sum = 0;
    for (int64_t batch = 0; batch < p.batch; ++batch)
      for (int64_t slice = 0; slice < slices; ++slice) sum += plan.d_sinks[(batch * p.heads + head) * slices + slice];
    outputs.d_sinks[head] = static_cast<float>(sum);
  }

  const auto run_waves = [&] {
    bias.clear();
    for (plan.first_group = 0; plan.first_group < groups && !failed; plan.first_group += wave) {
      plan.groups = std::min(wave, groups - plan.first_group);
      plan.d_query_first = in_result ? 0 : plan.first_group * group_sums;
      const int64_t wave_heads = plan.groups * p.group(), first_head = plan.first_group * p.group();
      if (dirty && !in_result) poison(sums, plan.groups * group_sums * static_cast<int64_t>(sizeof(float)));
      for (auto& turn : turns.of) turn.store(0, std::memory_order_relaxed);
      // Query tiles that no key tile visits are written by nobody else.
      for (int64_t head = first_head; head < first_head + wave_heads; ++head) {
        for (int64_t tile = 0; tile < plan.query_tiles; ++tile) {
          const int64_t first = tile * plan.tile, count = std::min(plan.tile, p.seq_q - first);
          if (!unvisited(head / p.heads, head % p.heads, tile)) continue;
          plan.clear_d_query(head / p.heads, head % p.heads, first, count);
          kernels->finish_d_query(plan, head, first, count);
        }
      }
      // A head or two for each thread at a time: their rows stay in its cache. Key tiles in ascending order, which is the
      // order of the turns, and those heads inside: threads then seldom meet.
      const int64_t tasks = plan.key_tiles * plan.groups;
      const int threads = thread_count(work, tasks);
      const int64_t rounds = std::max<int64_t>(1, plan.groups / threads);
      run_looking_ahead(kernels->backward_task, threads, tasks, scratch, failed, [&](int64_t task) {
        const int64_t round = ((task / plan.key_tiles + 1) * rounds - 1) / plan.groups;
        const int64_t first = round * plan.groups / rounds, width = (round + 1) * plan.groups / rounds - first;
        const int64_t index = task - first * plan.key_tiles;
        const int64_t group = plan.first_group + every_other(first + index % width, plan.groups);
        return BackwardTask{&plan, group, index / width};
      });
    }
  };
  run_waves();
  if (care && !plan.careful) {
    plan.careful = true;
    run_waves();
  }
  if (failed) return kNoMemory;
  bias.finish(p, kernels, outputs.d_bias);
  return kOk;
}

}  // namespace

int forward(const Problem& problem, const ForwardOutputs& outputs) {
  return guarded([&] { return run_forward(problem, outputs); });
}

int backward(const Problem& problem, const BackwardInputs& inputs, const BackwardOutputs& outputs) {
  return guarded([&] { return run_backward(problem, inputs, outputs); });
}

int multiply_adds(DType dtype, int64_t operations) {
  const Kernels* kernels = choose_kernels(dtype);
  if (kernels == nullptr) return kNoTarget;
  const int threads = thread_count(static_cast<double>(operations), INT64_MAX);
#pragma omp parallel num_threads(threads)
  {
    const KeepSubnormals keep;
    kernels->multiply_adds(dtype, operations / threads);
  }
  return kOk;
}

}  // namespace flash_attention
