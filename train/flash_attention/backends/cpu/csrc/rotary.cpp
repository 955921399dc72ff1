// Entry points for rotary position embedding, see arguments.h.
//
// A pair (a, b) of the components of a head becomes (a * cos - b * sin, a * sin + b * cos) by the angle of its position. That
// is linear in (a, b), whose gradients turn back, and in the table, whose gradient is a sum over sequences and heads.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "arguments.h"
#include "dispatch.h"
#include "tasks.h"

namespace flash_attention {
namespace {

// (version, whether neighbours make a pair, whether heads come before positions, whether each sequence has an offset, else
// the offset of all).
enum RotaryConfig { kRotaryVersion, kRotaryInterleaved, kRotaryHeadsFirst, kRotaryOffsets, kRotaryOffset, kRotaryConfigCount };
enum TurnParameter { kTurnX, kTurnCos, kTurnSin, kTurnOffsets, kTurnConfig, kTurnOutput, kTurnCount };
// The gradients of the tables, of a call that turned x and whose result has the gradient `upstream`.
enum TableParameter { kTableX, kTableUpstream, kTableOffsets, kTableConfig, kTableCos, kTableSin, kTableCount };

// Elements that a task takes at least, where there are as many.
constexpr int64_t kTaskElements = 1 << 15;

struct Rotary {
  const Kernels* kernels;
  DType dtype;
  int64_t batch, seq, heads, dim;  // of x
  Layout layout;
  int64_t rows, half;  // of a table
  bool interleaved;
  const int32_t* offsets;  // (batch), or null: `offset` for all
  int64_t offset;

  int64_t first(int64_t item) const { return offsets ? offsets[item] : offset; }
  int64_t together() const { return layout.head_stride == dim ? heads : 1; }  // heads of a position that follow each other
  double elements() const { return static_cast<double>(batch) * seq * heads * dim; }
  int64_t per_task() const { return std::max<int64_t>(1, kTaskElements / (heads * dim)); }
};

// The table of sines follows that of cosines, `table`.
Rotary rotary_of(const Tensors& t, int x, int table, int offsets, int config_index) {
  const int64_t* config = config_of(t, config_index, kRotaryConfigCount);
  Rotary r{};
  require(t.ranks[x] == 4 && t.ranks[table] == 2, kBadShape);
  const int64_t* shape = t.shape(x);
  checked_product(shape, 4);
  checked_product(t.shape(table), 2);
  const bool heads_first = in_range(config[kRotaryHeadsFirst], 0, 1);
  r.dtype = t.dtype(x);
  require(r.dtype != DType::kByte, kBadDType);
  t.check_aligned(x, size_of(r.dtype));
  r.batch = shape[0], r.seq = shape[heads_first ? 2 : 1], r.heads = shape[heads_first ? 1 : 2], r.dim = shape[3];
  const int64_t item = r.seq * r.heads * r.dim;
  r.layout = heads_first ? Layout{item, r.seq * r.dim, r.dim} : Layout{item, r.dim, r.heads * r.dim};
  r.rows = t.shape(table)[0], r.half = t.shape(table)[1];
  require(2 * r.half <= r.dim, kBadShape);
  for (int i : {table, table + 1}) {
    t.check(i, t.dtype(i), {r.rows, r.half});
    require(t.dtype(i) != DType::kByte, kBadDType);
  }
  r.interleaved = in_range(config[kRotaryInterleaved], 0, 1);
  if (in_range(config[kRotaryOffsets], 0, 1)) {
    r.offsets = integers(t, offsets, {r.batch});
  } else {
    r.offset = in_range(config[kRotaryOffset], 0, kMaxSize);
  }
  r.kernels = choose_kernels(DType::kFloat32);  // to round results: no reason to ask Linux for tiles
  require(r.kernels != nullptr, kNoTarget);
  return r;
}

const char* element(const void* data, DType dtype, int64_t at) {
  return static_cast<const char*>(data) + at * size_of(dtype);
}

// One head. Neither function reads what it has written.
void turn_apart(const float* __restrict x, const float* __restrict cos, const float* __restrict sin, int64_t half,
                float* __restrict result) {
  for (int64_t i = 0; i < half; ++i) {
    result[i] = x[i] * cos[i] - x[i + half] * sin[i];
    result[i + half] = x[i] * sin[i] + x[i + half] * cos[i];
  }
}

void turn_neighbours(const float* __restrict x, const float* __restrict cos, const float* __restrict sin, int64_t half,
                     float* __restrict result) {
  for (int64_t i = 0; i < half; ++i) {
    result[2 * i] = x[2 * i] * cos[i] - x[2 * i + 1] * sin[i];
    result[2 * i + 1] = x[2 * i] * sin[i] + x[2 * i + 1] * cos[i];
  }
}

int turn_entry(int count, const Tensors& t, bool back) {
  return answer([&] {
    check_count(t, count, kTurnCount);
    const Rotary r = rotary_of(t, kTurnX, kTurnCos, kTurnOffsets, kTurnConfig);
    t.check_like(kTurnOutput, kTurnX);

    const DType dtype = r.dtype;
    const bool converts = dtype != DType::kFloat32;
    const int64_t together = r.together(), chunk = together * r.dim;
    const int64_t blocks = (r.seq + r.per_task() - 1) / r.per_task(), tasks = r.batch * blocks;
    const int64_t scratch_bytes = (2 * r.half + 2 * chunk + kMostLanes) * sizeof(float);
    std::atomic<bool> failed{false};
    const bool done = run_tasks(
        thread_count(r.elements(), tasks), tasks, scratch_bytes, failed, [&](int64_t task, char* scratch, const auto&) {
          float* cos = reinterpret_cast<float*>(scratch);
          float *sin = cos + r.half, *wide = sin + r.half, *turned = wide + chunk;
          const int64_t item = task / blocks, start = task % blocks * r.per_task();
          for (int64_t at = start; at < std::min(r.seq, start + r.per_task()); ++at) {
            const int64_t position = r.first(item) + at;
            if (position >= 0 && position < r.rows) {
              for (const auto& [table, to] : {std::pair(kTurnCos, cos), std::pair(kTurnSin, sin)}) {
                const DType type = t.dtype(table);
                r.kernels->widen(type, element(t.data[table], type, position * r.half), r.half, to);
              }
              for (int64_t i = 0; back && i < r.half; ++i) sin[i] = -sin[i];
            } else {
              std::fill_n(cos, 2 * r.half, std::numeric_limits<float>::quiet_NaN());
            }
            for (int64_t head = 0; head < r.heads; head += together) {
              const int64_t place = r.layout.at(item, head, at);
              const char* from = element(t.data[kTurnX], dtype, place);
              char* to = static_cast<char*>(t.data[kTurnOutput]) + place * size_of(dtype);
              const float* x = reinterpret_cast<const float*>(from);
              float* result = converts ? turned : reinterpret_cast<float*>(to);
              if (converts) {
                r.kernels->widen(dtype, from, chunk, wide);
                x = wide;
              }
              for (int64_t first = 0; first < chunk; first += r.dim) {
                (r.interleaved ? turn_neighbours : turn_apart)(x + first, cos, sin, r.half, result + first);
                std::copy(x + first + 2 * r.half, x + first + r.dim, result + first + 2 * r.half);
              }
              if (converts) r.kernels->convert(turned, 1.0f, chunk, dtype, to);
            }
          }
        });
    return static_cast<int>(done ? kOk : kNoMemory);
  });
}

int tables_entry(int count, const Tensors& t) {
  return answer([&] {
    check_count(t, count, kTableCount);
    const Rotary r = rotary_of(t, kTableX, kTableCos, kTableOffsets, kTableConfig);
    t.check_like(kTableUpstream, kTableX);

    // A task has rows of the tables, whose sums nobody else adds to.
    const int64_t tasks = (r.rows + r.per_task() - 1) / r.per_task(), width = 2 * r.half;
    const int64_t step = r.interleaved ? 2 : 1, apart = r.interleaved ? 1 : r.half;
    std::atomic<bool> failed{false};
    const bool done = run_tasks(
        thread_count(r.elements(), tasks), tasks, (3 * width + kMostLanes) * sizeof(float), failed,
        [&](int64_t task, char* scratch, const auto&) {
          float* cos = reinterpret_cast<float*>(scratch);
          float *sin = cos + r.half, *x = sin + r.half, *upstream = x + width;
          for (int64_t row = task * r.per_task(); row < std::min(r.rows, (task + 1) * r.per_task()); ++row) {
            std::fill_n(cos, width, 0.0f);
            for (int64_t item = 0; item < r.batch; ++item) {
              const int64_t at = row - r.first(item);
              for (int64_t head = 0; at >= 0 && at < r.seq && head < r.heads; ++head) {
                const int64_t place = r.layout.at(item, head, at);
                r.kernels->widen(r.dtype, element(t.data[kTableX], r.dtype, place), width, x);
                r.kernels->widen(r.dtype, element(t.data[kTableUpstream], r.dtype, place), width, upstream);
                for (int64_t i = 0; i < r.half; ++i) {
                  const int64_t a = i * step, b = a + apart;
                  cos[i] += x[a] * upstream[a] + x[b] * upstream[b];
                  sin[i] += x[a] * upstream[b] - x[b] * upstream[a];
                }
              }
            }
            for (int i = 0; i < 2; ++i) {
              const DType dtype = t.dtype(kTableCos + i);
              char* to = static_cast<char*>(t.data[kTableCos + i]) + row * r.half * size_of(dtype);
              r.kernels->convert(i == 0 ? cos : sin, 1.0f, r.half, dtype, to);
            }
          }
        });
    return static_cast<int>(done ? kOk : kNoMemory);
  });
}

}  // namespace
}  // namespace flash_attention

namespace fa = flash_attention;

#pragma GCC visibility push(default)
extern "C" {

// MindSpore 2.0 asks for them in PYNATIVE, where a net was given inputs of dynamic shapes.
std::vector<int64_t> FlashAttentionRotaryInferShape(int* ranks, int64_t** shapes, void*) {
  return {shapes[fa::kTurnX], shapes[fa::kTurnX] + ranks[fa::kTurnX]};
}
int FlashAttentionRotaryInferType(std::vector<int> types, void*) { return types[fa::kTurnX]; }

int FlashAttentionRotary(FA_PARAMETERS) {
  return fa::or_throw("rotary_embedding", fa::turn_entry(count, FA_TENSORS, false));
}
int FlashAttentionRotaryBack(FA_PARAMETERS) {
  return fa::or_throw("rotary_embedding", fa::turn_entry(count, FA_TENSORS, true));
}
int FlashAttentionRotaryTables(FA_PARAMETERS) {
  return fa::or_throw("rotary_embedding", fa::tables_entry(count, FA_TENSORS));
}

}  // extern "C"
#pragma GCC visibility pop
