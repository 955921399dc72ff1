// Forward pass of a tile of query rows: online softmax over tiles of keys (Dao, "FlashAttention-2", 2023, algorithm 1),
// with a running maximum that is raised only when a score exceeds it by far: exponents stay exact in float32 without
// touching the sums on every tile.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

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
  QueryTile q;
  Sides sides;
  Unit* query;         // rows
  Unit* key;           // transposed
  Unit* value;         // stacked
  Unit* pack;          // scratch of packing
  Unit* probability;   // [row][kProbabilityStride], not normalised
  float* output;       // [row][output_stride], not normalised
  float* shift;        // [row]: minus the running maximum
  float* sums;         // [row][kLanes]: partial sums of the probabilities
  int64_t units, query_stride, value_stride, output_stride;

  ForwardTile(const Problem& p, int64_t rows, Arena& arena) : problem(p), rule(p) {
    units = Pack<Math>::units(p.head_dim);
    query_stride = Pack<Math>::row_stride(p.head_dim);
    value_stride = Pack<Math>::stacked_stride(p.head_dim);
    output_stride = tile_stride(p.head_dim);
    query = arena.take<Unit>(rows * query_stride);
    key = arena.take<Unit>(kKeyTile * units);
    value = arena.take<Unit>(kKeyTile / Math::kPerUnit * value_stride);
    pack = arena.take<Unit>(kLanes * query_stride);
    probability = arena.take<Unit>(rows * kProbabilityStride);
    output = arena.take<float>(rows * output_stride);
    shift = arena.take<float>(rows);
    sums = arena.take<float>(rows * kLanes);
    sides.allocate(arena, p, rows);
  }

  Unit* probabilities(int64_t row, int64_t column) const {
    return probability + row * kProbabilityStride + column / Math::kPerUnit;
  }
};

FA_INLINE void store_probabilities(ForwardTile<Float32Math>& tile, int64_t row, int64_t column, F (&p)[kVectors]) {
  for (int n = 0; n < kVectors; ++n) Simd::store(tile.probabilities(row, column + n * kLanes), p[n]);
}

FA_INLINE void scale_probabilities(ForwardTile<Float32Math>& tile, int64_t row, int64_t columns, F factor) {
  float* p = tile.probabilities(row, 0);
  for (int64_t c = 0; c < columns; c += kLanes) Simd::store(p + c, Simd::mul(Simd::load(p + c), factor));
}

template <class S>
FA_INLINE void store_probabilities(ForwardTile<Bf16MathOf<S>>& tile, int64_t row, int64_t column, F (&p)[kVectors]) {
  S::u_store(tile.probabilities(row, column), S::bf16_neighbours(p[0], p[1]));
}

template <class S>
FA_INLINE void scale_probabilities(ForwardTile<Bf16MathOf<S>>& tile, int64_t row, int64_t columns, F factor) {
  uint16_t* p = reinterpret_cast<uint16_t*>(tile.probabilities(row, 0));
  for (int64_t c = 0; c < columns; c += kLanes) S::store_bf16(p + c, S::mul(S::load_bf16(p + c), factor));
}

// A cell of scores: kRows rows from `strip` by kPanel keys from column `panel`.
template <class Math, Bias kBias, bool kKeep>
struct ForwardCell {
  using Tile = ForwardTile<Math>;
  Tile& tile;
  const KeyTile& k;
  const int64_t strip, panel;
  const float* bias = nullptr;
  float distance = 0.0f;

  ForwardCell(Tile& t, const KeyTile& keys, int64_t row, int64_t column)
      : tile(t), k(keys), strip(row), panel(column) {
    if (kBias == Bias::kTensor) bias = t.sides.bias + row * t.sides.bias_stride + column;
    if (kBias == Bias::kSlope) distance = static_cast<float>(k.first + column - t.sides.position - row);
  }

  FA_INLINE void products(F (&acc)[kRows][kVectors]) const {
    multiply<Math, Left::kRowMajor, kVectors>(tile.query + strip * tile.query_stride, tile.query_stride,
                                              tile.key + panel * tile.units, kPanel, tile.units, acc);
  }
  FA_INLINE F score_of(F product, int m, int n) const {
    return score<kBias>(product, Simd::set1(tile.rule.factor), tile.sides, bias, distance, m, n);
  }

  // Raises the running maximum of the rows that need it, and brings what they have summed up to it.
  FA_NOINLINE void raise(const uint32_t* bits) const {
    F acc[kRows][kVectors];
    products(acc);
    for (int m = 0; m < kRows; ++m) {
      F top = Simd::set1(-kInfinity);
      for (int n = 0; n < kVectors; ++n) {
        const F s = score_of(acc[m][n], m, n);
        top = Simd::max(bits ? Simd::select(bits[m] >> (n * kLanes), s, Simd::set1(-kInfinity)) : s, top);
      }
      const int64_t row = strip + m;
      const float reference = Simd::largest(top);
      const float excess = (reference + tile.shift[row]) * tile.rule.to_base2;
      if (!(excess > kHeadroom)) continue;
      const F factor = exp2(Simd::set1(-excess));
      float* sums = tile.sums + row * kLanes;
      Simd::store(sums, Simd::mul(Simd::load(sums), factor));
      float* output = tile.output + row * tile.output_stride;
      for (int64_t d = 0; d < tile.problem.head_dim; d += kLanes)
        Simd::store(output + d, Simd::mul(Simd::load(output + d), factor));
      scale_probabilities(tile, row, panel, factor);
      tile.shift[row] = -reference;
    }
  }

  // Returns whether a score exceeds the running maximum by too much; nothing is stored then.
  template <bool kBits>
  FA_INLINE bool run(const uint32_t* bits) const {
    F acc[kRows][kVectors];
    products(acc);
    F top = Simd::set1(-kInfinity);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        F t = exponent<kBias>(score_of(acc[m][n], m, n), Simd::set1(tile.shift[strip + m]), tile.rule.to_base2);
        if (kBits) t = Simd::select(bits[m] >> (n * kLanes), t, Simd::set1(-kInfinity));
        top = Simd::max(t, top);
        acc[m][n] = t;
      }
    if (__builtin_expect(Simd::any_greater(top, kHeadroom), 0)) return true;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      float* sums = tile.sums + (strip + m) * kLanes;
      F sum = Simd::load(sums);
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        acc[m][n] = exp2(acc[m][n]);
        sum = Simd::add(sum, acc[m][n]);
        if (kKeep) {
          const uint32_t keep = tile.sides.keep[(strip + m) * kWords + panel / 32] >> (panel % 32 + n * kLanes);
          acc[m][n] = Simd::zero_unless(keep, acc[m][n]);
        }
      }
      Simd::store(sums, sum);
      store_probabilities(tile, strip + m, panel, acc[m]);
    }
    return false;
  }

  FA_NOINLINE void run_full() const {
    if (run<false>(nullptr)) {
      raise(nullptr);
      run<false>(nullptr);
    }
  }
  FA_NOINLINE void run_partial(const uint32_t* bits) const {
    if (run<true>(bits)) {
      raise(bits);
      run<true>(bits);
    }
  }
  void clear() const {
    for (int m = 0; m < kRows; ++m)
      std::memset(tile.probabilities(strip + m, panel), 0, kPanel / Math::kPerUnit * sizeof(typename Math::Unit));
  }
};

// Adds key tile `k` to the tile's sums.
template <class Math, Bias kBias, bool kKeep>
void forward_keys(ForwardTile<Math>& tile, const KeyTile& k, int64_t batch, int64_t head) {
  const Problem& p = tile.problem;
  if (!tile.sides.load_mask(p, batch, head, tile.q, k)) return;
  tile.sides.load_rest(p, batch, head, tile.q, k);

  const int64_t first = tile.q.union_lo() <= k.first ? 0 : (tile.q.union_lo() - k.first) / kPanel * kPanel;
  const int64_t last = k.column(tile.q.union_hi());
  const int64_t kv_row = (batch * p.kv_heads + head / p.group()) * p.seq_k + k.first + first;
  const int64_t padded = round_up(last - first, kPanel);
  Pack<Math>::transposed(Rows(p.dtype, p.key, kv_row, p.head_dim), last - first, padded, tile.pack,
                         tile.key + first * tile.units);
  Pack<Math>::stacked(Rows(p.dtype, p.value, kv_row, p.head_dim), last - first, padded,
                      tile.value + first / Math::kPerUnit * tile.value_stride);

  for (int64_t panel = first; panel < last; panel += kPanel) {
    for (int64_t strip = 0; strip < tile.q.padded; strip += kRows) {
      const ForwardCell<Math, kBias, kKeep> cell(tile, k, strip, panel);
      uint32_t bits[kRows];
      switch (look(tile.q, k, tile.sides, strip, panel, bits)) {
        case Sight::kFull: cell.run_full(); break;
        case Sight::kPartial: cell.run_partial(bits); break;
        case Sight::kHidden: cell.clear(); break;
      }
    }
  }
  for (int64_t d = 0; d < p.head_dim; d += kPanel) {
    for (int64_t strip = 0; strip < tile.q.padded; strip += kRows) {
      const int64_t from = k.column(tile.q.lo[strip]) / Math::kPerUnit;
      const int64_t steps = (k.column(tile.q.hi[strip + kRows - 1]) + Math::kPerUnit - 1) / Math::kPerUnit - from;
      if (steps <= 0) continue;
      accumulate<Math, Left::kRowMajor>(tile.probability + strip * tile.kProbabilityStride + from,
                                        tile.kProbabilityStride, tile.value + from * tile.value_stride + d,
                                        tile.value_stride, steps, tile.output + strip * tile.output_stride + d,
                                        tile.output_stride, p.head_dim - d);
    }
  }
}

template <class Math, Bias kBias, bool kKeep>
void forward_rows(const ForwardPlan& plan, int64_t batch_head, int64_t index, char* scratch) {
  const Problem& p = plan.problem;
  Arena arena(scratch);
  ForwardTile<Math> tile(p, plan.rows, arena);
  const int64_t first = index * plan.rows;
  tile.q.set(p.band, first, p.seq_q - first < plan.rows ? p.seq_q - first : plan.rows);
  const int64_t count = tile.q.count, padded = tile.q.padded, row = batch_head * p.seq_q + first;
  Pack<Math>::rows(Rows(p.dtype, p.query, row, p.head_dim), count, padded, tile.query);
  std::memset(tile.output, 0, padded * tile.output_stride * sizeof(float));
  std::memset(tile.sums, 0, padded * kLanes * sizeof(float));
  // Rows that do not exist start at a maximum of 0, which their scores of 0 never exceed.
  for (int64_t m = 0; m < padded; ++m) tile.shift[m] = m < count ? FLT_MAX : 0.0f;

  const int64_t lo = tile.q.union_lo(), hi = tile.q.union_hi();
  if (lo < hi) {
    for (int64_t t = lo / kKeyTile; t * kKeyTile < hi; ++t)
      forward_keys<Math, kBias, kKeep>(tile, KeyTile(t, p.seq_k), batch_head / p.heads, batch_head % p.heads);
  }

  char* output = static_cast<char*>(plan.outputs.output) + row * p.row_bytes();
  for (int64_t m = 0; m < count; ++m) {
    const float total = Simd::sum(Simd::load(tile.sums + m * kLanes));
    const float factor = total == 0.0f ? 0.0f : p.dropout.scale / total;
    store_row(p.dtype, tile.output + m * tile.output_stride, factor, p.head_dim, output + m * p.row_bytes());
    const double natural = -static_cast<double>(tile.shift[m]) * (p.biased() ? 1.0 : kLn2);
    plan.outputs.logsumexp[row + m] =
        total == 0.0f ? -kInfinity : static_cast<float>(natural + std::log(static_cast<double>(total)));
  }
}

}  // namespace
}  // namespace flash_attention
