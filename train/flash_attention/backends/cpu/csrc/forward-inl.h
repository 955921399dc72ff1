// Forward pass of a tile of query rows: online softmax over tiles of keys (Dao, "FlashAttention-2", 2023, algorithm 1),
// with a running maximum that is raised only when a score exceeds it by far: exponents stay exact in float32 without
// touching the sums on every tile.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "gemm-inl.h"
#include "kernels.h"
#include "pack-inl.h"
#include "scores-inl.h"

namespace flash_attention {
namespace {

// A score may exceed the running maximum by this many powers of two.
constexpr float kHeadroom = 10.0f;

template <class Math>
struct ForwardTile {
  using Unit = typename Math::Unit;
  static constexpr int64_t kProbabilityStride = tile_stride(kKeyTile / Math::kPerUnit);

  const Problem& problem;
  const ScoreRule rule;
  // All rows of the task, which share the packed keys and values.
  Unit* all_query;     // rows
  float* all_output;   // [row][output_stride], not normalised
  float* all_shift;    // [row]: minus the running maximum
  float* all_sums;     // [row][kLanes]: partial sums of the probabilities
  QueryTile blocks[kForwardRows / kQueryRows];
  // The block of rows at work, at most kQueryRows: only they need room for scores.
  const QueryTile* q;
  Sides sides;
  Band band;  // of the batch item
  Unit* query;
  float* output;
  float* shift;
  float* sums;
  Unit* probability;   // [row][kProbabilityStride], not normalised
  Unit* key;           // transposed
  Unit* value;         // stacked
  Unit* pack;          // scratch of packing
  Upcoming next_keys;
  Wild wild;           // of the values
  int64_t wild_first;  // column of its row 0
  bool careful = false;
  int64_t units, query_stride, value_stride, output_stride;

  ForwardTile(const Problem& p, int64_t rows, Arena& arena) : problem(p), rule(p) {
    units = Pack<Math>::units(p.head_dim);
    query_stride = Pack<Math>::row_stride(p.head_dim);
    value_stride = Pack<Math>::stacked_stride(p.value_dim);
    output_stride = tile_stride(p.value_dim);
    all_query = arena.take<Unit>(rows * query_stride);
    all_output = arena.take<float>(rows * output_stride);
    all_shift = arena.take<float>(rows);
    all_sums = arena.take<float>(rows * kLanes);
    const int64_t most = rows < kQueryRows ? rows : kQueryRows;
    sides.allocate(arena, p, most);
    probability = arena.take<Unit>(most * kProbabilityStride);
    key = arena.take<Unit>(kKeyTile * units);
    value = arena.take<Unit>(kKeyTile / Math::kPerUnit * value_stride);
    pack = arena.take<Unit>(kLanes * (query_stride > value_stride ? query_stride : value_stride));
  }

  void select(int64_t block) {
    const int64_t from = block * kQueryRows;
    q = &blocks[block];
    query = all_query + from * query_stride;
    output = all_output + from * output_stride;
    shift = all_shift + from;
    sums = all_sums + from * kLanes;
  }
  float probability_at(int64_t row, int64_t column) const {
    return Math::value(probability + row * kProbabilityStride, column);
  }
  Unit* probabilities(int64_t row, int64_t column) const {
    return probability + row * kProbabilityStride + column / Math::kPerUnit;
  }
};

// A cell of scores: kRows rows from `strip` by kPanel keys from column `panel`.
template <class Math, class Arithmetic, Bias kBias, bool kKeep>
struct ForwardCell {
  using Tile = ForwardTile<Math>;
  Tile& tile;
  const KeyTile& k;
  const int64_t strip, panel;
  const float* bias = nullptr;
  float distance = 0.0f;

  ForwardCell(Tile& t, const KeyTile& keys, int64_t row, int64_t column)
      : tile(t), k(keys), strip(row), panel(column) {
    if (kBias == Bias::kPerScore || kBias == Bias::kCapped) bias = t.sides.bias + row * t.sides.bias_stride + column;
    if (kBias == Bias::kAlibi || kBias == Bias::kCapped) distance = static_cast<float>(k.first + column - t.sides.position - row);
  }

  FA_INLINE void products(F (&acc)[kRows][kVectors]) const {
    multiply<Arithmetic, Left::kRowMajor, kVectors>(tile.query + strip * tile.query_stride, tile.query_stride,
                                              tile.key + panel * tile.units, kPanel, tile.units, acc);
  }
  FA_INLINE F score_of(F product, int m, int n) const {
    return score<kBias>(squashed<kBias>(product, tile.rule), tile.rule, tile.sides, bias, distance, m, n);
  }

  // Stores the probabilities of a cell from its exponents.
  FA_INLINE void finish(F (&t)[kRows][kVectors]) const {
    // Local copies: the compiler has to assume that a store changes what `tile` holds.
    float* const sums = tile.sums + strip * kLanes;
    typename Math::Unit* const probability = tile.probabilities(strip, panel);
    const uint32_t* const keep = kKeep ? tile.sides.keep + strip * kWords + panel / 32 : nullptr;
    const int keep_from = static_cast<int>(panel % 32);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      F sum = Simd::load(sums + m * kLanes);
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        t[m][n] = exp2<Math::kExpDegree>(t[m][n]);
        sum = Simd::add(sum, t[m][n]);
        if (kKeep) t[m][n] = Simd::zero_unless(keep[m * kWords] >> (keep_from + n * kLanes), t[m][n]);
      }
      Simd::store(sums + m * kLanes, sum);
      Arithmetic::store(probability + m * Tile::kProbabilityStride, t[m]);
    }
  }

  // The usual case. False when a score exceeds the running maximum by too much; nothing is stored then.
  template <bool kBits>
  FA_INLINE bool run_below(const uint32_t* bits) const {
    F acc[kRows][kVectors];
    products(acc);
    F top = Simd::zero();
    const float* const shift = tile.shift + strip;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        F t = exponent<kBias>(score_of(acc[m][n], m, n), Simd::set1(shift[m]), tile.rule.to_base2);
        if (kBits) t = Simd::select(bits[m] >> (n * kLanes), t, Simd::set1(-kInfinity));
        top = Simd::max_if_positive(t, top);
        acc[m][n] = t;
      }
    if (__builtin_expect(Simd::any_greater(top, kHeadroom), 0)) return false;
    finish(acc);
    return true;
  }

  // Raises the running maximum of the rows that need it, and brings what they have summed up to it.
  FA_NOINLINE void run_raising(const uint32_t* bits) const {
    F acc[kRows][kVectors];
    products(acc);
    for (int m = 0; m < kRows; ++m) {
      F top = Simd::set1(-kInfinity);
      for (int n = 0; n < kVectors; ++n) {
        F s = score_of(acc[m][n], m, n);
        if (bits) s = Simd::select(bits[m] >> (n * kLanes), s, Simd::set1(-kInfinity));
        top = Simd::max(s, top);
        acc[m][n] = s;
      }
      const int64_t row = strip + m;
      const float reference = Simd::largest(top);
      const float excess = (reference + tile.shift[row]) * tile.rule.to_base2;
      if (excess > kHeadroom) {
        lower(row, exp2<6>(Simd::set1(-excess)));
        tile.shift[row] = -reference;
      }
      for (int n = 0; n < kVectors; ++n)
        acc[m][n] = exponent<kBias>(acc[m][n], Simd::set1(tile.shift[row]), tile.rule.to_base2);
    }
    finish(acc);
  }
  FA_NOINLINE void lower(int64_t row, F factor) const {
    float* sums = tile.sums + row * kLanes;
    Simd::store(sums, Simd::mul(Simd::load(sums), factor));
    float* output = tile.output + row * tile.output_stride;
    for (int64_t d = 0; d < tile.problem.value_dim; d += kLanes)
      Simd::store(output + d, Simd::mul(Simd::load(output + d), factor));
    Math::scale(tile.probabilities(row, 0), panel, factor);
  }

  FA_NOINLINE void run_full() const {
    if (unset() || !run_below<false>(nullptr)) run_raising(nullptr);
  }
  FA_NOINLINE void run_partial(const uint32_t* bits) const {
    if (unset() || !run_below<true>(bits)) run_raising(bits);
  }
  // Rows tend to see their first key together. A careful pass looks at each row by itself: a NaN could hide a rise of
  // another one.
  bool unset() const { return tile.shift[strip] == FLT_MAX || tile.careful; }
  void clear() const {
    for (int m = 0; m < kRows; ++m)
      std::memset(tile.probabilities(strip + m, panel), 0, kPanel / Math::kPerUnit * sizeof(typename Math::Unit));
  }
};

// Adds the keys of `k` to the sums of the rows at work.
template <class Math, class Arithmetic, Bias kBias, bool kKeep>
void forward_block(ForwardTile<Math>& tile, const KeyTile& k) {
  const int64_t last = k.column(tile.q->union_hi());
  for (int64_t panel = k.column(tile.q->union_lo()) / kPanel * kPanel; panel < last; panel += kPanel) {
    for (int64_t strip = 0; strip < tile.q->padded; strip += kRows) {
      const ForwardCell<Math, Arithmetic, kBias, kKeep> cell(tile, k, strip, panel);
      tile.next_keys.fetch();
      uint32_t bits[kRows];
      switch (visibility_of(*tile.q, k, tile.sides, strip, panel, bits)) {
        case Visibility::kFull: cell.run_full(); break;
        case Visibility::kPartial: cell.run_partial(bits); break;
        case Visibility::kHidden: cell.clear(); break;
      }
    }
  }
  const int64_t width = tile.problem.value_dim;
  for (int64_t d = 0; d < width; d += kPanel) {
    for (int64_t strip = 0; strip < tile.q->padded; strip += kRows) {
      const int64_t from = k.column(tile.q->lo[strip]) / Math::kPerUnit;
      const int64_t steps = (k.column(tile.q->hi[strip + kRows - 1]) + Math::kPerUnit - 1) / Math::kPerUnit - from;
      if (steps <= 0) continue;
      accumulate<Arithmetic, Left::kRowMajor>(tile.probability + strip * tile.kProbabilityStride + from,
                                              tile.kProbabilityStride, tile.value + from * tile.value_stride + d,
                                              tile.value_stride, steps, tile.output + strip * tile.output_stride + d,
                                              tile.output_stride, width - d);
    }
  }
  if (!tile.careful) return;
  tile.wild.each([&](int64_t index, const auto& add) {
    const int64_t column = index + tile.wild_first;
    for (int64_t m = 0; m < tile.q->count; ++m)
      if (sees(*tile.q, k, tile.sides, m, column))
        add(tile.probability_at(m, column), tile.output + m * tile.output_stride);
  });
}

// Adds key tile `index` to the sums of all `count` rows of the task, which start at row `first`. False when the task
// has to be done again with care.
template <class Math, Bias kBias, bool kKeep>
bool forward_keys(ForwardTile<Math>& tile, int64_t index, int64_t batch, int64_t head, int64_t first, int64_t count) {
  const Problem& p = tile.problem;
  const KeyTile k(index, p.seq_k);
  const int64_t kv_head = head / p.group();
  bool packed = false;
  for (int64_t block = 0; block * kQueryRows < count; ++block) {
    tile.select(block);
    const int64_t lo = tile.q->union_lo(), hi = tile.q->union_hi();
    if (lo >= hi || lo >= k.first + k.count || hi <= k.first) continue;
    if (!tile.sides.load_mask(p, batch, head, *tile.q, k)) continue;
    tile.sides.load_rest(p, batch, head, *tile.q, k);
    if (!packed) {
      // Only the panels that some row of the task sees.
      const int64_t start = k.column(tile.band.lo(first)) / kPanel * kPanel;
      const int64_t seen = k.column(tile.band.hi(first + count - 1)) - start;
      const Rows keys = key_rows(p, batch, kv_head, k.first + start);
      const Rows values = value_rows(p, batch, kv_head, k.first + start);
      Pack<Math>::transposed(keys, seen, round_up(seen, kPanel), tile.pack, tile.key + start * tile.units);
      Pack<Math>::stacked(values, seen, round_up(seen, kPanel), tile.value + start / Math::kPerUnit * tile.value_stride);
      packed = true;
      if (tile.careful) {
        tile.wild_first = start;
        tile.wild.template tame<Math>(values, seen, tile.value + start / Math::kPerUnit * tile.value_stride,
                                      reinterpret_cast<float*>(tile.pack));
      } else if (Tiny<Simd>::any(keys, seen) || Tiny<Simd>::any(values, seen)) {
        return false;
      }
    }
    if ((block + 1) * kQueryRows >= count) {
      const KeyTile next(index + 1, p.seq_k);
      tile.next_keys.set(key_rows(p, batch, kv_head, next.first), value_rows(p, batch, kv_head, next.first),
                         next.column(tile.band.hi(first + count - 1)), kPanels * tile.q->padded / kRows);
    }
    if (tile.careful) {
      forward_block<Math, typename CarefulOf<Math>::Type, kBias, kKeep>(tile, k);
    } else {
      forward_block<Math, Math, kBias, kKeep>(tile, k);
    }
  }
  return true;
}

// The sums of a task. False when it has to be done again with care: tiny or non-finite numbers are about.
template <class Math, Bias kBias, bool kKeep>
bool sum_rows(ForwardTile<Math>& tile, int64_t batch, int64_t head, int64_t first, int64_t count) {
  const Problem& p = tile.problem;
  const int64_t padded = round_up(count, kRows);
  const Rows queries = query_rows(p, batch, head, first);
  if (!tile.careful && Tiny<Simd>::any(queries, count)) return false;
  Pack<Math>::rows(queries, count, padded, tile.all_query);
  std::memset(tile.all_output, 0, padded * tile.output_stride * sizeof(float));
  std::memset(tile.all_sums, 0, padded * kLanes * sizeof(float));
  // Rows that do not exist start at a maximum of 0, which their scores of 0 never exceed.
  for (int64_t m = 0; m < padded; ++m) tile.all_shift[m] = m < count ? FLT_MAX : 0.0f;
  const int64_t lo = tile.band.lo(first), hi = tile.band.hi(first + count - 1);
  for (int64_t t = lo / kKeyTile; lo < hi && t * kKeyTile < hi; ++t)
    if (!forward_keys<Math, kBias, kKeep>(tile, t, batch, head, first, count)) return false;
  if (tile.careful) return true;
  Finite finite;
  for (int64_t m = 0; m < count; ++m) finite.add(tile.all_output + m * tile.output_stride, p.value_dim);
  return finite.all();
}

// log(exp(a) + exp(b)); NaN stays NaN.
inline double log_add(double a, double b) {
  if (a == -kInfinity || b == kInfinity) return b;
  if (b == -kInfinity || a == kInfinity) return a;
  return (a > b ? a : b) + std::log1p(std::exp(-std::fabs(a - b)));
}

template <class Math, Bias kBias, bool kKeep>
void forward_rows(const ForwardPlan& plan, int64_t batch_head, int64_t index, char* scratch) {
  const Problem& p = plan.problem;
  Arena arena(scratch);
  ForwardTile<Math> tile(p, plan.rows, arena);
  const int64_t batch = batch_head / p.heads, head = batch_head % p.heads;
  const int64_t first = index * plan.rows;
  tile.band = p.band_of(batch);
  const int64_t count = p.seq_q - first < plan.rows ? p.seq_q - first : plan.rows;
  for (int64_t block = 0, from = 0; from < count; ++block, from += kQueryRows)
    tile.blocks[block].set(tile.band, first + from, count - from < kQueryRows ? count - from : kQueryRows);
  if (!sum_rows<Math, kBias, kKeep>(tile, batch, head, first, count)) {
    tile.careful = true;
    sum_rows<Math, kBias, kKeep>(tile, batch, head, first, count);
  }

  char* output = static_cast<char*>(plan.outputs.output);
  float* logsumexp = plan.outputs.logsumexp + batch_head * p.lse_stride + first;
  for (int64_t m = 0; m < count; ++m) {
    const float total = Simd::sum(Simd::load(tile.all_sums + m * kLanes));
    const double natural = -tile.all_shift[m] * tile.rule.to_natural;
    double sum = total == 0.0f ? -kInfinity : natural + std::log(static_cast<double>(total));
    float factor = total == 0.0f ? 0.0f : p.dropout.scale / total;
    if (p.sinks) {
      const double joined = log_add(sum, p.sinks[head]);
      if (total != 0.0f) factor *= static_cast<float>(std::exp(sum - joined));
      sum = joined;
    }
    store_row(p.dtype, tile.all_output + m * tile.output_stride, factor, p.value_dim,
              output + p.output_layout.at(batch, head, first + m) * size_of(p.dtype));
    logsumexp[m] = static_cast<float>(sum);
  }
}

}  // namespace
}  // namespace flash_attention
