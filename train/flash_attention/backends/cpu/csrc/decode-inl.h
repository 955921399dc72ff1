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
  float* score;    // [row][kDecodeTile]: products, then probabilities
  int64_t* lo;     // [row]: the keys that its position sees
  int64_t* hi;
  uint32_t* seen;  // [row]: the keys of the tile at work that it sees, as bits
  float* bias;     // of the row at work

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
    seen = arena.take<uint32_t>(rows);
    bias = p.bias.data ? arena.take<float>(kDecodeTile) : nullptr;
  }

  // Finds the keys of the tile that each row sees; gives those that some row sees.
  uint32_t look(int64_t kv_head, int64_t first) const {
    const uint8_t* masked = nullptr;
    int64_t own = INT64_MIN;
    uint32_t any = 0, shown = 0, related = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t from = lo[row] - first, to = hi[row] - first, position = row % p.seq_q;
      uint32_t bits = from >= kDecodeTile || to <= 0 || from >= to ? 0 : ~uint32_t{0};
      if (bits && from > 0) bits &= ~uint32_t{0} << from;
      if (bits && to < kDecodeTile) bits &= ~(~uint32_t{0} << to);
      if (bits && p.blocks.data && !p.blocks.sees(batch, kv_head * p.group() + row / p.seq_q, position, first)) bits = 0;
      if (bits && p.mask.data) {
        const int64_t at = p.mask.at(batch, kv_head * p.group() + row / p.seq_q, position) + first;
        const uint8_t* mask = static_cast<const uint8_t*>(p.mask.data) + at;
        if (mask != masked) shown = visible_word(mask, 0, p.seq_k - first);
        masked = mask;
        bits &= shown;
      }
      if (bits && p.segments) {
        const int32_t id = p.segments[batch * p.seq_q + position];
        if (id != own) related = of_segment(id, p.kv_segments + batch * p.seq_k + first, p.seq_k - first);
        own = id;
        bits &= related;
      }
      any |= seen[row] = bits;
    }
    return any;
  }

  static uint32_t of_segment(int32_t id, const int32_t* keys, int64_t count) {
    if (id < 0) return 0;
    uint8_t other[kDecodeTile];
    std::memset(other, 1, sizeof(other));
    for (int64_t n = 0; n < Band::min(count, kDecodeTile); ++n) other[n] = keys[n] != id;
    return ~Simd::nonzero_bits(other);
  }

  // The bias of a row at the keys of the tile, null without one. Rows may share it.
  const float* bias_of(int64_t row, int64_t head, int64_t first) {
    if (p.bias.data == nullptr) return nullptr;
    const int64_t at = p.bias.at(batch, head, row % p.seq_q) + first;
    const char* from = static_cast<const char*>(p.bias.data) + at * size_of(p.bias.dtype);
    if (from == bias_from) return bias;
    const int64_t count = Band::min(p.seq_k - first, kDecodeTile), filled = round_up(count, kLanes);
    load_row(p.bias.dtype, from, count, bias);
    std::memset(bias + filled, 0, (kDecodeTile - filled) * sizeof(float));
    bias_from = from;
    return bias;
  }

  // Products become probabilities; `part` holds the row's sums, which are brought to a new maximum.
  void soften(int64_t row, int64_t head, int64_t first, float* part) {
    const Band& band = plan.caches[batch].band;
    const uint32_t bits = seen[row];
    const float* const added = bias_of(row, head, first);
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
      if (added) s[n] = Simd::add(s[n], Simd::load(added + n * kLanes));
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
  void add(const char* const* values, float* parts) const {
    const auto alike = [&](int64_t row, int64_t count) {
      if (row + count > rows) return false;
      for (int64_t other = row + 1; other < row + count; ++other)
        if (seen[other] != seen[row]) return false;
      return true;
    };
    const char* gathered[kDecodeTile];
    for (int64_t row = 0; row < rows;) {
      const uint32_t bits = seen[row];
      float* probability = score + row * kDecodeTile;
      float* output = parts + row * plan.part_width;
      const int64_t count = kMostRows == 4 && alike(row, 4) ? 4 : alike(row, 2) ? 2 : 1;
      int64_t from = first_of(bits), to = end_of(bits);
      const bool gaps = (bits & (bits + (bits & -bits))) != 0;
      if (gaps) {
        from = 0;
        to = gather(bits, values, gathered);
        for (int64_t m = 0; m < count; ++m) gather(bits, probability + m * kDecodeTile, probability + m * kDecodeTile);
      }
      with_rows(count, [&](auto m) {
        decode_sums<kType, m.value>(probability, gaps ? gathered : values, from, to, value_width, output, plan.part_width);
      });
      row += count;
    }
  }
  // Brings what belongs to the keys in `bits` together; gives their count.
  template <class T>
  static int64_t gather(uint32_t bits, const T* from, T* to) {
    int64_t count = 0;
    for (; bits != 0; bits &= bits - 1) to[count++] = from[first_of(bits)];
    return count;
  }
  // Of the keys in `bits`: the first, and the one behind the last. Both 0 without a key.
  static int first_of(uint32_t bits) { return bits ? __builtin_ctz(bits) : 0; }
  static int end_of(uint32_t bits) { return bits ? 32 - __builtin_clz(bits) : 0; }

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
      lo[row] = cache.lo(position);
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
      const uint32_t any = look(kv_head, first);
      if (any == 0) continue;
      const int64_t skipped = first_of(any), count = end_of(any) - skipped, from = first + skipped;
      values.prefetch(p.dtype, from, count);
      with_type(keys.load(p.dtype, in_place, from, count, key_stride, tile, pointers + skipped),
                [&](auto type) { products<type.value>(pointers, skipped, count); });
      for (int64_t row = 0; row < rows; ++row)
        soften(row, kv_head * p.group() + row / p.seq_q, first, parts + row * plan.part_width);
      fetch_after(first, last_key, keys);
      with_type(values.load(p.dtype, in_place, from, count, value_stride, tile, pointers + skipped),
                [&](auto type) { add<type.value>(pointers, parts); });
    }
  }

 protected:
  int64_t batch = 0;

  // Has the keys fetched of the tile that follows.
  void fetch_after(int64_t first, int64_t last_key, const DecodeRows& keys) const {
    const int64_t next = first + kDecodeTile;
    if (next < last_key) keys.prefetch(p.dtype, next, Band::min(last_key - next, kDecodeTile));
  }

 private:
  const char* bias_from = nullptr;  // what `bias` holds
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
    const double natural = maximum * rule.to_natural, log_total = std::log(total);
    const double own = total == 0.0 ? -kInfinity : natural + log_total;
    double logsumexp = own;
    if (p.sinks) {
      logsumexp = log_add(own, p.sinks[head]);
      if (total != 0.0) factor *= static_cast<float>(std::exp(own - logsumexp));
    }
    if (plan.outputs.output && sums) {
      store_row(p.dtype, sums, factor, p.value_dim, output);
    } else if (plan.outputs.output) {
      std::memset(output, 0, p.value_dim * size_of(p.dtype));
    }
    const int64_t at = (batch * p.heads + head) * p.lse_stride + position;
    const float rounded = static_cast<float>(logsumexp);
    if (plan.outputs.logsumexp) plan.outputs.logsumexp[at] = rounded;
    // As in finish_rows.
    if (plan.outputs.rest) plan.outputs.rest[at] = static_cast<float>((natural - rounded) + log_total + (logsumexp - own));
  }
}

}  // namespace
}  // namespace flash_attention
