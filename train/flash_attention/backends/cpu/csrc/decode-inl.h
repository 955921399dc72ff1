// Few queries against many keys: bound by memory, so every row of keys and values is read once, where it lies, for all
// query heads of its group. Chunks of keys are summed apart and merged in their order.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "exp2-inl.h"
#include "forward-inl.h"
#include "kernels.h"
#include "pack-inl.h"
#include "scores-inl.h"

namespace flash_attention {
namespace {

constexpr int64_t kDecodeTile = 32;  // keys at a time: their rows stay in the nearest cache
// Rows that share a load: as many as there are registers for.
constexpr int kMostRows = kRows >= 8 ? 4 : 2;
static_assert(kDecodeKeys % kDecodeTile == 0 && kDecodeTile % kLanes == 0, "tiles fill chunks, vectors fill tiles");

// Where the rows of keys or of values of one batch element and head are.
struct DecodeRows {
  const char* base;
  int64_t row_bytes;    // from one row to the next
  int64_t block_bytes;  // from one block to the next
  const int32_t* blocks;
  int64_t block_size;
  int64_t width;

  DecodeRows(const DecodePlan& plan, const void* tensor, const Layout& layout, int64_t block_stride, int64_t columns,
             int64_t batch, int64_t kv_head) {
    const int64_t size = size_of(plan.problem.dtype);
    base = static_cast<const char*>(tensor) + layout.at(batch, kv_head, 0) * size;
    row_bytes = layout.row_stride * size;
    block_bytes = block_stride * size;
    blocks = plan.caches[batch].blocks;
    block_size = plan.block_size;
    width = columns;
  }
  FA_INLINE const char* row(int64_t key) const {
    if (blocks == nullptr) return base + key * row_bytes;
    return base + blocks[key / block_size] * block_bytes + key % block_size * row_bytes;
  }
  // Rows in whole vectors: those in memory, or copies in float32 in `scratch`. Gives their dtype. `in_place`: other dtypes
  // than float32 are left to be converted by those who read them.
  DType load(DType dtype, bool in_place, int64_t first, int64_t count, int64_t stride, float* scratch,
             const char** rows) const {
    const bool ready = (in_place || dtype == DType::kFloat32) && width % kLanes == 0;
    for (int64_t n = 0; n < count; ++n) {
      rows[n] = row(first + n);
      if (ready) continue;
      load_row(dtype, rows[n], width, scratch + n * stride);
      rows[n] = reinterpret_cast<const char*>(scratch + n * stride);
    }
    return ready ? dtype : DType::kFloat32;
  }
  void prefetch(DType dtype, int64_t first, int64_t count) const {
    const int64_t bytes = width * size_of(dtype);
    for (int64_t n = 0; n < count; ++n)
      for (int64_t at = 0; at < bytes; at += 64) Simd::prefetch_far(row(first + n) + at);
  }
};

// So many keys, or vectors of values, share what is loaded for kM rows.
constexpr int decode_columns(int rows) { return rows == 1 ? 8 : 4; }

template <DType kType>
FA_INLINE F load_column(const char* row, int64_t column) {
  return load_vector<kType>(row + column * (kType == DType::kFloat32 ? 4 : 2));
}

// Products of kM queries and kN keys.
template <DType kType, int kM, int kN>
FA_INLINE void decode_products(const float* query, int64_t query_stride, const char* const* keys, int64_t width,
                               float* scores) {
  F acc[kM][kN];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kN; ++n) acc[m][n] = Simd::zero();
  for (int64_t d = 0; d < width; d += kLanes) {
    F left[kM];
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) left[m] = Simd::load(query + m * query_stride + d);
#pragma GCC unroll 8
    for (int n = 0; n < kN; ++n) {
      const F right = load_column<kType>(keys[n], d);
#pragma GCC unroll 8
      for (int m = 0; m < kM; ++m) acc[m][n] = Simd::fma(left[m], right, acc[m][n]);
    }
  }
  // Four at a time, and a single one as one of four: the order of its terms is the same.
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
    float* to = scores + m * kDecodeTile;
    if constexpr (kN == 1) {
      float sums[4];
      Simd::sums(acc[m][0], acc[m][0], acc[m][0], acc[m][0], sums);
      to[0] = sums[0];
    } else {
#pragma GCC unroll 8
      for (int n = 0; n < kN; n += 4) Simd::sums(acc[m][n], acc[m][n + 1], acc[m][n + 2], acc[m][n + 3], to + n);
    }
  }
}

// Products of kM queries and `count` keys.
template <DType kType, int kM>
void decode_scores(const float* query, int64_t query_stride, const char* const* keys, int64_t count, int64_t width,
                   float* scores) {
  constexpr int kN = decode_columns(kM);
  int64_t n = 0;
  for (; n + kN <= count; n += kN)
    decode_products<kType, kM, kN>(query, query_stride, keys + n, width, scores + n);
  for (; n < count; ++n) decode_products<kType, kM, 1>(query, query_stride, keys + n, width, scores + n);
}

// Adds probability * value of keys [first, last) to kM rows, kN vectors of them.
template <DType kType, int kM, int kN>
FA_INLINE void decode_block(const float* probability, const char* const* values, int64_t first, int64_t last,
                            int64_t column, float* output, int64_t stride) {
  F acc[kM][kN];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kN; ++n) acc[m][n] = Simd::load(output + m * stride + column + n * kLanes);
  for (int64_t key = first; key < last; ++key) {
    F weight[kM];
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) weight[m] = Simd::set1(probability[m * kDecodeTile + key]);
#pragma GCC unroll 8
    for (int n = 0; n < kN; ++n) {
      const F value = load_column<kType>(values[key], column + n * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < kM; ++m) acc[m][n] = Simd::fma(weight[m], value, acc[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kN; ++n) Simd::store(output + m * stride + column + n * kLanes, acc[m][n]);
}

template <DType kType, int kM>
void decode_sums(const float* probability, const char* const* values, int64_t first, int64_t last, int64_t width,
                 float* output, int64_t stride) {
  constexpr int kN = decode_columns(kM);
  int64_t column = 0;
  for (; column + kN * kLanes <= width; column += kN * kLanes)
    decode_block<kType, kM, kN>(probability, values, first, last, column, output, stride);
  for (; column < width; column += kLanes)
    decode_block<kType, kM, 1>(probability, values, first, last, column, output, stride);
}

// Floats of a row's sums in its part; the running maximum and the total follow.
inline int64_t decode_sums_width(const Problem& p) { return round_up(p.value_dim, 16); }

// One task: the rows of all query heads of a group, head by head, against the keys of one chunk.
struct DecodeTask {
  const DecodePlan& plan;
  const Problem& p;
  const ScoreRule rule;
  int64_t rows, query_stride, key_stride, value_stride, value_width, sums_width;
  float* query;
  float* tile;   // converted keys, then values
  float* score;  // [row][kDecodeTile]: products, then probabilities
  int64_t* lo;   // [row]: the keys that it sees
  int64_t* hi;

  DecodeTask(const DecodePlan& all, Arena& arena) : plan(all), p(all.problem), rule(all.problem) {
    rows = p.group() * p.seq_q;
    query_stride = key_stride = tile_stride(p.head_dim);
    value_stride = tile_stride(p.value_dim);
    value_width = round_up(p.value_dim, kLanes);
    sums_width = decode_sums_width(p);
    query = arena.take<float>(rows * query_stride);
    tile = arena.take<float>(kDecodeTile * (key_stride > value_stride ? key_stride : value_stride));
    score = arena.take<float>(rows * kDecodeTile);
    lo = arena.take<int64_t>(rows);
    hi = arena.take<int64_t>(rows);
  }

  // Products become probabilities; `part` holds the row's sums, which are brought to a new maximum.
  void soften(int64_t row, int64_t head, int64_t first, float* part) const {
    const Band& band = plan.caches[batch].band;
    const int64_t from = lo[row] - first, to = hi[row] - first;
    uint32_t bits = from >= kDecodeTile || to <= 0 || from >= to ? 0 : ~uint32_t{0};
    if (bits && from > 0) bits &= ~uint32_t{0} << from;
    if (bits && to < kDecodeTile) bits &= ~(~uint32_t{0} << to);
    constexpr int kCount = kDecodeTile / kLanes;
    const float position = static_cast<float>(first - row % p.seq_q - band.offset);
    const F factor = Simd::set1(rule.factor), minus_infinity = Simd::set1(-kInfinity);
    float* values = score + row * kDecodeTile;
    F s[kCount], top = minus_infinity;
    for (int n = 0; n < kCount; ++n) {
      s[n] = Simd::mul(Simd::load(values + n * kLanes), factor);
      if (p.capped()) s[n] = Simd::mul(tanh(s[n]), Simd::set1(rule.softcap));
      if (p.slopes) {
        const F apart = Simd::abs(Simd::add(Simd::iota(), Simd::set1(position + static_cast<float>(n * kLanes))));
        s[n] = Simd::fma(apart, Simd::set1(-p.slope(batch, head)), s[n]);
      }
      s[n] = Simd::select(bits >> (n * kLanes), s[n], minus_infinity);
      top = Simd::max(s[n], top);
    }
    float& maximum = part[sums_width];
    float& total = part[sums_width + 1];
    const float reference = Simd::largest(top);
    if (reference > maximum) {
      const F lowered = exp2<6>(Simd::set1((maximum - reference) * rule.to_base2));
      for (int64_t d = 0; d < value_width; d += kLanes)
        Simd::store(part + d, Simd::mul(Simd::load(part + d), lowered));
      total *= Simd::largest(lowered);
      maximum = reference;
    }
    F sum = Simd::zero();
    for (int n = 0; n < kCount; ++n) {
      const F t = Simd::mul(Simd::sub(s[n], Simd::set1(maximum)), Simd::set1(rule.to_base2));
      const F probability = Simd::zero_unless(bits >> (n * kLanes), exp2<6>(t));
      sum = Simd::add(sum, probability);
      Simd::store(values + n * kLanes, probability);
    }
    total += Simd::sum(sum);
  }

  // Calls use(m), m.value being `count`: kMostRows, 2 or 1.
  template <class Use>
  static FA_INLINE void with_rows(int64_t count, const Use& use) {
    if (count == 4) return use(std::integral_constant<int, kMostRows>{});
    count == 2 ? use(std::integral_constant<int, 2>{}) : use(std::integral_constant<int, 1>{});
  }

  // Rows add only the values that they see: what a hidden key holds does not matter.
  template <DType kType>
  void add(int64_t first, const char* const* values, float* parts) const {
    const auto column = [&](int64_t key) {
      return key < first ? 0 : key - first > kDecodeTile ? kDecodeTile : key - first;
    };
    const auto alike = [&](int64_t row, int64_t count) {
      if (row + count > rows) return false;
      for (int64_t other = row + 1; other < row + count; ++other)
        if (column(lo[other]) != column(lo[row]) || column(hi[other]) != column(hi[row])) return false;
      return true;
    };
    for (int64_t row = 0; row < rows;) {
      const float* probability = score + row * kDecodeTile;
      float* output = parts + row * plan.part_width;
      const int64_t from = column(lo[row]), to = column(hi[row]);
      const int64_t count = kMostRows == 4 && alike(row, 4) ? 4 : alike(row, 2) ? 2 : 1;
      with_rows(count, [&](auto m) {
        decode_sums<kType, m.value>(probability, values, from, to, value_width, output, plan.part_width);
      });
      row += count;
    }
  }

  // Products of all rows and the keys of a tile from column `skipped` on.
  template <DType kType>
  void products(const char* const* keys, int64_t skipped, int64_t count) const {
    const int64_t width = round_up(p.head_dim, kLanes);
    for (int64_t row = 0; row < rows;) {
      const float* left = query + row * query_stride;
      float* to = score + row * kDecodeTile + skipped;
      const int64_t together = rows - row >= kMostRows ? kMostRows : rows - row >= 2 ? 2 : 1;
      with_rows(together, [&](auto m) {
        decode_scores<kType, m.value>(left, query_stride, keys + skipped, count, width, to);
      });
      row += together;
    }
  }

  // Loads the queries, clears their parts, and finds the keys of the chunk that some row sees: [first_key, last_key).
  struct Seen {
    int64_t first_key, last_key;
  };
  Seen start(int64_t batch_index, int64_t kv_head, int64_t chunk, float* parts) {
    batch = batch_index;
    const DecodeCache& cache = plan.caches[batch];
    int64_t first_key = INT64_MAX, last_key = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t head = kv_head * p.group() + row / p.seq_q, position = row % p.seq_q;
      load_row(p.dtype, query_rows(p, p.query, batch, head, position).data, p.head_dim, query + row * query_stride);
      float* part = parts + row * plan.part_width;
      std::memset(part, 0, plan.part_width * sizeof(float));
      part[sums_width] = -FLT_MAX;
      lo[row] = cache.band.lo(position);
      hi[row] = cache.band.hi(position);
      if (hi[row] <= lo[row]) {
        hi[row] = lo[row] = 0;  // sees nothing
        continue;
      }
      if (lo[row] < first_key) first_key = lo[row];
      if (hi[row] > last_key) last_key = hi[row];
    }
    const int64_t begin = chunk * kDecodeKeys, end = begin + kDecodeKeys;
    return {first_key < begin ? begin : first_key, last_key > end ? end : last_key};
  }

  void run(int64_t batch_index, int64_t kv_head, int64_t chunk) {
    float* parts = plan.part(batch_index, kv_head, chunk);
    const auto [first_key, last_key] = start(batch_index, kv_head, chunk, parts);
    const DecodeRows keys(plan, p.key, p.key_layout, plan.key_block, p.head_dim, batch, kv_head);
    const DecodeRows values(plan, p.value, p.value_layout, plan.value_block, p.value_dim, batch, kv_head);
    const char* pointers[kDecodeTile];
    // Two conversions while the memory is waited for are faster than one pass before.
    const bool in_place = rows <= 2 * kMostRows;
    const int64_t start = first_key / kDecodeTile * kDecodeTile;
    for (int64_t first = start; first < last_key; first += kDecodeTile) {
      // Only keys that some row sees: others may lie in blocks that do not exist.
      const int64_t from = first < first_key ? first_key : first;
      const int64_t to = first + kDecodeTile < last_key ? first + kDecodeTile : last_key;
      const int64_t skipped = from - first, count = to - from;
      values.prefetch(p.dtype, from, count);
      with_type(keys.load(p.dtype, in_place, from, count, key_stride, tile, pointers + skipped),
                [&](auto type) { products<type.value>(pointers, skipped, count); });
      for (int64_t row = 0; row < rows; ++row)
        soften(row, kv_head * p.group() + row / p.seq_q, first, parts + row * plan.part_width);
      if (to < last_key) keys.prefetch(p.dtype, to, last_key - to < kDecodeTile ? last_key - to : kDecodeTile);
      with_type(values.load(p.dtype, in_place, from, count, value_stride, tile, pointers + skipped),
                [&](auto type) { add<type.value>(first, pointers, parts); });
    }
  }

 protected:
  int64_t batch = 0;
};

inline int64_t decode_scratch(const DecodePlan& plan) {
  Arena arena(nullptr);
  DecodeTask(plan, arena);
  return arena.used();
}

inline void decode_task(const DecodePlan& plan, int64_t batch, int64_t kv_head, int64_t chunk, char* scratch) {
  Arena arena(scratch);
  DecodeTask(plan, arena).run(batch, kv_head, chunk);
}

// Merges the chunks of one query head.
inline void decode_merge(const DecodePlan& plan, int64_t batch, int64_t head) {
  const Problem& p = plan.problem;
  const DecodeCache& cache = plan.caches[batch];
  const ScoreRule rule(p);
  const int64_t kv_head = head / p.group(), width = round_up(p.value_dim, kLanes), maximum_at = decode_sums_width(p);
  for (int64_t position = 0; position < p.seq_q; ++position) {
    const int64_t row = head % p.group() * p.seq_q + position;
    const auto part = [&](int64_t chunk) { return plan.part(batch, kv_head, chunk) + row * plan.part_width; };
    float maximum = -FLT_MAX;
    for (int64_t chunk = cache.first_chunk; chunk < cache.last_chunk; ++chunk)
      maximum = part(chunk)[maximum_at] > maximum ? part(chunk)[maximum_at] : maximum;
    double total = 0;
    float* sums = cache.first_chunk < cache.last_chunk ? part(cache.first_chunk) : nullptr;
    for (int64_t chunk = cache.first_chunk; chunk < cache.last_chunk; ++chunk) {
      const float* from = part(chunk);
      const float weight = static_cast<float>(std::exp2((static_cast<double>(from[maximum_at]) - maximum) * rule.to_base2));
      total += static_cast<double>(from[maximum_at + 1]) * weight;
      for (int64_t d = 0; d < width; d += kLanes) {
        const F scaled = Simd::mul(Simd::load(from + d), Simd::set1(weight));
        Simd::store(sums + d, chunk == cache.first_chunk ? scaled : Simd::add(Simd::load(sums + d), scaled));
      }
    }
    char* output = static_cast<char*>(plan.outputs.output) + p.output_layout.at(batch, head, position) * size_of(p.dtype);
    float factor = total == 0.0 ? 0.0f : static_cast<float>(1.0 / total);
    double logsumexp = total == 0.0 ? -kInfinity : maximum * rule.to_natural + std::log(total);
    if (p.sinks) {
      const double joined = log_add(logsumexp, p.sinks[head]);
      if (total != 0.0) factor *= static_cast<float>(std::exp(logsumexp - joined));
      logsumexp = joined;
    }
    if (sums) {
      store_row(p.dtype, sums, factor, p.value_dim, output);
    } else {
      std::memset(output, 0, p.value_dim * size_of(p.dtype));
    }
    if (plan.outputs.logsumexp)
      plan.outputs.logsumexp[(batch * p.heads + head) * p.lse_stride + position] = static_cast<float>(logsumexp);
  }
}

}  // namespace
}  // namespace flash_attention
