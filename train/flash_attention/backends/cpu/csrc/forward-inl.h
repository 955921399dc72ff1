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

// The rows of a task, and which keys they see.
struct TaskRows {
  const Problem& problem;
  int64_t batch, head, kv_head;
  int64_t first, count;
  Band band;  // of the batch item
  int64_t first_tile, tiles_end;  // of the keys

  explicit TaskRows(const ForwardTask& task)
      : problem(task.plan->problem),
        batch(task.batch_head / problem.heads),
        head(task.batch_head % problem.heads),
        kv_head(head / problem.group()),
        first(task.tile * task.plan->rows),
        count(Band::min(problem.seq_q - first, task.plan->rows)),
        band(problem.band_of(batch)) {
    const int64_t lo = band.lo(first), hi = band.hi(first + count - 1);
    first_tile = lo / kKeyTile;
    tiles_end = lo < hi ? (hi + kKeyTile - 1) / kKeyTile : first_tile;
  }
  // Columns of a key tile that some row sees, from a whole panel on: the first, and how many.
  int64_t column(const KeyTile& k) const { return k.column(band.lo(first)) / kPanel * kPanel; }
  int64_t columns(const KeyTile& k) const { return k.column(band.hi(first + count - 1)) - column(k); }
  Rows keys(const KeyTile& k) const { return key_rows(problem, problem.key, batch, kv_head, k.first + column(k)); }
  Rows values(const KeyTile& k) const { return value_rows(problem, problem.value, batch, kv_head, k.first + column(k)); }
  Rows queries(int64_t row) const { return query_rows(problem, problem.query, batch, head, row); }
  // Whether the block mask leaves keys of the tile `index` to rows from `from` on.
  bool visits(int64_t from, int64_t index) const {
    const int64_t key = index * kKeyTile;
    return from < first + count && problem.blocks.sees_some(batch, head, from, first + count, key,
                                                            Band::min(problem.seq_k, key + kKeyTile));
  }
  // The first key tile from `index` on that is visited.
  int64_t next_tile(int64_t index) const {
    while (index < tiles_end && !visits(first, index)) ++index;
    return index;
  }
};

// A key tile as right operands of the products. What tasks share lies in pieces of ForwardPlan::packed_bytes.
template <class Math>
struct PackedKeys {
  using Unit = typename Math::Unit;
  Unit* key;      // transposed
  Unit* value;    // stacked

  PackedKeys(const Problem& p, Arena& arena)
      : key(arena.take<Unit>(Math::kParts * kKeyTile * Pack<Math>::units(p.head_dim))),
        value(arena.take<Unit>(kKeyTile / Math::kPerUnit * Pack<Math>::stacked_stride(p.value_dim))) {}

  // From column `start` on, the first of a panel. False when it holds tiny numbers.
  bool fill(const Rows& keys, const Rows& values, int64_t start, int64_t count, Unit* scratch) const {
    Pack<Math>::transposed(keys, count, round_up(count, kPanel), scratch, key_from(start, keys.columns));
    Pack<Math>::stacked(values, count, round_up(count, kPanel), value_from(start, values.columns));
    return !Tiny<Simd>::any(keys, count) && !Tiny<Simd>::any(values, count);
  }
  Unit* key_from(int64_t column, int64_t width) const { return key + Math::kParts * column * Pack<Math>::units(width); }
  Unit* value_from(int64_t column, int64_t width) const {
    return value + column / Math::kPerUnit * Pack<Math>::stacked_stride(width);
  }
};

// What tasks share of a key tile.
template <class Math>
struct SharedKeys {
  int32_t* packing;
  PackedKeys<Math> keys;

  SharedKeys(const ForwardPlan& plan, const TaskRows& rows, int64_t index)
      : SharedKeys(plan, (rows.batch * rows.problem.kv_heads + rows.kv_head - plan.first_group) *
                                 ((rows.problem.seq_k + kKeyTile - 1) / kKeyTile) +
                             index) {}
  PackState state() const { return static_cast<PackState>(__atomic_load_n(packing, __ATOMIC_ACQUIRE)); }
  void set(PackState state) const { __atomic_store_n(packing, state, __ATOMIC_RELEASE); }
  // True for the one that has to pack it.
  bool claim() const {
    int32_t expected = kUnpacked;
    return __atomic_compare_exchange_n(packing, &expected, kBeingPacked, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }

 private:
  SharedKeys(const ForwardPlan& plan, int64_t place) : packing(plan.packing + place), keys(at(plan, place)) {}
  static PackedKeys<Math> at(const ForwardPlan& plan, int64_t place) {
    Arena arena(plan.packed + place * plan.packed_bytes);
    return PackedKeys<Math>(plan.problem, arena);
  }
};

// A task at work. It goes over its rows in blocks; its key tiles come one after the other, each packed once for all blocks.
template <class Math>
struct ForwardTile {
  using Unit = typename Math::Unit;
  static constexpr int64_t kProbabilityStride = tile_stride(Math::kParts * kKeyTile / Math::kPerUnit);

  const Problem& problem;
  const ScoreRule rule;
  const ForwardPlan& plan;
  const TaskRows rows;
  const ForwardOutputs& outputs;
  Unit* all_query;     // rows
  float* all_output;   // [row][output_stride], not normalised
  float* all_shift;    // [row]: minus the running maximum
  float* all_sums;     // [row][kLanes]: partial sums of the probabilities
  QueryTile blocks[(kForwardRows + kQueryRows - 1) / kQueryRows];
  // The block of rows at work, at most kQueryRows.
  const QueryTile* q;
  PairInputs inputs;
  StripSteps<Math> steps;
  Unit* query;
  float* output;
  float* shift;
  float* sums;
  Unit* probability;   // [row][kProbabilityStride], not normalised
  const PackedKeys<Math> own;
  PackedKeys<Math> keys;  // of the key tile at work
  bool packed;            // whether they are
  Unit* pack;          // scratch of packing
  CellProducts<Math> products;
  UpcomingRows next_keys, next_values, next_queries, results;
  NextTask<ForwardTask> next;  // of this thread
  NonFinite nonfinite;      // of the values
  int64_t nonfinite_first;  // column of its row 0
  bool careful = false;
  int64_t units, query_stride, value_stride, output_stride;

  ForwardTile(const ForwardTask& task, const NextTask<ForwardTask>& next_task, Arena& arena)
      : problem(task.plan->problem),
        rule(problem),
        plan(*task.plan),
        rows(task),
        outputs(plan.outputs),
        own(problem, arena),
        keys(own),
        next(next_task) {
    const Problem& p = problem;
    units = Pack<Math>::units(p.head_dim);
    query_stride = Pack<Math>::row_stride(p.head_dim);
    value_stride = Pack<Math>::stacked_stride(p.value_dim);
    output_stride = tile_stride(p.value_dim);
    const int64_t all = round_up(task.plan->rows, Math::kStrip), most = Band::min(all, kQueryRows);
    all_query = arena.take<Unit>(all * query_stride);
    all_output = arena.take<float>(all * output_stride);
    all_shift = arena.take<float>(all);
    all_sums = arena.take<float>(all * kLanes);
    inputs.allocate(arena, p, most);
    probability = arena.take<Unit>(most * kProbabilityStride);
    pack = arena.take<Unit>(kLanes * (query_stride > value_stride ? query_stride : value_stride));
    products.allocate(arena);
  }

  void set_blocks() {
    for (int64_t block = 0; block < blocks_end(); ++block) {
      const int64_t from = block * kQueryRows;
      blocks[block].set(rows.band, rows.first + from, Band::min(rows.count - from, kQueryRows), Math::kStrip);
    }
  }
  int64_t blocks_end() const { return (rows.count + kQueryRows - 1) / kQueryRows; }
  // The last key tile of the task that a block has to do with.
  int64_t last_tile(int64_t block) const {
    const int64_t last = (blocks[block].union_hi() + kKeyTile - 1) / kKeyTile - 1;
    return Band::max(rows.first_tile, last);
  }

  void select(int64_t block) {
    const int64_t from = block * kQueryRows;
    q = &blocks[block];
    query = all_query + from * query_stride;
    output = all_output + from * output_stride;
    shift = all_shift + from;
    sums = all_sums + from * kLanes;
  }
  FA_INLINE void fetch() {
    next_keys.fetch();
    next_values.fetch();
    next_queries.fetch();
    results.fetch();
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
    if (kBias == Bias::kPerScore || kBias == Bias::kCapped) bias = t.inputs.bias + row * t.inputs.bias_stride + column;
    if (kBias == Bias::kAlibi || kBias == Bias::kCapped) distance = static_cast<float>(k.first + column - t.inputs.position - row);
  }

  template <int kCount>
  FA_INLINE void products(F (&acc)[kRows][kCount]) const {
    tile.products.template multiply_cell<Arithmetic, kCount>(tile.query, tile.query_stride, tile.keys.key, tile.units, strip,
                                                             panel, acc);
  }
  FA_INLINE F score_of(F product, int m, int n) const {
    return score<kBias>(squashed<kBias>(product, tile.rule), tile.rule, tile.inputs, bias, distance, m, n);
  }

  // Stores the probabilities of a cell from its exponents, those of vectors behind kCount as zeros.
  template <int kCount>
  FA_INLINE void finish(const F (&exponents)[kRows][kCount]) const {
    // Local copies: the compiler has to assume that a store changes what `tile` holds.
    float* const sums = tile.sums + strip * kLanes;
    typename Math::Unit* const probability = tile.probabilities(strip, panel);
    const uint32_t* const keep = kKeep ? tile.inputs.keep + strip * kWords + panel / 32 : nullptr;
    const int keep_from = static_cast<int>(panel % 32);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      tile.products.template go_on<Arithmetic>(m, 0, 1);
      F sum = Simd::load(sums + m * kLanes);
      F row[kVectors];
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        row[n] = n < kCount ? exp2<Math::kExpDegree>(exponents[m][n < kCount ? n : 0]) : Simd::zero();
        if (n < kCount) sum = Simd::add(sum, row[n]);
        if (kKeep) row[n] = Simd::zero_unless(keep[m * kWords] >> (keep_from + n * kLanes), row[n]);
      }
      Simd::store(sums + m * kLanes, sum);
      Arithmetic::store(probability + m * Tile::kProbabilityStride, row);
    }
  }

  // The usual case. False when a score exceeds the running maximum by too much; nothing is stored then.
  template <bool kBits, int kCount>
  FA_INLINE bool run_below(const uint32_t* bits) const {
    F acc[kRows][kCount];
    products(acc);
    F top = Simd::zero();
    const float* const shift = tile.shift + strip;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
      for (int n = 0; n < kCount; ++n) {
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
    const bool first = k.index == tile.rows.first_tile && panel <= k.column(tile.q->union_lo());  // nothing is summed yet
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
        if (!first) lower(row, exp2<6>(Simd::set1(-excess)));
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
    if (unset() || !run_below<false, kVectors>(nullptr)) run_raising(nullptr);
  }
  FA_NOINLINE void run_partial(const uint32_t* bits) const {
    if (unset() || !run_below<true, kVectors>(bits)) run_raising(bits);
  }
  // All that is visible lies in the first vector.
  FA_NOINLINE void run_narrow(const uint32_t* bits) const {
    if (unset() || !run_below<true, 1>(bits)) run_raising(bits);
  }
  // Rows tend to see their first key together. A careful pass looks at each row by itself: a NaN could hide a rise of
  // another one.
  bool unset() const { return tile.shift[strip] == FLT_MAX || tile.careful; }
  void clear() const {
    for (int m = 0; m < kRows; ++m) clear_panel<Math>(tile.probabilities(strip + m, panel));
  }
};

// Adds the keys of `k` to the sums of the rows at work.
template <class Math, class Arithmetic, Bias kBias, bool kKeep>
void forward_block(ForwardTile<Math>& tile, const KeyTile& k) {
  const int64_t last = k.column(tile.q->union_hi());
  tile.products.start(CellOrder{tile.q, &k, &tile.inputs, last}, tile.query, tile.query_stride, tile.keys.key, tile.units);
  for (int64_t panel = k.column(tile.q->union_lo()) / kPanel * kPanel; panel < last; panel += kPanel) {
    // Cells that the block mask hides are cleared where strips reach into them.
    constexpr bool kSkip = fills_words(Math::kStrip);
    const uint32_t word = 1u << (panel / 32);
    const int64_t end = kSkip ? tile.inputs.rows_end(tile.q->padded, word) : tile.q->padded;
    for (int64_t strip = kSkip ? tile.inputs.first_row(word) : 0; strip < end; strip += kRows) {
      const ForwardCell<Math, Arithmetic, kBias, kKeep> cell(tile, k, strip, panel);
      if (!kSkip && !tile.inputs.may_see_strip(strip, panel)) {
        cell.clear();
        continue;
      }
      uint32_t bits[kRows];
      const Visibility visibility = visibility_of(*tile.q, k, tile.inputs, strip, panel, bits);
      if (visibility != Visibility::kHidden) tile.fetch();
      switch (visibility) {
        case Visibility::kFull: cell.run_full(); break;
        case Visibility::kPartial:
          k.first + panel + kLanes < tile.q->hi[strip + kRows - 1] ? cell.run_partial(bits) : cell.run_narrow(bits);
          break;
        case Visibility::kHidden: cell.clear(); break;
      }
    }
  }
  const int64_t width = tile.problem.value_dim;
  for (int64_t d = 0; d < width; d += kPanel) {
    for (int64_t strip = 0; strip < tile.q->padded; strip += Math::kStrip) {
      const int64_t from = tile.steps.from[strip / Math::kStrip], steps = tile.steps.count[strip / Math::kStrip];
      if (steps == 0) continue;
      tile.fetch();
      accumulate<Arithmetic, Left::kRowMajor>(tile.probability + strip * tile.kProbabilityStride + from,
                                              tile.kProbabilityStride, tile.keys.value + from * tile.value_stride + d,
                                              tile.value_stride, steps, tile.output + strip * tile.output_stride + d,
                                              tile.output_stride, width - d);
    }
  }
  if (!tile.careful) return;
  tile.nonfinite.each([&](int64_t index, const auto& add) {
    const int64_t column = index + tile.nonfinite_first;
    for (int64_t m = 0; m < tile.q->count; ++m)
      if (sees(*tile.q, k, tile.inputs, m, column))
        add(tile.probability_at(m, column), tile.output + m * tile.output_stride);
  });
}

// Packs a key tile, or finds it packed. False when it holds tiny numbers, and this is not a careful pass, which changes what
// it has packed itself.
template <class Math>
bool pack_keys(ForwardTile<Math>& tile, const KeyTile& k) {
  const TaskRows& rows = tile.rows;
  tile.packed = true;
  if (tile.plan.packed && !tile.careful) {
    const SharedKeys<Math> shared(tile.plan, rows, k.index);
    PackState state = shared.state();
    if (state == kUnpacked && shared.claim()) {
      const Problem& p = rows.problem;
      const bool ordinary =
          shared.keys.fill(key_rows(p, p.key, rows.batch, rows.kv_head, k.first),
                           value_rows(p, p.value, rows.batch, rows.kv_head, k.first), 0, k.count, tile.pack);
      shared.set(state = ordinary ? kPacked : kPackedTiny);
    }
    tile.keys = shared.keys;
    if (state == kPacked || state == kPackedTiny) return state == kPacked;
    // Another task is at it.
  }
  const int64_t start = rows.column(k), seen = rows.columns(k);
  tile.keys = tile.own;
  const bool ordinary = tile.keys.fill(rows.keys(k), rows.values(k), start, seen, tile.pack);
  if (!tile.careful) return ordinary;
  tile.nonfinite_first = start;
  tile.nonfinite.template clear<Math>(rows.values(k), seen, tile.keys.value_from(start, rows.problem.value_dim),
                                      reinterpret_cast<float*>(tile.pack));
  return true;
}

// Has fetched what the rows of a task visit of a key tile that is packed.
template <class Math>
void fetch_packed(ForwardTile<Math>& tile, const TaskRows& rows, const KeyTile& k, const PackedKeys<Math>& keys, int64_t cells) {
  const auto bytes = [](const auto* from, const auto* to) {
    const int64_t count = reinterpret_cast<const char*>(to) - reinterpret_cast<const char*>(from);
    return Rows{DType::kByte, reinterpret_cast<const char*>(from), count, count};
  };
  int64_t first = k.first, end = k.first + k.count;
  rows.problem.blocks.narrow_keys(rows.batch, rows.head, rows.first, rows.first + rows.count, first, end);
  const int64_t from = k.column(first) / kPanel * kPanel, to = round_up(k.column(end), kPanel);
  const int64_t width = rows.problem.head_dim, value_width = rows.problem.value_dim;
  tile.next_keys.set(bytes(keys.key_from(from, width), keys.key_from(to, width)), 1, cells);
  tile.next_values.set(bytes(keys.value_from(from, value_width), keys.value_from(to, value_width)), 1, cells);
}

// Has fetched, while the block at work is busy with key tile `index`, what is packed or written next.
template <class Math>
void look_ahead(ForwardTile<Math>& tile, const KeyTile& k, int64_t block, bool first) {
  const int64_t index = k.index;
  int64_t cells = tile.steps.cells;
  const auto fetch_keys = [&](const TaskRows& rows, int64_t key_tile) {
    const KeyTile next(key_tile, rows.problem.seq_k);
    if (tile.plan.packed) {
      const SharedKeys<Math> shared(tile.plan, rows, key_tile);
      if (shared.state() != kUnpacked) return fetch_packed(tile, rows, next, shared.keys, cells);
    }
    tile.next_keys.set(rows.keys(next), rows.columns(next), cells);
    tile.next_values.set(rows.values(next), rows.columns(next), cells);
  };
  const TaskRows& rows = tile.rows;
  if (index == tile.last_tile(block) && tile.outputs.output)
    tile.results.set(output_rows(tile.problem, tile.outputs.output, rows.batch, rows.head, tile.q->first),
                     tile.q->count, cells);
  if (block + 1 < tile.blocks_end()) {
    const QueryTile& next = tile.blocks[block + 1];
    if (index == rows.first_tile) tile.next_queries.set(rows.queries(next.first), next.count, cells);
    if (!tile.problem.blocks.data) return;
  }
  if (tile.problem.blocks.data) {
    // Blocks of rows that see little of a key tile fetch the next one together.
    if (!first) return;
    const auto visible = [&](int64_t count) {
      return tile.problem.blocks.count(rows.batch, rows.head, tile.q->first, tile.q->first + count, k.first, k.first + k.count);
    };
    cells = cells * visible(rows.first + rows.count - tile.q->first) / visible(tile.q->count);
  }
  const int64_t next_tile = rows.next_tile(index + 1);
  if (next_tile < rows.tiles_end) return fetch_keys(rows, next_tile);
  ForwardTask following;
  if (!tile.next.find(tile.next.state, following)) return;
  const TaskRows next(following);
  tile.next_queries.set(next.queries(next.first), Band::min(next.count, kQueryRows), cells);
  const int64_t start = next.next_tile(next.first_tile);
  if (start < next.tiles_end) fetch_keys(next, start);
}

// Adds key tile `index` to the sums of a block of rows. False when the task has to be done again with care.
template <class Math, Bias kBias, bool kKeep>
bool add_keys(ForwardTile<Math>& tile, int64_t block, int64_t index) {
  const Problem& p = tile.problem;
  const KeyTile k(index, p.seq_k);
  const int64_t lo = tile.q->union_lo(), hi = tile.q->union_hi();
  if (lo >= hi || lo >= k.first + k.count || hi <= k.first) return true;
  if (!tile.inputs.load_mask(p, tile.rows.batch, tile.rows.head, *tile.q, k)) return true;
  tile.inputs.load_rest(p, tile.rows.batch, tile.rows.head, *tile.q, k);
  const bool first = !tile.packed;
  if (first && !pack_keys(tile, k)) return false;
  tile.steps.set(*tile.q, k, tile.inputs, p.value_dim);
  look_ahead(tile, k, block, first);
  if (tile.careful) {
    forward_block<Math, typename CarefulOf<Math>::Type, kBias, kKeep>(tile, k);
  } else {
    forward_block<Math, Math, kBias, kKeep>(tile, k);
  }
  return true;
}

// Prepares the selected block. False when it holds tiny numbers, and this is not a careful pass.
template <class Math>
bool start_rows(ForwardTile<Math>& tile) {
  const QueryTile& q = *tile.q;
  const Rows queries = tile.rows.queries(q.first);
  if (!tile.careful && Tiny<Simd>::any(queries, q.count)) return false;
  Pack<Math>::rows(queries, q.count, q.padded, tile.query);
  std::memset(tile.output, 0, q.padded * tile.output_stride * sizeof(float));
  std::memset(tile.sums, 0, q.padded * kLanes * sizeof(float));
  // Rows that do not exist start at a maximum of 0, which their scores of 0 never exceed.
  for (int64_t m = 0; m < q.padded; ++m) tile.shift[m] = m < q.count ? FLT_MAX : 0.0f;
  return true;
}

// log(exp(a) + exp(b)); NaN stays NaN.
inline double log_add(double a, double b) {
  if (a == -kInfinity || b == kInfinity) return b;
  if (b == -kInfinity || a == kInfinity) return a;
  return (a > b ? a : b) + std::log1p(std::exp(-std::fabs(a - b)));
}

// Writes the results of the selected block. False when its sums are not finite, and this is not a careful pass.
template <class Math>
bool finish_rows(const ForwardTile<Math>& tile) {
  const Problem& p = tile.problem;
  const QueryTile& q = *tile.q;
  Finite finite;
  char* output = static_cast<char*>(tile.outputs.output);
  const int64_t first = (tile.rows.batch * p.heads + tile.rows.head) * p.lse_stride + q.first;
  for (int64_t m = 0; m < q.count; ++m) {
    finite.add(tile.output + m * tile.output_stride, p.value_dim);
    const float total = Simd::sum(Simd::load(tile.sums + m * kLanes));
    const double natural = -tile.shift[m] * tile.rule.to_natural, log_total = std::log(static_cast<double>(total));
    const double own = total == 0.0f ? -kInfinity : natural + log_total;
    double sum = own;
    float factor = total == 0.0f ? 0.0f : p.dropout.scale / total;
    if (p.sinks) {
      const double joined = log_add(sum, p.sinks[tile.rows.head]);
      if (total != 0.0f) factor *= static_cast<float>(std::exp(sum - joined));
      sum = joined;
    }
    const float rounded = tile.outputs.logsumexp[first + m] = static_cast<float>(sum);
    // In this order: beside a great maximum not even a double holds the other two.
    if (tile.outputs.rest) tile.outputs.rest[first + m] = static_cast<float>((natural - rounded) + log_total + (sum - own));
    if (output == nullptr) continue;
    store_row(p.dtype, tile.output + m * tile.output_stride, factor, p.value_dim,
              output + p.output_layout.at(tile.rows.batch, tile.rows.head, q.first + m) * size_of(p.dtype));
  }
  return tile.careful || finite.all();
}

// The rows of a task. False when it has to be done again with care: tiny or non-finite numbers are about.
template <class Math, Bias kBias, bool kKeep>
bool try_rows(ForwardTile<Math>& tile) {
  int64_t index = tile.rows.first_tile;
  do {
    tile.packed = false;
    for (int64_t block = 0; block < tile.blocks_end(); ++block) {
      tile.select(block);
      if (index == tile.rows.first_tile && !start_rows(tile)) return false;
      if (!add_keys<Math, kBias, kKeep>(tile, block, index)) return false;
      if (index == tile.last_tile(block) && !finish_rows(tile)) return false;
    }
  } while (++index < tile.rows.tiles_end);
  return true;
}

template <class Math, Bias kBias, bool kKeep>
void forward_rows(const ForwardTask& task, const NextTask<ForwardTask>& next, char* scratch) {
  Arena arena(scratch);
  ForwardTile<Math> tile(task, next, arena);
  tile.set_blocks();
  if (try_rows<Math, kBias, kKeep>(tile)) return;
  tile.careful = true;
  try_rows<Math, kBias, kKeep>(tile);
}

}  // namespace
}  // namespace flash_attention
