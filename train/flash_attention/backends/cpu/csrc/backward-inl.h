// Backward pass of a tile of keys (Dao, "FlashAttention-2", 2023, algorithm 2): probabilities come again from the
// logsumexp, dS = P * (dP - D + dL) with D = rowsum(dO * O) and dL the gradient of the logsumexp. One pass gives all
// three gradients, so five products in all; sums over key tiles into d_query are taken in turns.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "gemm-inl.h"
#include "kernels.h"
#include "pack-inl.h"
#include "scores-inl.h"

namespace flash_attention {
namespace {

// The keys of a task, and the query tiles that see them.
struct TaskKeys {
  const BackwardPlan& plan;
  const Problem& problem;
  int64_t batch, kv_head;
  KeyTile tile;
  Band band;  // of the batch item

  explicit TaskKeys(const BackwardTask& task)
      : plan(*task.plan),
        problem(plan.problem),
        batch(task.group / problem.kv_heads),
        kv_head(task.group % problem.kv_heads),
        tile(task.key_tile, problem.seq_k),
        band(problem.band_of(batch)) {}
  int64_t head(int64_t g) const { return kv_head * problem.group() + g; }
  Rows keys() const { return key_rows(problem, problem.key, batch, kv_head, tile.first); }
  Rows values() const { return value_rows(problem, problem.value, batch, kv_head, tile.first); }
  Rows d_keys() const { return key_rows(problem, plan.outputs.d_key, batch, kv_head, tile.first); }
  Rows d_values() const { return value_rows(problem, plan.outputs.d_value, batch, kv_head, tile.first); }
  Rows queries(int64_t g, int64_t row) const { return query_rows(problem, problem.query, batch, head(g), row); }
  Rows d_outputs(int64_t g, int64_t row) const { return output_rows(problem, plan.inputs.d_output, batch, head(g), row); }
  int64_t rows(int64_t index) const { return Band::min(problem.seq_q - index * kQueryRows, kQueryRows); }
  // The first query tile of head g from `index` on that sees some of the keys; plan.query_tiles where there is none.
  int64_t seeing(int64_t g, int64_t index) const {
    for (; index < plan.query_tiles; ++index) {
      // The tile's ends first: most tiles of a banded problem are out of sight.
      const int64_t first = index * kQueryRows, lo = band.lo(first), hi = band.hi(first + rows(index) - 1);
      if (lo >= tile.first + tile.count) break;
      if (hi > tile.first && lo < hi && plan.visits(batch, head(g), index, tile.index)) return index;
    }
    return plan.query_tiles;
  }
};

template <class Math>
struct BackwardTile;

// Tiles that both kinds of arithmetic need.
template <class Math>
struct BackwardTileBase {
  using Unit = typename Math::Unit;
  const BackwardPlan& plan;
  const Problem& problem;
  const ScoreRule rule;
  QueryTile q;
  PairInputs inputs;
  StripSteps<Math> steps;
  // Of query, key and their gradients; of value, output and theirs.
  int64_t units, row_stride, stacked_stride, sum_stride;
  int64_t value_units, output_row_stride, output_stacked_stride, value_sum_stride;
  Unit* key;          // transposed
  Unit* value;        // transposed
  Unit* key_stacked;
  Unit* query;        // rows
  Unit* d_output;     // rows
  Unit* pack;         // scratch of packing
  CellProducts<Math> products;  // the scores, and the gradients of probabilities
  float* d_key;       // [key][sum_stride]
  float* d_value;     // [key][value_sum_stride]
  float* edge;        // [kStrip][sum_stride]: the last, incomplete rows of d_query
  float* columns;     // [kKeyTile]: sums of score gradients over rows
  float* bias_gradient = nullptr;  // [row][kBiasStride] where a soft cap makes it another one than that of the products
  float* shift;       // [row]
  float* rest;        // [row]
  float* delta;       // [row]
  Upcoming next_rows, next_keys, results;
  UpcomingRows sums;  // of d_query
  NonFinite nonfinite_keys, nonfinite_query, nonfinite_d_output;
  // Rows [first_row, last_row) of the tile see keys of a strip of kStrip keys.
  int64_t first_row[kKeyTile / Math::kStrip], last_row[kKeyTile / Math::kStrip];

  BackwardTileBase(const BackwardPlan& all, Arena& arena) : plan(all), problem(all.problem), rule(all.problem) {
    const int64_t width = problem.head_dim, value_width = problem.value_dim;
    units = Pack<Math>::units(width);
    row_stride = Pack<Math>::row_stride(width);
    stacked_stride = Pack<Math>::stacked_stride(width);
    sum_stride = tile_stride(width);
    value_units = Pack<Math>::units(value_width);
    output_row_stride = Pack<Math>::row_stride(value_width);
    output_stacked_stride = Pack<Math>::stacked_stride(value_width);
    value_sum_stride = tile_stride(value_width);
    key = arena.take<Unit>(Math::kParts * kKeyTile * units);
    value = arena.take<Unit>(Math::kParts * kKeyTile * value_units);
    key_stacked = arena.take<Unit>(kKeyTile / Math::kPerUnit * stacked_stride);
    query = arena.take<Unit>(kQueryRows * row_stride);
    d_output = arena.take<Unit>(kQueryRows * output_row_stride);
    pack = arena.take<Unit>(kLanes * (row_stride > output_row_stride ? row_stride : output_row_stride));
    d_key = arena.take<float>(kKeyTile * sum_stride);
    d_value = arena.take<float>(kKeyTile * value_sum_stride);
    edge = arena.take<float>(Math::kStrip * sum_stride);
    columns = arena.take<float>(kKeyTile);
    shift = arena.take<float>(kQueryRows);
    rest = arena.take<float>(kQueryRows);
    delta = arena.take<float>(kQueryRows);
    inputs.allocate(arena, problem, kQueryRows);
    products.allocate(arena);
    if (problem.capped() && plan.outputs.d_bias) bias_gradient = arena.take<float>(kQueryRows * kBiasStride);
  }
  static constexpr int64_t kBiasStride = tile_stride(kKeyTile);
  FA_INLINE void fetch() {
    next_rows.fetch();
    next_keys.fetch();
    results.fetch();
    sums.fetch();
  }
  // After the last cell of a panel in a strip of kStrip rows.
  void finish_strip(int64_t, int64_t) {}
  FA_INLINE float* bias_gradient_of(int64_t row) const { return bias_gradient + row * kBiasStride; }
};

// In float32 one copy of a tile serves as left and as right operand.
template <>
struct BackwardTile<Float32Math> : BackwardTileBase<Float32Math> {
  static constexpr int64_t kStride = tile_stride(kKeyTile);
  float* query_stacked;
  float* d_output_stacked;
  float* probability;     // [row][kStride]
  float* score_gradient;  // [row][kStride]

  BackwardTile(const BackwardPlan& all, Arena& arena) : BackwardTileBase(all, arena) {
    query_stacked = query;
    d_output_stacked = d_output;
    probability = arena.take<float>(kQueryRows * kStride);
    score_gradient = arena.take<float>(kQueryRows * kStride);
  }
  // Rows from `first` on; the end is padded.
  void load_rows(const Rows& query_rows, const Rows& d_output_rows, int64_t first, int64_t count, int64_t padded) {
    Pack<Float32Math>::rows(query_rows.from(first), count, padded, query + first * row_stride);
    Pack<Float32Math>::rows(d_output_rows.from(first), count, padded, d_output + first * output_row_stride);
  }
  // Left operands: summed over rows (for d_key, d_value; `at` is the unit of a probability or score gradient) and over
  // keys (for d_query).
  static int64_t at(int64_t row, int64_t column) { return row * kStride + column; }
  static constexpr int64_t kByRowStride = kStride;
  static constexpr Left kByRow = Left::kStepMajor;
  const float* gradient_by_key(int64_t row, int64_t column) const { return score_gradient + row * kStride + column; }
  static constexpr int64_t kByKeyStride = kStride;

  void clear(int64_t strip, int64_t panel) {
    for (int m = 0; m < kRows; ++m) {
      std::memset(probability + (strip + m) * kStride + panel, 0, kPanel * sizeof(float));
      std::memset(score_gradient + (strip + m) * kStride + panel, 0, kPanel * sizeof(float));
      if (bias_gradient) std::memset(bias_gradient_of(strip + m) + panel, 0, kPanel * sizeof(float));
    }
  }
  // Where a cell's undropped probabilities wait for the gradient: their final place.
  FA_INLINE float* waiting(int64_t strip, int64_t panel, float*) { return probability + strip * kStride + panel; }
  static constexpr int64_t kWaitingStride = kStride;
  template <class Arithmetic, bool kKeep>
  FA_INLINE void store_cell(int64_t strip, int64_t panel, F (&p)[kRows][kVectors], F (&ds)[kRows][kVectors]) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        const int64_t at = (strip + m) * kStride + panel + n * kLanes;
        if (kKeep) Simd::store(probability + at, p[m][n]);
        Simd::store(score_gradient + at, ds[m][n]);
      }
  }
};

// Of bfloat16 both kinds of left operand hold pairs along the axis that is summed. Here are those summed over keys.
template <class Math>
struct PairedBackwardTile : BackwardTileBase<Math> {
  static constexpr int64_t kByKeyStride = tile_stride(Math::kParts * kKeyTile / 2);
  uint32_t* query_stacked;
  uint32_t* d_output_stacked;
  uint32_t* score_gradient_rows;  // [row][kByKeyStride]: two keys in a unit

  PairedBackwardTile(const BackwardPlan& all, Arena& arena) : BackwardTileBase<Math>(all, arena) {
    query_stacked = arena.take<uint32_t>(kQueryRows / 2 * this->stacked_stride);
    d_output_stacked = arena.take<uint32_t>(kQueryRows / 2 * this->output_stacked_stride);
    score_gradient_rows = arena.take<uint32_t>(kQueryRows * kByKeyStride);
  }
  void load_rows(const Rows& query_rows, const Rows& d_output_rows, int64_t first, int64_t count, int64_t padded) {
    Pack<Math>::both(query_rows.from(first), count, padded, this->query + first * this->row_stride,
                     query_stacked + first / 2 * this->stacked_stride);
    Pack<Math>::both(d_output_rows.from(first), count, padded, this->d_output + first * this->output_row_stride,
                     d_output_stacked + first / 2 * this->output_stacked_stride);
  }
  const uint32_t* gradient_by_key(int64_t row, int64_t column) const {
    return score_gradient_rows + row * kByKeyStride + column / 2;
  }
  FA_INLINE float* waiting(int64_t, int64_t, float* local) { return local; }
  static constexpr int64_t kWaitingStride = kPanel;

 protected:
  // Those of two rows of a cell.
  template <class Arithmetic>
  FA_INLINE void store_gradient_rows(int64_t row, int64_t panel, F (&first)[kVectors], F (&second)[kVectors]) {
    uint32_t* rows = score_gradient_rows + row * kByKeyStride + panel / 2;
    Arithmetic::store(rows, first);
    Arithmetic::store(rows + kByKeyStride, second);
  }
  void clear_gradient_rows(int64_t strip, int64_t panel) {
    for (int m = 0; m < kRows; ++m) clear_panel<Math>(score_gradient_rows + (strip + m) * kByKeyStride + panel / 2);
  }
};

template <class S>
struct BackwardTile<Bf16MathOf<S>> : PairedBackwardTile<Bf16MathOf<S>> {
  using Math = Bf16MathOf<S>;
  static constexpr int64_t kByRowStride = tile_stride(kKeyTile);
  static constexpr Left kByRow = Left::kStepMajor;
  uint32_t* probability;     // [row / 2][kByRowStride]: two rows in a unit
  uint32_t* score_gradient;  // likewise

  BackwardTile(const BackwardPlan& all, Arena& arena) : PairedBackwardTile<Math>(all, arena) {
    probability = arena.take<uint32_t>(kQueryRows / 2 * kByRowStride);
    score_gradient = arena.take<uint32_t>(kQueryRows / 2 * kByRowStride);
  }
  static int64_t at(int64_t row, int64_t column) { return row / 2 * kByRowStride + column; }

  void clear(int64_t strip, int64_t panel) {
    this->clear_gradient_rows(strip, panel);
    for (int m = 0; m < kRows; m += 2) {
      std::memset(probability + at(strip + m, panel), 0, kPanel * sizeof(uint32_t));
      std::memset(score_gradient + at(strip + m, panel), 0, kPanel * sizeof(uint32_t));
    }
  }
  template <class Arithmetic, bool kKeep>
  FA_INLINE void store_cell(int64_t strip, int64_t panel, F (&p)[kRows][kVectors], F (&ds)[kRows][kVectors]) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m += 2) {
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        const int64_t at = (strip + m) / 2 * kByRowStride + panel + n * kLanes;
        S::u_store(probability + at, Arithmetic::pairs(p[m][n], p[m + 1][n]));
        S::u_store(score_gradient + at, Arithmetic::pairs(ds[m][n], ds[m + 1][n]));
      }
      this->template store_gradient_rows<Arithmetic>(strip + m, panel, ds[m], ds[m + 1]);
    }
  }
};

template <class Math, class Arithmetic, Bias kBias, bool kKeep>
struct BackwardCell {
  using Tile = BackwardTile<Math>;
  Tile& tile;
  const int64_t strip, panel;
  const float* bias = nullptr;
  float distance = 0.0f;

  BackwardCell(Tile& t, const KeyTile& k, int64_t row, int64_t column) : tile(t), strip(row), panel(column) {
    if (kBias == Bias::kPerScore || kBias == Bias::kCapped) bias = t.inputs.bias + row * t.inputs.bias_stride + column;
    if (kBias == Bias::kAlibi || kBias == Bias::kCapped) distance = static_cast<float>(k.first + column - t.inputs.position - row);
  }

  // What is visible lies in the first kCount vectors.
  template <bool kBits, int kCount>
  FA_NOINLINE void run(const uint32_t* bits) const {
    alignas(64) float local[kRows * kPanel];
    alignas(64) float squashes[kBias == Bias::kCapped ? kRows * kPanel : 1];
    float* waiting = tile.waiting(strip, panel, local);
    F acc[kRows][kCount];
    tile.products.template multiply_cell<Arithmetic, kCount>(tile.query, tile.row_stride, tile.key, tile.units, strip,
                                                             panel, acc);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      tile.products.template go_on<Arithmetic>(m, 0, 2);
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        if (n >= kCount) {
          Simd::store(waiting + m * Tile::kWaitingStride + n * kLanes, Simd::zero());
          continue;
        }
        const F squash = squashed<kBias>(acc[m][n], tile.rule);
        if constexpr (kBias == Bias::kCapped) Simd::store(squashes + m * kPanel + n * kLanes, squash);
        const F s = score<kBias>(squash, tile.rule, tile.inputs, bias, distance, m, n);
        F t = exponent<kBias>(s, Simd::set1(tile.shift[strip + m]), tile.rule.to_base2, Simd::set1(tile.rest[strip + m]));
        if (kBits) t = Simd::select(bits[m] >> (n * kLanes), t, Simd::set1(-kInfinity));
        Simd::store(waiting + m * Tile::kWaitingStride + n * kLanes, exp2<Math::kExpDegree>(t));
      }
    }
    if constexpr (std::is_same_v<Math, Float32Math>) {
      tile.products.template multiply_chains<Arithmetic, kCount>(
          tile.d_output, tile.output_row_stride, tile.value, tile.value_units, strip, panel, acc);
    } else {
      tile.products.template multiply_cell<Arithmetic, kCount, 1>(
          tile.d_output, tile.output_row_stride, tile.value, tile.value_units, strip, panel, acc);
    }
    const F scale = Simd::set1(tile.plan.score_gradient_scale * tile.problem.dropout.scale);
    F p[kRows][kVectors], ds[kRows][kVectors];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      tile.products.template go_on<Arithmetic>(m, 1, 2);
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        if (n >= kCount) {
          p[m][n] = ds[m][n] = Simd::zero();
          if (tile.bias_gradient) Simd::store(tile.bias_gradient_of(strip + m) + panel + n * kLanes, Simd::zero());
          continue;
        }
        p[m][n] = Simd::load(waiting + m * Tile::kWaitingStride + n * kLanes);
        F gradient = Simd::mul(acc[m][n], scale);
        const F whole = p[m][n];
        if (kKeep) {
          const uint32_t keep = tile.inputs.keep[(strip + m) * kWords + panel / 32] >> (panel % 32 + n * kLanes);
          gradient = Simd::zero_unless(keep, gradient);
          p[m][n] = Simd::zero_unless(keep, p[m][n]);
        }
        ds[m][n] = Simd::mul(whole, Simd::sub(gradient, Simd::set1(tile.delta[strip + m])));
        // Zero times NaN would be NaN.
        if (kBits) ds[m][n] = Simd::zero_unless(bits[m] >> (n * kLanes), ds[m][n]);
        if constexpr (kBias == Bias::kCapped) {
          if (tile.bias_gradient) Simd::store(tile.bias_gradient_of(strip + m) + panel + n * kLanes, ds[m][n]);
          const F squash = Simd::load(squashes + m * kPanel + n * kLanes);
          ds[m][n] = Simd::mul(ds[m][n], Simd::sub(Simd::set1(1.0f), Simd::mul(squash, squash)));
          if (kBits) ds[m][n] = Simd::zero_unless(bits[m] >> (n * kLanes), ds[m][n]);
        }
      }
    }
    tile.template store_cell<Arithmetic, kKeep>(strip, panel, p, ds);
  }
};

// Which rows of the query tile see each strip of kStrip keys, in whole steps of the products; none where no row does, whose
// cells may not have been computed.
template <class Math>
void find_rows(BackwardTile<Math>& tile, const KeyTile& k) {
  const QueryTile& q = tile.q;
  constexpr int64_t kStep = Math::kPerUnit * Math::kWhole;
  for (int64_t strip = 0; strip * Math::kStrip < k.count; ++strip) {
    const int64_t from = k.first + strip * Math::kStrip;
    const int64_t to = Band::min(from + Math::kStrip, k.first + k.count);
    const auto side = [&](int64_t row) {
      return tile.inputs.may_see(row, from - k.first) || tile.inputs.may_see(row, to - 1 - k.first);
    };
    const int64_t second = Band::min(q.count, tile.inputs.second_block);
    int64_t first = side(0) ? 0 : second, last = side(q.count - 1) ? q.count : second;
    while (first < last && q.hi[first] <= from) ++first;
    while (last > first && q.lo[last - 1] >= to) --last;
    if (first >= last) first = last = 0;
    tile.first_row[strip] = first / kStep * kStep;
    tile.last_row[strip] = round_up(last, kStep);
  }
}

template <class Math, class Arithmetic>
void add_key_gradients(BackwardTile<Math>& tile, const KeyTile& k) {
  const int64_t width = tile.problem.head_dim, value_width = tile.problem.value_dim;
  // Of one gradient after the other: a panel of the right operand then stays in the nearest cache.
  const auto add = [&](const typename Math::Unit* left, const typename Math::Unit* right, int64_t right_stride, float* sums,
                       int64_t sum_stride, int64_t columns, int64_t d) {
    for (int64_t strip = 0; strip * Math::kStrip < k.count; ++strip) {
      const int64_t first = tile.first_row[strip], column = strip * Math::kStrip;
      const int64_t steps = (tile.last_row[strip] - first) / Math::kPerUnit;
      if (steps <= 0) continue;
      accumulate<Arithmetic, BackwardTile<Math>::kByRow>(left + tile.at(first, column), tile.kByRowStride,
                                                         right + first / Math::kPerUnit * right_stride + d, right_stride,
                                                         steps, sums + column * sum_stride + d, sum_stride, columns - d);
    }
  };
  for (int64_t d = 0; d < width || d < value_width; d += kPanel) {
    if (d < value_width)
      add(tile.probability, tile.d_output_stacked, tile.output_stacked_stride, tile.d_value, tile.value_sum_stride,
          value_width, d);
    if (d < width)
      add(tile.score_gradient, tile.query_stacked, tile.stacked_stride, tile.d_key, tile.sum_stride, width, d);
  }
  if (!tile.plan.careful) return;
  const auto each_key = [&](int64_t m, const auto& use) {
    for (int64_t column = 0; column < k.count; ++column)
      if (sees(tile.q, k, tile.inputs, m, column)) use(column);
  };
  tile.nonfinite_d_output.each([&](int64_t m, const auto& add) {
    each_key(m, [&](int64_t c) {
      add(Math::value(tile.probability + tile.at(m, c), m % Math::kPerUnit), tile.d_value + c * tile.value_sum_stride);
    });
  });
  tile.nonfinite_query.each([&](int64_t m, const auto& add) {
    each_key(m, [&](int64_t c) { add(Math::value(tile.gradient_by_key(m, 0), c), tile.d_key + c * tile.sum_stride); });
  });
}

template <class Math, class Arithmetic>
void add_query_gradients(BackwardTile<Math>& tile, const KeyTile& k, float* d_query) {
  const int64_t width = tile.problem.head_dim, stride = tile.plan.d_query_layout.row_stride;
  const QueryTile& q = tile.q;
  const int64_t whole = q.count / Math::kStrip * Math::kStrip;
  if (whole < q.padded) std::memset(tile.edge, 0, Math::kStrip * tile.sum_stride * sizeof(float));
  for (int64_t d = 0; d < width; d += kPanel) {
    for (int64_t strip = 0; strip < q.padded; strip += Math::kStrip) {
      const int64_t from = tile.steps.from[strip / Math::kStrip], steps = tile.steps.count[strip / Math::kStrip];
      if (steps == 0) continue;
      tile.fetch();
      const bool inside = strip < whole;
      accumulate<Arithmetic, Left::kRowMajor>(tile.gradient_by_key(strip, from * Math::kPerUnit), tile.kByKeyStride,
                                              tile.key_stacked + from * tile.stacked_stride + d, tile.stacked_stride,
                                              steps, inside ? d_query + strip * stride + d : tile.edge + d,
                                              inside ? stride : tile.sum_stride, width - d);
    }
  }
  for (int64_t m = whole; m < q.count; ++m) {
    const float* edge = tile.edge + (m - whole) * tile.sum_stride;
    for (int64_t d = 0; d < width; ++d) d_query[m * stride + d] += edge[d];
  }
  if (!tile.plan.careful) return;
  tile.nonfinite_keys.each([&](int64_t column, const auto& add) {
    for (int64_t m = 0; m < q.count; ++m)
      if (sees(q, k, tile.inputs, m, column))
        add(Math::value(tile.gradient_by_key(m, 0), column), d_query + m * stride);
  });
}

// Gradient of the bias; its plan keeps the score gradients in float32 and unscaled.
inline void add_bias_gradient(BackwardTile<Float32Math>& tile, const KeyTile& k, int64_t batch, int64_t head) {
  const BackwardPlan& plan = tile.plan;
  const QueryTile& q = tile.q;
  for (int64_t m = 0; m < q.count; ++m) {
    // Columns that no row of the strip sees were not written.
    const int64_t strip = m / kRows * kRows;
    const int64_t from = k.column(q.lo[strip]), to = k.column(q.hi[strip + kRows - 1]);
    const float* row = tile.bias_gradient ? tile.bias_gradient_of(m) : tile.gradient_by_key(m, 0);
    float* sum = tile.columns;
    if (plan.d_bias) sum = plan.d_bias + tile.problem.bias.at(batch, head, q.first + m) + k.first;
    for (int64_t c = from; c < to; ++c) sum[c] += row[c];
  }
}
template <class Math>
inline void add_bias_gradient(BackwardTile<Math>&, const KeyTile&, int64_t, int64_t) {}

// Rows of memory that passes without products ask for before they come to them.
constexpr int64_t kAhead = 4;

// Converts sums that are complete to the results.
inline void finish_d_query(const BackwardPlan& plan, int64_t batch_head, int64_t first, int64_t count) {
  const Problem& p = plan.problem;
  const int64_t batch = batch_head / p.heads, head = batch_head % p.heads;
  Finite finite;
  UpcomingRows ahead;
  ahead.set(query_rows(p, plan.outputs.d_query, batch, head, first + kAhead), count - kAhead, count);
  for (int64_t row = first; row < first + count; ++row) {
    ahead.fetch();
    const float* sums = plan.d_query_row(batch, head, row);
    finite.add(sums, p.head_dim);
    store_row(p.dtype, sums, plan.factor_left, p.head_dim,
              static_cast<char*>(plan.outputs.d_query) + p.query_layout.at(batch, head, row) * size_of(p.dtype));
  }
  if (!finite.all()) plan.ask_for_care();
}

// One query tile of one head against the key tile, of which it has `seen` some; false when another thread failed.
template <class Math, class Arithmetic, Bias kBias, bool kKeep>
bool backward_rows_of(BackwardTile<Math>& tile, const KeyTile& k, int64_t batch, int64_t head, int64_t turn_base,
                      int64_t index, bool seen) {
  const BackwardPlan& plan = tile.plan;
  const Problem& p = tile.problem;
  const QueryTile& q = tile.q;
  const int64_t row = (batch * p.heads + head) * p.seq_q + q.first;
  // A strip of keys may reach into the panels before and behind those that rows see.
  const int64_t first = k.column(q.union_lo()) / Math::kStrip * Math::kStrip / kPanel * kPanel;
  const int64_t last = round_up(k.column(q.union_hi()), Math::kStrip);
  if (seen) {
    tile.inputs.load_rest(p, batch, head, q, k);
    const Rows queries = query_rows(p, p.query, batch, head, q.first);
    const Rows d_outputs = output_rows(p, plan.inputs.d_output, batch, head, q.first);
    // A careful pass clears numbers of all rows.
    const int64_t begin = plan.careful ? 0 : tile.inputs.first_row() / kRows * kRows;
    const int64_t end = plan.careful ? q.count : Band::min(q.count, round_up(tile.inputs.rows_end(q.count), kRows));
    tile.load_rows(queries, d_outputs, begin, end - begin, (end == q.count ? q.padded : end) - begin);
    std::memcpy(tile.shift, plan.shift + row, q.count * sizeof(float));
    std::memcpy(tile.rest, plan.rest + row, q.count * sizeof(float));
    std::memcpy(tile.delta, plan.delta + row, q.count * sizeof(float));
    for (int64_t m = q.count; m < q.padded; ++m) {
      tile.shift[m] = -kInfinity;
      tile.rest[m] = tile.delta[m] = 0.0f;
    }
    tile.products.start(CellOrder{&q, &k, &tile.inputs, last}, tile.query, tile.row_stride, tile.key, tile.units, tile.d_output,
                        tile.output_row_stride, tile.value, tile.value_units);
    // Cells that the block mask hides are cleared where strips reach into them, and for the bias.
    const bool skip = fills_words(Math::kStrip) && !plan.outputs.d_bias;
    for (int64_t panel = first; panel < last; panel += kPanel) {
      const uint32_t word = 1u << (panel / 32);
      const int64_t rows_end = skip ? tile.inputs.rows_end(q.padded, word) : q.padded;
      for (int64_t strip = skip ? tile.inputs.first_row(word) : 0; strip < rows_end; strip += kRows) {
        if (!skip && !tile.inputs.may_see_strip(strip, panel)) {
          tile.clear(strip, panel);
          continue;
        }
        const BackwardCell<Math, Arithmetic, kBias, kKeep> cell(tile, k, strip, panel);
        uint32_t bits[kRows];
        const Visibility visibility = visibility_of(q, k, tile.inputs, strip, panel, bits);
        if (visibility != Visibility::kHidden) tile.fetch();
        switch (visibility) {
          case Visibility::kFull: cell.template run<false, kVectors>(nullptr); break;
          case Visibility::kPartial:
            k.first + panel + kLanes < q.hi[strip + kRows - 1] ? cell.template run<true, kVectors>(bits)
                                                               : cell.template run<true, 1>(bits);
            break;
          case Visibility::kHidden: tile.clear(strip, panel); break;
        }
        if ((strip + kRows) % Math::kStrip == 0) tile.finish_strip(strip + kRows - Math::kStrip, panel);
      }
    }
    find_rows(tile, k);
    if (plan.careful) {
      // Only now: the scores have been made of these very rows.
      float* scratch = reinterpret_cast<float*>(tile.pack);
      tile.nonfinite_query.template clear<Math>(queries, q.count, tile.query_stacked, scratch);
      tile.nonfinite_d_output.template clear<Math>(d_outputs, q.count, tile.d_output_stacked, scratch);
    }
    add_key_gradients<Math, Arithmetic>(tile, k);
  }
  // The key tiles that a query tile visits add to it in ascending order, whichever thread has them.
  const int64_t first_key_tile = q.union_lo() / kKeyTile, last_key_tile = (q.union_hi() - 1) / kKeyTile;
  const int64_t before = plan.visits_end(batch, head, index, first_key_tile, k.index);
  const bool first_turn = before == first_key_tile;
  if (!plan.wait(plan, turn_base + index, first_turn ? 0 : static_cast<int32_t>(before))) return false;
  if (first_turn) plan.clear_d_query(batch, head, q.first, q.count);
  if (seen) {
    add_query_gradients<Math, Arithmetic>(tile, k, plan.d_query_row(batch, head, q.first));
    if (plan.outputs.d_bias) add_bias_gradient(tile, k, batch, head);
  }
  const bool last_turn = plan.visits_none(batch, head, index, k.index + 1, last_key_tile + 1);
  if (last_turn) finish_d_query(plan, batch * p.heads + head, q.first, q.count);
  plan.set_turn(plan, turn_base + index, static_cast<int32_t>(k.index + 1));
  return true;
}

// Has fetched, while query tile `index` is at work, the sums that it adds to, and what is packed or written next.
template <class Math>
void look_ahead(BackwardTile<Math>& tile, const TaskKeys& task, const NextTask<BackwardTask>& next, int64_t g,
                int64_t index) {
  const int64_t cells = tile.steps.cells;
  const BackwardPlan& plan = task.plan;
  const int64_t seen = tile.inputs.first_row();
  const Rows sums{DType::kFloat32,
                  reinterpret_cast<const char*>(plan.d_query_row(task.batch, task.head(g), tile.q.first + seen)),
                  plan.d_query_layout.row_stride * 4, plan.d_query_width};
  tile.sums.set(sums, tile.inputs.rows_end(tile.q.count) - seen, cells);
  const auto fetch_rows = [&](const TaskKeys& of, int64_t g_of, int64_t tile_index) {
    if (tile_index == of.plan.query_tiles) return false;
    int64_t first = tile_index * kQueryRows, end = first + of.rows(tile_index);
    of.problem.blocks.narrow_rows(of.batch, of.head(g_of), first, end, of.tile.first, of.tile.first + of.tile.count);
    tile.next_rows.set(of.queries(g_of, first), of.d_outputs(g_of, first), end - first, cells);
    return true;
  };
  if (fetch_rows(task, g, task.seeing(g, index + 1))) return;
  if (g + 1 < task.problem.group() && fetch_rows(task, g + 1, task.seeing(g + 1, 0))) return;
  tile.results.set(task.d_keys(), task.d_values(), task.tile.count, cells);
  BackwardTask following;
  if (!next.find(next.state, following)) return;
  const TaskKeys keys(following);
  if (fetch_rows(keys, 0, keys.seeing(0, 0))) tile.next_keys.set(keys.keys(), keys.values(), keys.tile.count, cells);
}

template <class Math, Bias kBias, bool kKeep>
void backward_keys(const BackwardTask& whole, const NextTask<BackwardTask>& next, char* scratch) {
  const TaskKeys task(whole);
  const BackwardPlan& plan = task.plan;
  const Problem& p = task.problem;
  const KeyTile& k = task.tile;
  Arena arena(scratch);
  BackwardTile<Math> tile(plan, arena);
  const int64_t batch = task.batch, kv_head = task.kv_head;
  const int64_t padded = round_up(k.count, kPanel);
  const Rows keys = task.keys(), values = task.values();
  bool packed = false;
  std::memset(tile.d_key, 0, kKeyTile * tile.sum_stride * sizeof(float));
  std::memset(tile.d_value, 0, kKeyTile * tile.value_sum_stride * sizeof(float));

  for (int64_t g = 0; g < p.group(); ++g) {
    const int64_t head = task.head(g);
    const int64_t turn_base = ((whole.group - plan.first_group) * p.group() + g) * plan.query_tiles;
    std::memset(tile.columns, 0, kKeyTile * sizeof(float));
    for (int64_t index = task.seeing(g, 0); index < plan.query_tiles; index = task.seeing(g, index + 1)) {
      tile.q.set(task.band, index * kQueryRows, task.rows(index), Math::kStrip);
      if (!packed) {
        Pack<Math>::transposed(keys, k.count, padded, tile.pack, tile.key);
        Pack<Math>::transposed(values, k.count, padded, tile.pack, tile.value);
        Pack<Math>::stacked(keys, k.count, padded, tile.key_stacked);
        packed = true;
        if (plan.careful)
          tile.nonfinite_keys.template clear<Math>(keys, k.count, tile.key_stacked, reinterpret_cast<float*>(tile.pack));
        else if (Tiny<Simd>::any(keys, k.count) || Tiny<Simd>::any(values, k.count))
          plan.ask_for_care();
      }
      const bool seen = tile.inputs.load_mask(p, batch, head, tile.q, k);
      tile.steps.set(tile.q, k, tile.inputs, p.head_dim);
      look_ahead(tile, task, next, g, index);
      const auto rows_of = plan.careful ? backward_rows_of<Math, typename CarefulOf<Math>::Type, kBias, kKeep>
                                        : backward_rows_of<Math, Math, kBias, kKeep>;
      if (!rows_of(tile, k, batch, head, turn_base, index, seen)) return;
    }
    if (plan.d_bias_columns) {
      float* sums = plan.d_bias_columns + (batch * p.heads + head) * p.seq_k + k.first;
      std::memcpy(sums, tile.columns, k.count * sizeof(float));
    }
  }
  Finite finite;
  for (int64_t m = 0; m < k.count; ++m) {
    finite.add(tile.d_key + m * tile.sum_stride, p.head_dim);
    finite.add(tile.d_value + m * tile.value_sum_stride, p.value_dim);
    const int64_t size = size_of(p.dtype), row = k.first + m;
    store_row(p.dtype, tile.d_key + m * tile.sum_stride, plan.factor_left, p.head_dim,
              static_cast<char*>(plan.outputs.d_key) + p.key_layout.at(batch, kv_head, row) * size);
    store_row(p.dtype, tile.d_value + m * tile.value_sum_stride, p.dropout.scale, p.value_dim,
              static_cast<char*>(plan.outputs.d_value) + p.value_layout.at(batch, kv_head, row) * size);
  }
  if (!finite.all()) plan.ask_for_care();
}

// D is summed as float32 products of dO and V are: where one key has all the probability, dP - D is then exactly 0. Where
// probabilities are rounded to bfloat16, the order does not matter.
inline void backward_rows(const BackwardPlan& plan, int64_t batch_head, int64_t first, int64_t count, char* scratch) {
  const Problem& p = plan.problem;
  const int64_t row = batch_head * p.seq_q + first, lse_row = batch_head * p.lse_stride + first;
  Arena arena(scratch);
  const int64_t stride = round_up(p.value_dim, kQuad * kChain);
  float* const output = arena.take<float>(kQuad * stride);
  float* const d_output = arena.take<float>(kQuad * stride);
  std::memset(output, 0, kQuad * stride * sizeof(float));
  std::memset(d_output, 0, kQuad * stride * sizeof(float));
  float deltas[kQuad];
  const int64_t batch = batch_head / p.heads, head = batch_head % p.heads;
  const Rows outputs = output_rows(p, plan.inputs.output, batch, head, first);
  const Rows d_outputs = output_rows(p, plan.inputs.d_output, batch, head, first);
  const double to_natural = ScoreRule(p).to_natural;
  double d_sink = 0;
  if (Tiny<Simd>::any(query_rows(p, p.query, batch, head, first), count) || Tiny<Simd>::any(d_outputs, count))
    plan.ask_for_care();
  Upcoming ahead;
  ahead.set(outputs.from(kAhead), d_outputs.from(kAhead), count - kAhead, count);
  for (int64_t m = 0; m < count; ++m) {
    if (m % kQuad == 0) {
      const int64_t rows = Band::min(count - m, kQuad);
      for (int64_t r = 0; r < rows; ++r) {
        ahead.fetch();
        load_row(p.dtype, outputs.row(m + r), p.value_dim, output + r * stride);
        load_row(p.dtype, d_outputs.row(m + r), p.value_dim, d_output + r * stride);
      }
      multiply_rows(output, d_output, stride, p.value_dim, deltas);
    }
    float delta = deltas[m % kQuad];
    if (plan.inputs.d_logsumexp) delta -= plan.inputs.d_logsumexp[lse_row + m];
    const float logsumexp = plan.inputs.logsumexp[lse_row + m];
    const bool fully_masked = logsumexp == -kInfinity;
    // A row that sees nothing: its exponents are -inf and nothing it holds reaches the sums.
    // What a sink takes of a row is exp(sink - logsumexp).
    const double rest = p.biased() ? plan.rest[row + m] * kLn2 : 0.0;
    if (plan.d_sinks && !fully_masked) d_sink -= std::exp(static_cast<double>(p.sinks[head]) - logsumexp + rest) * delta;
    const double shift = fully_masked ? -kInfinity : -logsumexp / to_natural;
    plan.shift[row + m] = static_cast<float>(shift);
    // Great scores are rounded by more than this corrects.
    if (!p.biased()) plan.rest[row + m] = std::fabs(shift) < 4096 ? static_cast<float>(shift - plan.shift[row + m]) : 0.0f;
    plan.delta[row + m] = fully_masked ? 0.0f : delta * plan.score_gradient_scale;
  }
  const int64_t slices = (p.seq_q + kSliceRows - 1) / kSliceRows;
  if (plan.d_sinks) plan.d_sinks[batch_head * slices + first / kSliceRows] = d_sink;
}

}  // namespace
}  // namespace flash_attention
