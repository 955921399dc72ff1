// Products of bfloat16, and of sums of bfloat16, by tile instructions (T, see simd/scalar_tiles.h): 16 rows of 16 units by
// 16 units of 16 columns at a time, two by two of them in registers. Operands have the layouts of Bf16MathOf and of
// parts-inl.h, filled up to whole tiles.
#pragma once

#include <cstdint>
#include <cstring>

#include "backward-inl.h"
#include "gemm-inl.h"
#include "pack-inl.h"
#include "parts-inl.h"
#include "scores-inl.h"

namespace flash_attention {
namespace {

constexpr int64_t kTileSide = 16;            // rows of a tile, and its columns of 32 bits
constexpr int64_t kTileBlock = 2 * kTileSide;  // rows, and columns, of what is calculated at a time

// All tiles of a thread are whole while this lives. Other libraries that use tiles find their configuration again; what
// their registers held is lost, as it is by any call. Threads that have none have none afterwards, so that Linux saves
// nothing of them.
template <class T>
class TileSession {
 public:
  TileSession() {
    T::store_config(before_);
    typename T::Config whole{};
    whole.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      whole.rows[tile] = T::kMostRows;
      whole.row_bytes[tile] = T::kMostBytes;
    }
    T::load_config(whole);
  }
  ~TileSession() {
    if (before_.palette != 0) {
      T::load_config(before_);
    } else {
      T::release();
    }
  }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

 private:
  typename T::Config before_;
};

// What `block` of both kinds of arithmetic adds to kRowTiles by kColumnTiles tiles of c, or writes there if they are fresh:
// the products of `steps` units, a multiple of 16. Strides count units or floats, from row to row or from part to part.
struct TileOperands {
  const uint32_t* a;
  ptrdiff_t a_stride;
  const uint32_t* b;
  ptrdiff_t b_stride;
  int64_t steps;
  float* c;
  ptrdiff_t c_stride;
  ptrdiff_t a_part = 0;
  ptrdiff_t b_part = 0;
};

// What Math::block makes common use of.
template <class Block>
struct TileProducts {
  static constexpr bool kTiles = true;
  static constexpr int kStrip = kTileBlock;
  static constexpr int kWhole = kTileSide;

  // Of `rows` rows and `columns` columns, which are filled up to whole tiles.
  template <bool kFresh>
  static void multiply(TileOperands of, int64_t rows, int64_t columns) {
    for (int64_t column = 0; column < columns; column += kTileBlock)
      for (int64_t row = 0; row < rows; row += kTileBlock) {
        const TileOperands at{of.a + row * of.a_stride, of.a_stride, of.b + column, of.b_stride, of.steps,
                              of.c + row * of.c_stride + column, of.c_stride, of.a_part, of.b_part};
        const bool two_rows = rows - row > kTileSide, two_columns = columns - column > kTileSide;
        if (two_rows && two_columns) Block::template block<kFresh, 2, 2>(at);
        if (two_rows && !two_columns) Block::template block<kFresh, 2, 1>(at);
        if (!two_rows && two_columns) Block::template block<kFresh, 1, 2>(at);
        if (!two_rows && !two_columns) Block::template block<kFresh, 1, 1>(at);
      }
  }
  static void accumulate(const uint32_t* a, ptrdiff_t a_stride, const uint32_t* b, ptrdiff_t b_stride, int64_t steps,
                         float* c, ptrdiff_t c_stride, int64_t width) {
    multiply<false>({a, a_stride, b, b_stride, steps, c, c_stride, kNextPart<Block>, b_stride / Block::kParts}, kStrip,
                    width < kTileBlock ? width : kTileBlock);
  }
};

// Numbers of kCount parts. The product of second parts is the smallest by far, and only made where the sums are scores
// (kAll).
template <class S, class T, int kCount>
struct TileMathOf : PartsMathOf<S, kCount>, TileProducts<TileMathOf<S, T, kCount>> {
  using Session = TileSession<T>;
  // A row of a cell goes with an eighth of a step; or whole blocks are calculated at once.
  static constexpr bool kInSteps = kRows == 8;
  using TileProducts<TileMathOf>::kTiles;
  using TileProducts<TileMathOf>::kStrip;
  using TileProducts<TileMathOf>::kWhole;

  // Sums are in tiles 0 to 3, row by row; left operands in 4 and 5, right ones in 6 and 7.
  template <int kRowTiles, int kColumnTiles>
  static FA_INLINE void zero_sums() {
    T::template zero<0>();
    if constexpr (kColumnTiles == 2) T::template zero<1>();
    if constexpr (kRowTiles == 2) T::template zero<2>();
    if constexpr (kRowTiles == 2 && kColumnTiles == 2) T::template zero<3>();
  }
  template <int kRowTiles, int kColumnTiles>
  static FA_INLINE void store_sums(const TileOperands& of) {
    const ptrdiff_t c_bytes = of.c_stride * 4;
    float* const below = of.c + kTileSide * of.c_stride;
    T::template store<0>(of.c, c_bytes);
    if constexpr (kColumnTiles == 2) T::template store<1>(of.c + kTileSide, c_bytes);
    if constexpr (kRowTiles == 2) T::template store<2>(below, c_bytes);
    if constexpr (kRowTiles == 2 && kColumnTiles == 2) T::template store<3>(below + kTileSide, c_bytes);
  }
  // Eighth `number` of the products of 16 units from unit k on: of all parts, or without those that only scores need.
  template <int kRowTiles, int kColumnTiles>
  static FA_INLINE void eighth(int number, const TileOperands& of, int64_t k, bool all) {
    constexpr bool kTwoRows = kRowTiles == 2, kTwoColumns = kColumnTiles == 2;
    const ptrdiff_t a_bytes = of.a_stride * 4, b_bytes = of.b_stride * 4;
    const uint32_t* const a = of.a + k;
    const uint32_t* const b = of.b + k * of.b_stride;
    if constexpr (kCount == 1) {
      if (number == 0) {
        T::template load<4>(a, a_bytes);
        T::template load<6>(b, b_bytes);
        T::template dot_bf16<0, 4, 6>();
      }
      if (number == 2 && kTwoColumns) {
        T::template load<7>(b + kTileSide, b_bytes);
        T::template dot_bf16<1, 4, 7>();
      }
      if (number == 4 && kTwoRows) {
        T::template load<5>(a + kTileSide * of.a_stride, a_bytes);
        T::template dot_bf16<2, 5, 6>();
      }
      if (number == 6 && kTwoRows && kTwoColumns) T::template dot_bf16<3, 5, 7>();
      return;
    }
    // In an order that loads few operands anew.
    const int left = number < 4, right = number < 2 || number >= 6;
    if (number == 0 || number == 4) {
      T::template load<4>(a + left * of.a_part, a_bytes);
      if constexpr (kTwoRows) T::template load<5>(a + left * of.a_part + kTileSide * of.a_stride, a_bytes);
    }
    if (number < 2 && !all) return;
    if (number != 4 && number % 2 == 0) {
      T::template load<6>(b + right * of.b_part, b_bytes);
      if constexpr (kTwoColumns) T::template load<7>(b + right * of.b_part + kTileSide, b_bytes);
    }
    if (number % 2 == 0) {
      T::template dot_bf16<0, 4, 6>();
      if constexpr (kTwoColumns) T::template dot_bf16<1, 4, 7>();
    } else if constexpr (kTwoRows) {
      T::template dot_bf16<2, 5, 6>();
      if constexpr (kTwoColumns) T::template dot_bf16<3, 5, 7>();
    }
  }
  template <int kRowTiles, int kColumnTiles>
  static FA_INLINE void step(const TileOperands& of, int64_t k, bool all) {
#pragma GCC unroll 8
    for (int number = 0; number < 8; ++number) eighth<kRowTiles, kColumnTiles>(number, of, k, all);
  }
  template <bool kFresh, int kRowTiles, int kColumnTiles, bool kAll = kFresh>
  static FA_NOINLINE void block(const TileOperands& of) {
    if constexpr (kFresh) {
      zero_sums<kRowTiles, kColumnTiles>();
    } else {
      const ptrdiff_t c_bytes = of.c_stride * 4;
      float* const below = of.c + kTileSide * of.c_stride;
      T::template load<0>(of.c, c_bytes);
      if constexpr (kColumnTiles == 2) T::template load<1>(of.c + kTileSide, c_bytes);
      if constexpr (kRowTiles == 2) T::template load<2>(below, c_bytes);
      if constexpr (kRowTiles == 2 && kColumnTiles == 2) T::template load<3>(below + kTileSide, c_bytes);
    }
    for (int64_t k = 0; k < of.steps; k += kTileSide) step<kRowTiles, kColumnTiles>(of, k, kAll);
    store_sums<kRowTiles, kColumnTiles>(of);
  }
  // As multiply_adds of gemm-inl.h.
  static FA_NOINLINE void multiply_adds(int64_t operations) {
    alignas(64) const uint32_t zeros[kTileSide * kTileSide] = {};
    T::template load<4>(zeros, 64);
    T::template load<5>(zeros, 64);
    T::template load<6>(zeros, 64);
    T::template load<7>(zeros, 64);
    T::template zero<0>();
    T::template zero<1>();
    T::template zero<2>();
    T::template zero<3>();
    // As few as products of that many parts take.
    constexpr int64_t kTimes = kCount == 2 ? 3 : 1;
    constexpr int64_t kRound = 4 * 2 * (2 * kTileSide) * kTileSide * kTileSide;
    for (int64_t left = kTimes * operations; left > 0; left -= kRound) {
      T::template dot_bf16<0, 4, 6>();
      T::template dot_bf16<1, 4, 7>();
      T::template dot_bf16<2, 5, 6>();
      T::template dot_bf16<3, 5, 7>();
    }
  }
};

// The same numbers in the same order with subnormal ones kept: the first values of the pairs of 16 units are summed apart
// from the second ones.
template <class S, class T>
struct TileExactMathOf : Bf16ExactMathOf<S>, TileProducts<TileExactMathOf<S, T>> {
  static constexpr bool kInSteps = false;
  using TileProducts<TileExactMathOf>::kTiles;
  using TileProducts<TileExactMathOf>::kStrip;
  using TileProducts<TileExactMathOf>::kWhole;

  static FA_INLINE void store_pairs(uint32_t* to, ptrdiff_t, F low, F high) {
    S::u_store(to, TileExactMathOf::pairs(low, high));
  }
  template <bool kFresh, int kRowTiles, int kColumnTiles, bool kAll = kFresh>
  static FA_NOINLINE void block(const TileOperands& of) {
    for (int64_t m = 0; m < kRowTiles * kTileSide; ++m)
      for (int64_t n = 0; n < kColumnTiles * kTileSide; n += kLanes) {
        float* const c = of.c + m * of.c_stride + n;
        F sum = kFresh ? Simd::zero() : Simd::load(c);
        for (int64_t k = 0; k < of.steps; k += kTileSide) {
          F first = Simd::zero(), second = Simd::zero();
          for (int64_t j = k; j < k + kTileSide; ++j) {
            uint32_t pair;
            std::memcpy(&pair, of.a + m * of.a_stride + j, sizeof(pair));
            const typename S::U left = S::u_set1(pair), right = S::u_load(of.b + j * of.b_stride + n);
            first = Simd::fma(S::bf16_low(left), S::bf16_low(right), first);
            second = Simd::fma(S::bf16_high(left), S::bf16_high(right), second);
          }
          sum = Simd::add(sum, Simd::add(first, second));
        }
        Simd::store(c, sum);
      }
  }
};

// Parts and their products as TileMathOf has them, but of all numbers: what is not finite meets whole numbers, whose parts
// may be 0 where the number is not, or of other signs.
template <class S, class T, int kCount>
struct TileWholeMathOf : TileMathOf<S, T, kCount>, TileProducts<TileWholeMathOf<S, T, kCount>> {
  using Base = TileMathOf<S, T, kCount>;
  static constexpr bool kInSteps = false;
  using TileProducts<TileWholeMathOf>::kTiles;
  using TileProducts<TileWholeMathOf>::kStrip;
  using TileProducts<TileWholeMathOf>::kWhole;
  using TileProducts<TileWholeMathOf>::accumulate;

  static FA_INLINE void store(uint32_t* to, F (&row)[kVectors]) {
    Base::store_by(take_any_part<S>, to, row[0], row[1]);
  }
  static FA_INLINE void store_pairs(uint32_t* to, ptrdiff_t next, F low, F high) {
    Base::store_pairs_by(take_any_part<S>, to, next, low, high);
  }

  template <bool kFresh, int kRowTiles, int kColumnTiles, bool kAll = kFresh>
  static FA_NOINLINE void block(const TileOperands& of) {
    constexpr int64_t kMost = kTileBlock;
    const auto number = [&](const uint32_t* first, ptrdiff_t next, int64_t half) {
      float sum = 0.0f;
      for (int part = kCount - 1; part >= 0; --part) sum += Bf16MathOf<S>::value(first + part * next, half);
      return sum;
    };
    const auto left = [&](int64_t m, int64_t k) { return number(of.a + m * of.a_stride + k / 2, of.a_part, k % 2); };
    const auto right = [&](int64_t k, int64_t n) { return number(of.b + k / 2 * of.b_stride + n, of.b_part, k % 2); };
    bool row_is[kMost] = {}, column_is[kMost] = {}, any = false;
    for (int64_t k = 0; k < 2 * of.steps; ++k) {
      for (int64_t m = 0; m < kRowTiles * kTileSide; ++m) any |= row_is[m] |= !is_finite(left(m, k));
      for (int64_t n = 0; n < kColumnTiles * kTileSide; ++n) any |= column_is[n] |= !is_finite(right(k, n));
    }
    float sums[kMost][kMost];
    for (int64_t m = 0; any && m < kRowTiles * kTileSide; ++m)
      for (int64_t n = 0; n < kColumnTiles * kTileSide; ++n) {
        if (!row_is[m] && !column_is[n]) continue;
        sums[m][n] = kFresh ? 0.0f : of.c[m * of.c_stride + n];
        for (int64_t k = 0; k < 2 * of.steps; ++k) sums[m][n] += left(m, k) * right(k, n);
      }
    Base::template block<kFresh, kRowTiles, kColumnTiles, kAll>(of);
    for (int64_t m = 0; any && m < kRowTiles * kTileSide; ++m)
      for (int64_t n = 0; n < kColumnTiles * kTileSide; ++n)
        if (row_is[m] || column_is[n]) of.c[m * of.c_stride + n] = sums[m][n];
  }
};

template <class S, class T, int kCount>
struct CarefulOf<TileMathOf<S, T, kCount>> {
  using Type = TileWholeMathOf<S, T, kCount>;
};
template <class S, class T>
struct CarefulOf<TileMathOf<S, T, 1>> {
  using Type = TileExactMathOf<S, T>;
};

// Sums leave tiles through memory, in blocks of kTileBlock rows by a panel. The next block is calculated bit by bit between
// the rows of the one at work: vectors and tiles have units of the processor of their own.
template <class S, class T, int kCount>
struct CellProducts<TileMathOf<S, T, kCount>> {
  using Math = TileMathOf<S, T, kCount>;

  template <class A>
  void allocate(A& arena) {
    for (auto& sums : sums_) sums = arena.template take<float>(2 * kBlockSums);
  }
  void start(const CellOrder& order, const uint32_t* a, ptrdiff_t a_stride, const uint32_t* b, int64_t units) {
    order_ = order;
    of_[0] = {a, a_stride, b, units};
    pairs_ = 1;
    panel_ = next_panel_ = -1;
    steps_now_ = 0;
  }
  void start(const CellOrder& order, const uint32_t* a, ptrdiff_t a_stride, const uint32_t* b, int64_t units,
             const uint32_t* second_a, ptrdiff_t second_a_stride, const uint32_t* second_b, int64_t second_units) {
    start(order, a, a_stride, b, units);
    of_[1] = {second_a, second_a_stride, second_b, second_units};
    pairs_ = 2;
  }
  template <class Arithmetic, int kWidth, int kPair = 0>
  FA_INLINE void multiply_cell(const uint32_t*, ptrdiff_t, const uint32_t*, int64_t, int64_t strip, int64_t panel,
                               F (&acc)[kRows][kWidth]) {
    const int64_t first = strip / kTileBlock * kTileBlock;
    if (kPair == 0 && (panel != panel_ || first != first_)) enter<Arithmetic>(first, panel);
    if (kPair == 0 && Arithmetic::kInSteps) plan((strip - first) / kRows);
    const float* const sums = sums_[0] + kPair * kBlockSums + (strip - first) * kTileBlock;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
      for (int n = 0; n < kWidth; ++n) acc[m][n] = Simd::load(sums + m * kTileBlock + n * kLanes);
  }
  template <class Arithmetic>
  FA_INLINE void go_on(int m, int loop, int loops) {
    if (!Arithmetic::kInSteps || steps_now_ <= loop) return;
    if (loops == 1 && steps_now_ == 2) {
      const int64_t k = 2 * m >= kRows ? k_ + kTileSide : k_;
      Math::template eighth<2, 2>(2 * m % kRows, now_, k, all_);
      Math::template eighth<2, 2>(2 * m % kRows + 1, now_, k, all_);
    } else {
      Math::template eighth<2, 2>(m, now_, k_ + loop * kTileSide, all_);
    }
    if (m == kRows - 1 && (loops == 1 || loop + 1 == steps_now_)) finish_steps();
  }

 private:
  static constexpr int64_t kBlockSums = kTileBlock * kTileBlock;
  static constexpr int64_t kCells = kTileBlock / kRows;
  struct Operands {
    const uint32_t* a;
    ptrdiff_t a_stride;
    const uint32_t* b;
    int64_t units;
  };

  TileOperands operands(int pair) const {
    const Operands& of = of_[pair];
    return {of.a + next_ * of.a_stride,
            of.a_stride,
            of.b + kCount * next_panel_ * of.units,
            kPanel,
            of.units,
            sums_[1] + pair * kBlockSums,
            kTileBlock,
            of.units,
            of.units * kPanel};
  }
  int64_t steps_left() const {
    int64_t left = -done_;
    for (int pair = pair_; pair < pairs_; ++pair) left += of_[pair].units / kTileSide;
    return left;
  }
  // The next steps, `count` of them of one pair, are now_, from k_ on.
  FA_INLINE void begin_steps(int64_t count) {
    if (done_ == 0) {
      now_ = operands(pair_);
      all_ = pair_ == 0;
      Math::template zero_sums<2, 2>();
    }
    k_ = done_ * kTileSide;
    steps_now_ = count;
    done_ += count;
  }
  FA_INLINE void finish_steps() {
    steps_now_ = 0;
    if (done_ * kTileSide < now_.steps) return;
    Math::template store_sums<2, 2>(now_);
    done_ = 0;
    ++pair_;
  }
  FA_NOINLINE void run_steps(int64_t count) {
    for (; count > 0; --count) {
      begin_steps(1);
      Math::template step<2, 2>(now_, k_, all_);
      finish_steps();
    }
  }
  // What of the next block goes with cell number `cell` of the one at work. Of a single pair nothing goes with the last one,
  // so that its sums are in memory when they are read.
  FA_INLINE void plan(int64_t cell) {
    // A cell may ask for its products a second time.
    if (steps_now_ > 0 || next_panel_ < 0 || pair_ == pairs_) return;
    const int64_t cells = kCells - cell - (pairs_ == 1 && cell + 1 < kCells);
    int64_t count = (steps_left() + cells - 1) / cells;
    if (count > 2) {
      run_steps(count - 2);
      count = 2;
    }
    const int64_t left = of_[pair_].units / kTileSide - done_;
    begin_steps(count < left ? count : left);
  }
  // Has the sums of a block in sums_[0], and goes on with the one after it.
  template <class Arithmetic>
  FA_NOINLINE void enter(int64_t first, int64_t panel) {
    if (panel != next_panel_ || first != next_) {
      next_ = first;
      next_panel_ = panel;
      pair_ = 0;
      done_ = 0;
    }
    if constexpr (Arithmetic::kInSteps) {
      run_steps(steps_left());
    } else {
      Arithmetic::template block<true, 2, 2>(operands(0));
      if (pairs_ == 2) Arithmetic::template block<true, 2, 2, false>(operands(1));
    }
    float* const ready = sums_[1];
    sums_[1] = sums_[0];
    sums_[0] = ready;
    first_ = first;
    panel_ = panel;
    pair_ = 0;
    done_ = 0;
    if (!order_.next(kTileBlock, next_, next_panel_)) next_panel_ = -1;
  }

  CellOrder order_{};
  Operands of_[2];
  int pairs_ = 0;
  float* sums_[2];           // of the block at work, and of the next one: [pair][kTileBlock][kTileBlock]
  int64_t first_ = 0;        // row and column of the block at work
  int64_t panel_ = -1;
  int64_t next_ = 0;         // of the next one
  int64_t next_panel_ = -1;  // -1: there is none
  int pair_ = 0;             // of the next one, at work
  int64_t done_ = 0;         // steps of it
  TileOperands now_{};
  int64_t k_ = 0;            // unit of the first step now
  int64_t steps_now_ = 0;
  bool all_ = true;
};

template <class S, class T>
struct Pack<TileMathOf<S, T, 1>> : PackPairs<S, kTileSide> {};
template <class S, class T>
struct Pack<TileMathOf<S, T, 2>> : PackParts<S, 2, kTileSide> {};

// dst[j][i] = src[i][j] for one side of a tile.
inline void transpose_tile(const uint32_t* src, ptrdiff_t src_stride, uint32_t* dst, ptrdiff_t dst_stride) {
  for (int64_t i = 0; i < kTileSide; i += kLanes)
    for (int64_t j = 0; j < kTileSide; j += kLanes)
      Simd::transpose(src + i * src_stride + j, src_stride, dst + j * dst_stride + i, dst_stride);
}

// Left operands lie in rows here, also those that are summed over query rows: [key][units of two query rows].
template <class S, class T, int kCount>
struct BackwardTile<TileMathOf<S, T, kCount>> : PairedBackwardTile<TileMathOf<S, T, kCount>> {
  using Math = TileMathOf<S, T, kCount>;
  static constexpr int64_t kByRowStride = tile_stride(kCount * kQueryRows / 2);
  static constexpr int64_t kNextOfStrip = kTileSide * kPanel;  // from one part to the next
  static constexpr Left kByRow = Left::kRowMajor;
  uint32_t* probability;           // [key][kByRowStride]: two rows in a unit
  uint32_t* score_gradient;        // likewise
  uint32_t* strip_probability;     // [part][row of a strip / 2][kPanel]: of the strip and the panel at work
  uint32_t* strip_score_gradient;  // likewise

  BackwardTile(const BackwardPlan& all, Arena& arena) : PairedBackwardTile<Math>(all, arena) {
    probability = arena.take<uint32_t>(kKeyTile * kByRowStride);
    score_gradient = arena.take<uint32_t>(kKeyTile * kByRowStride);
    strip_probability = arena.take<uint32_t>(kCount * kNextOfStrip);
    strip_score_gradient = arena.take<uint32_t>(kCount * kNextOfStrip);
  }
  static int64_t at(int64_t row, int64_t column) { return column * kByRowStride + row / 2; }

  void clear(int64_t strip, int64_t panel) {
    this->clear_gradient_rows(strip, panel);
    for (int part = 0; part < kCount; ++part) {
      const int64_t from = part * kNextOfStrip + strip % kTileBlock / 2 * kPanel;
      std::memset(strip_probability + from, 0, kRows / 2 * kPanel * sizeof(uint32_t));
      std::memset(strip_score_gradient + from, 0, kRows / 2 * kPanel * sizeof(uint32_t));
    }
  }
  template <class Arithmetic, bool kKeep>
  FA_INLINE void store_cell(int64_t strip, int64_t panel, F (&p)[kRows][kVectors], F (&ds)[kRows][kVectors]) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m += 2) {
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        const int64_t at = (strip % kTileBlock + m) / 2 * kPanel + n * kLanes;
        Arithmetic::store_pairs(strip_probability + at, kNextOfStrip, p[m][n], p[m + 1][n]);
        Arithmetic::store_pairs(strip_score_gradient + at, kNextOfStrip, ds[m][n], ds[m + 1][n]);
      }
      this->template store_gradient_rows<Arithmetic>(strip + m, panel, ds[m], ds[m + 1]);
    }
  }
  void finish_strip(int64_t strip, int64_t panel) {
    for (int part = 0; part < kCount; ++part)
      for (int64_t n = 0; n < kPanel; n += kTileSide) {
        const int64_t from = part * kNextOfStrip + n, to = (panel + n) * kByRowStride + part * kNextPart<Math> + strip / 2;
        transpose_tile(strip_probability + from, kPanel, probability + to, kByRowStride);
        transpose_tile(strip_score_gradient + from, kPanel, score_gradient + to, kByRowStride);
      }
  }
};

}  // namespace
}  // namespace flash_attention
