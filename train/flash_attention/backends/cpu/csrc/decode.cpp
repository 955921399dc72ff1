// The decoding pass: which problems take it, and its tasks.
#include <algorithm>
#include <atomic>
#include <utility>

#include "attention.h"
#include "dispatch.h"
#include "plans.h"
#include "status.h"
#include "tasks.h"

namespace flash_attention {
namespace {

constexpr int64_t kMostQueries = 16;
// Fewer keys are not worth partial results.
constexpr int64_t kLeastKeys = 256;

}  // namespace

bool decodes(const Problem& p) {
  return p.seq_q <= kMostQueries && p.seq_k >= kLeastKeys && p.dropout.kind == Dropout::kNone;
}

int decode(const Problem& p, std::vector<DecodeCache> caches, int64_t block_size, int64_t key_block,
           int64_t value_block, const ForwardOutputs& outputs) {
  const Kernels* kernels = choose_kernels(p.dtype);
  if (kernels == nullptr) return kNoTarget;
  struct Chunk {
    int64_t batch;
    int64_t index;
  };
  std::vector<Chunk> chunks;
  int64_t parts = 0;
  double pairs = 0;
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    DecodeCache& cache = caches[batch];
    const int64_t first = cache.lo(0), last = cache.band.hi(p.seq_q - 1);
    cache.first_part = parts;
    cache.first_chunk = first / kDecodeKeys;
    cache.last_chunk = first < last ? (last + kDecodeKeys - 1) / kDecodeKeys : cache.first_chunk;
    for (int64_t index = cache.first_chunk; index < cache.last_chunk; ++index) chunks.push_back({batch, index});
    parts += (cache.last_chunk - cache.first_chunk) * p.kv_heads;
    pairs += static_cast<double>(std::max<int64_t>(0, last - first)) * p.seq_q;
  }
  DecodePlan plan{p, outputs, caches.data(), block_size, key_block, value_block, nullptr, (p.value_dim + 15) / 16 * 16 + 16};
  const Buffer<float> sums = allocate<float>(parts * p.group() * p.seq_q * plan.part_width);
  plan.parts = sums.get();
  const double work = pairs * p.heads * (p.head_dim + p.value_dim);
  const int64_t tasks = static_cast<int64_t>(chunks.size()) * p.kv_heads;
  std::atomic<bool> failed{false};
  run_tasks(thread_count(work, tasks), tasks, kernels->decode_scratch(plan), failed, [&](int64_t task, char* scratch, const auto&) {
    const Chunk& chunk = chunks[task / p.kv_heads];
    kernels->decode_task(plan, chunk.batch, task % p.kv_heads, chunk.index, scratch);
  });
  const int64_t heads = p.batch * p.heads;
  run_tasks(thread_count(work, heads), heads, 0, failed, [&](int64_t task, char*, const auto&) {
    kernels->decode_merge(plan, task / p.heads, task % p.heads);
  });
  return failed ? kNoMemory : kOk;
}

int decode(const Problem& p, const ForwardOutputs& outputs) {
  std::vector<DecodeCache> caches;
  for (int64_t batch = 0; batch < p.batch; ++batch) caches.push_back({p.band_of(batch), 0, nullptr, 0, 0, 0});
  return decode(p, std::move(caches), 1, 0, 0, outputs);
}

int forward_paged(const Problem& problem, const Paging& paging, const ForwardOutputs& outputs) {
  return guarded([&] {
    std::vector<DecodeCache> caches;
    for (int64_t b = 0; b < problem.batch; ++b) {
      const int64_t length = paging.lengths[b];
      const int64_t keys = std::min(length, paging.most), offset = length - problem.seq_q;
      const Band band{keys, offset, paging.causal, paging.window_left, paging.window_right, kAllBlocks, kAllBlocks, 1, 0};
      caches.push_back({band, paging.first_keys ? paging.first_keys[b] : 0, paging.tables + b * paging.table_width, 0, 0, 0});
    }
    return decode(problem, std::move(caches), paging.block_size, paging.key_block, paging.value_block, outputs);
  });
}

}  // namespace flash_attention
