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
  using TileProducts<TileMathOf>::kTiles;
  using TileProducts<TileMathOf>::kStrip;
  using TileProducts<TileMathOf>::kWhole;

  // Sums in tiles 0 to 3, row by row; left operands in 4 and 5, right ones in 6 and 7.
  template <bool kFresh, int kRowTiles, int kColumnTiles, bool kAll = kFresh>
  static FA_NOINLINE void block(const TileOperands& of) {
    constexpr bool kTwoRows = kRowTiles == 2, kTwoColumns = kColumnTiles == 2;
    const ptrdiff_t c_bytes = of.c_stride * 4, a_bytes = of.a_stride * 4, b_bytes = of.b_stride * 4;
    float* const below = of.c + kTileSide * of.c_stride;
    if constexpr (kFresh) {
      T::template zero<0>();
      if constexpr (kTwoColumns) T::template zero<1>();
      if constexpr (kTwoRows) T::template zero<2>();
      if constexpr (kTwoRows && kTwoColumns) T::template zero<3>();
    } else {
      T::template load<0>(of.c, c_bytes);
      if constexpr (kTwoColumns) T::template load<1>(of.c + kTileSide, c_bytes);
      if constexpr (kTwoRows) T::template load<2>(below, c_bytes);
      if constexpr (kTwoRows && kTwoColumns) T::template load<3>(below + kTileSide, c_bytes);
    }
    for (int64_t k = 0; k < of.steps; k += kTileSide) {
      const auto left = [&](int part) {
        const uint32_t* const a = of.a + k + part * of.a_part;
        T::template load<4>(a, a_bytes);
        if constexpr (kTwoRows) T::template load<5>(a + kTileSide * of.a_stride, a_bytes);
      };
      const auto right = [&](int part) {
        const uint32_t* const b = of.b + k * of.b_stride + part * of.b_part;
        T::template load<6>(b, b_bytes);
        if constexpr (kTwoColumns) T::template load<7>(b + kTileSide, b_bytes);
      };
      const auto multiply = [&] {
        T::template dot_bf16<0, 4, 6>();
        if constexpr (kTwoColumns) T::template dot_bf16<1, 4, 7>();
        if constexpr (kTwoRows) T::template dot_bf16<2, 5, 6>();
        if constexpr (kTwoRows && kTwoColumns) T::template dot_bf16<3, 5, 7>();
      };
      // In an order that loads few operands anew.
      if constexpr (kCount == 2) {
        left(1);
        if constexpr (kAll) right(1), multiply();
        right(0), multiply();
        left(0), multiply();
        right(1), multiply();
      } else {
        T::template load<4>(of.a + k, a_bytes);
        T::template load<6>(of.b + k * of.b_stride, b_bytes);
        T::template dot_bf16<0, 4, 6>();
        if constexpr (kTwoColumns) {
          T::template load<7>(of.b + k * of.b_stride + kTileSide, b_bytes);
          T::template dot_bf16<1, 4, 7>();
        }
        if constexpr (kTwoRows) {
          T::template load<5>(of.a + k + kTileSide * of.a_stride, a_bytes);
          T::template dot_bf16<2, 5, 6>();
          if constexpr (kTwoColumns) T::template dot_bf16<3, 5, 7>();
        }
      }
    }
    T::template store<0>(of.c, c_bytes);
    if constexpr (kTwoColumns) T::template store<1>(of.c + kTileSide, c_bytes);
    if constexpr (kTwoRows) T::template store<2>(below, c_bytes);
    if constexpr (kTwoRows && kTwoColumns) T::template store<3>(below + kTileSide, c_bytes);
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

// Sums leave tiles through memory: a block of kTileBlock rows by a panel is calculated when its first cell is asked for.
template <class S, class T, int kCount>
struct CellProducts<TileMathOf<S, T, kCount>> {
  template <class A>
  void allocate(A& arena, bool all) {
    all_ = all;
    sums_ = arena.template take<float>(kTileBlock * kTileBlock);
  }
  void start() { panel_ = -1; }
  template <class Arithmetic, int kWidth>
  FA_INLINE void multiply_cell(const uint32_t* a, ptrdiff_t a_stride, const uint32_t* b, int64_t units, int64_t strip,
                               int64_t panel, F (&acc)[kRows][kWidth]) {
    const int64_t first = strip / kTileBlock * kTileBlock;
    if (panel != panel_ || first != first_) {
      panel_ = panel;
      first_ = first;
      const TileOperands of{a + first * a_stride, a_stride,   b + kCount * panel * units, kPanel, units, sums_,
                            kTileBlock,           units,      units * kPanel};
      all_ ? Arithmetic::template block<true, 2, 2>(of) : Arithmetic::template block<true, 2, 2, false>(of);
    }
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
      for (int n = 0; n < kWidth; ++n) acc[m][n] = Simd::load(sums_ + (strip - first + m) * kTileBlock + n * kLanes);
  }

 private:
  float* sums_ = nullptr;  // [kTileBlock][kTileBlock]
  bool all_ = true;
  int64_t first_ = 0;      // row and column of the block
  int64_t panel_ = -1;
};

template <class S, class T>
struct Pack<TileMathOf<S, T, 1>> : PackPairs<S, kTileSide> {};
template <class S, class T>
struct Pack<TileMathOf<S, T, 2>> : PackParts<S, 2, DType::kFloat16, kTileSide> {};

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
