// Register-blocked matrix products on tiles: kRows rows by up to kVectors vectors of accumulators, the left operand
// broadcast, the right one loaded. Measured beside OpenBLAS on tiles of 128: 115 against 91 GFLOPS of 117 per core.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.h"

namespace flash_attention {
namespace {

#define FA_NOINLINE __attribute__((noinline))

using F = Simd::F;
constexpr int kLanes = Simd::kLanes;
constexpr int kRows = Simd::kRows;
constexpr int kVectors = Simd::kVectors;
constexpr int kPanel = kLanes * kVectors;  // columns of a full micro-kernel

// What a thread needs while it multiplies: nothing.
struct NoSession {};

// What a 32-bit unit of an operand is, and how two units are multiplied into a float32 accumulator. `accumulate` takes
// kStrip rows of the left operand, and sums over whole multiples of kWhole units. A number is a sum of kParts, each in a
// unit of its own.
struct Float32Math {
  using Unit = float;
  using Session = NoSession;
  static constexpr int kParts = 1;
  static constexpr int kPerUnit = 1;
  static constexpr int kExpDegree = 6;
  static constexpr bool kTiles = false;
  static constexpr int kStrip = kRows;
  static constexpr int kWhole = 1;
  using Right = F;
  static FA_INLINE Right load(const Unit* p) { return Simd::load(p); }
  static FA_INLINE F multiply_add(Unit a, Right b, F c) { return Simd::fma(Simd::set1(a), b, c); }
  // kPanel values along a row, to units.
  static FA_INLINE void store(Unit* to, F (&row)[kVectors]) {
    for (int n = 0; n < kVectors; ++n) Simd::store(to + n * kLanes, row[n]);
  }
  // Value `index` along a row, which store() wrote.
  static float value(const Unit* row, int64_t index) { return row[index]; }
  // Multiplies `count` values along a row, which store() wrote.
  static void scale(Unit* row, int64_t count, F factor) {
    for (int64_t c = 0; c < count; c += kLanes) Simd::store(row + c, Simd::mul(Simd::load(row + c), factor));
  }
};

// Two bfloat16 along the summed axis: exact products, float32 sums.
template <class S>
struct Bf16MathOf {
  using Unit = uint32_t;
  using Session = NoSession;
  static constexpr int kParts = 1;
  static constexpr int kPerUnit = 2;
  static constexpr int kExpDegree = 4;
  static constexpr bool kTiles = false;
  static constexpr int kStrip = kRows;
  static constexpr int kWhole = 1;
  using Right = typename S::U;
  static FA_INLINE Right load(const Unit* p) { return S::u_load(p); }
  static FA_INLINE F multiply_add(Unit a, Right b, F c) { return S::dot_bf16(S::u_set1(a), b, c); }
  static FA_INLINE void store(Unit* to, F (&row)[kVectors]) { S::u_store(to, S::bf16_neighbours(row[0], row[1])); }
  static float value(const Unit* row, int64_t index) {
    const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(row)[index]) << 16;
    float result;
    __builtin_memcpy(&result, &bits, sizeof(result));
    return result;
  }
  // Two rows; unit j holds low[j] and high[j].
  static FA_INLINE typename S::U pairs(F low, F high) { return S::bf16_pairs(low, high); }
  static void scale(Unit* row, int64_t count, F factor) {
    uint16_t* values = reinterpret_cast<uint16_t*>(row);
    for (int64_t c = 0; c < count; c += kLanes)
      S::store_bf16(values + c, S::mul(S::load_bf16(values + c), factor));
  }
};

// The same numbers with subnormal ones kept, which the instructions flush: for tiles that hold them.
template <class S>
struct Bf16ExactMathOf : Bf16MathOf<S> {
  using Unit = uint32_t;
  static FA_INLINE F multiply_add(Unit a, typename S::U b, F c) { return S::dot_bf16_exact(S::u_set1(a), b, c); }
  static FA_INLINE void store(Unit* to, F (&row)[kVectors]) {
    for (int n = 0; n < kVectors; ++n) S::store_bf16(reinterpret_cast<uint16_t*>(to) + n * kLanes, row[n]);
  }
  static FA_INLINE typename S::U pairs(F low, F high) {
    return S::u_or(S::bf16_bits(low), S::template u_shift_left<16>(S::bf16_bits(high)));
  }
};

// The arithmetic of careful passes: it gives the same bits wherever nothing is subnormal.
template <class Math>
struct CarefulOf {
  using Type = Math;
};
template <class S>
struct CarefulOf<Bf16MathOf<S>> {
  using Type = Bf16ExactMathOf<S>;
};

// Where element (row m, step k) of the left operand is.
enum class Left { kRowMajor /* a[m * stride + k] */, kStepMajor /* a[k * stride + m] */ };

template <class Math, Left kLeft, int kCount>
FA_INLINE void multiply(const typename Math::Unit* a, ptrdiff_t a_stride, const typename Math::Unit* b,
                        ptrdiff_t b_stride, int64_t steps, F (&acc)[kRows][kCount]) {
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kCount; ++n) acc[m][n] = Simd::zero();
#pragma GCC unroll 4
  for (int64_t k = 0; k < steps; ++k) {
    typename Math::Right right[kCount];
#pragma GCC unroll 8
    for (int n = 0; n < kCount; ++n) right[n] = Math::load(b + n * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const typename Math::Unit left = kLeft == Left::kRowMajor ? a[m * a_stride + k] : a[m];
#pragma GCC unroll 8
      for (int n = 0; n < kCount; ++n) acc[m][n] = Math::multiply_add(left, right[n], acc[m][n]);
    }
    b += b_stride;
    if (kLeft == Left::kStepMajor) a += a_stride;
  }
}

// Sums of sums err less than one long sum: so many float32 products make a sum of their own.
constexpr int64_t kChain = 32;
constexpr int64_t kQuad = 4;

// The products of a row of `a` and the same one of `b`, for kQuad rows, in the order of CellProducts::multiply_chains. Rows are
// filled up with zeros to whole multiples of kQuad chains.
FA_INLINE void multiply_rows(const float* a, const float* b, ptrdiff_t stride, int64_t columns, float* to) {
  for (int64_t m = 0; m < kQuad; ++m) to[m] = 0.0f;
  for (int64_t from = 0; from < columns; from += kLanes / kQuad * kChain) {
    F sum = Simd::zero();
    for (int64_t k = from; k < from + kChain; k += kQuad) {
      F left[kQuad], right[kQuad];
#pragma GCC unroll 4
      for (int64_t m = 0; m < kQuad; ++m) {
        left[m] = Simd::load_quads(a + m * stride + k, kChain);
        right[m] = Simd::load_quads(b + m * stride + k, kChain);
      }
      Simd::transpose_quads(left);
      Simd::transpose_quads(right);
#pragma GCC unroll 4
      for (int64_t j = 0; j < kQuad; ++j) sum = Simd::fma(left[j], right[j], sum);
    }
    float chains[kLanes];
    Simd::store(chains, sum);
    for (int64_t c = 0; c < kLanes; ++c) to[c % kQuad] += chains[c];
  }
}

template <class Math, Left kLeft, int kCount>
FA_NOINLINE void accumulate_block(const typename Math::Unit* a, ptrdiff_t a_stride, const typename Math::Unit* b,
                                  ptrdiff_t b_stride, int64_t steps, float* c, ptrdiff_t c_stride) {
  // c may lie in memory that nobody touched for long: it is fetched while the sums run, and added last. Not being aligned
  // to cache lines, it may touch one more than it fills.
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kCount * kLanes; n += 16) Simd::prefetch(c + m * c_stride + n);
    Simd::prefetch(c + m * c_stride + kCount * kLanes - 1);
  }
  F acc[kRows][kCount];
  multiply<Math, kLeft, kCount>(a, a_stride, b, b_stride, steps, acc);
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kCount; ++n) {
      float* p = c + m * c_stride + n * kLanes;
      Simd::store(p, Simd::add(Simd::load(p), acc[m][n]));
    }
}

// c[m][n] += sum over k of a(m, k) * b[k * b_stride + n], for Math::kStrip rows and `width` columns (1 to kPanel, in whole
// vectors: the operands are padded).
template <class Math, Left kLeft>
FA_INLINE void accumulate(const typename Math::Unit* a, ptrdiff_t a_stride, const typename Math::Unit* b,
                          ptrdiff_t b_stride, int64_t steps, float* c, ptrdiff_t c_stride, int64_t width) {
  if constexpr (Math::kTiles) {
    static_assert(kLeft == Left::kRowMajor, "tiles hold rows");
    Math::accumulate(a, a_stride, b, b_stride, steps, c, c_stride, width);
  } else if (width > kPanel - kLanes) {
    accumulate_block<Math, kLeft, kVectors>(a, a_stride, b, b_stride, steps, c, c_stride);
  } else {
    for (int64_t n = 0; n < width; n += kLanes)
      accumulate_block<Math, kLeft, 1>(a, a_stride, b + n, b_stride, steps, c + n, c_stride);
  }
}

// Products of rows of a left operand and a transposed right one, in panels of kPanel columns, `units` long: a cell of kRows
// rows from `strip` and kCount vectors of columns from `panel` at a time. There may be two pairs of operands.
template <class Math>
struct CellProducts {
  template <class Arena>
  void allocate(Arena&) {}
  // From now on of other operands; `order` says which cells come one after the other.
  template <class Order, class... Operands>
  void start(const Order&, const Operands&...) {}
  // What comes next goes on between the rows of a cell: in the first or second loop over them, or in the only one.
  template <class Arithmetic>
  FA_INLINE void go_on(int, int, int) {}
  template <class Arithmetic, int kCount, int kPair = 0>
  FA_INLINE void multiply_cell(const typename Math::Unit* a, ptrdiff_t a_stride, const typename Math::Unit* b,
                               int64_t units, int64_t strip, int64_t panel, F (&acc)[kRows][kCount]) {
    multiply<Arithmetic, Left::kRowMajor, kCount>(a + strip * a_stride, a_stride, b + panel * units, kPanel, units, acc);
  }
  // The same as sums of chains.
  template <class Arithmetic, int kCount>
  FA_INLINE void multiply_chains(const typename Math::Unit* a, ptrdiff_t a_stride, const typename Math::Unit* b,
                                 int64_t units, int64_t strip, int64_t panel, F (&acc)[kRows][kCount]) {
    a += strip * a_stride;
    b += panel * units;
    multiply<Arithmetic, Left::kRowMajor, kCount>(a, a_stride, b, kPanel, units < kChain ? units : kChain, acc);
    for (int64_t from = kChain; from < units; from += kChain) {
      F sums[kRows][kCount];
      multiply<Arithmetic, Left::kRowMajor, kCount>(a + from, a_stride, b + from * kPanel, kPanel,
                                                    units - from < kChain ? units - from : kChain, sums);
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
        for (int n = 0; n < kCount; ++n) acc[m][n] = Simd::add(acc[m][n], sums[m][n]);
    }
  }
};

// Multiply-adds on operands that stay in registers: no product of this arithmetic is faster. An operation is a multiplication
// or an addition. The sums are independent and as many as the registers hold: two units of a latency of four to six need
// twelve of them, more than a micro-kernel of a target with sixteen registers has.
template <class Math>
FA_NOINLINE void multiply_adds(int64_t operations) {
  constexpr int kSums = kRows * kVectors >= 16 ? 24 : 12;
  typename Math::Unit ones[kLanes];
  for (int i = 0; i < kLanes; ++i) ones[i] = 1;
  float start[kSums * kLanes] = {};
  // The compiler must not know what they hold: it would do equal sums once.
  asm volatile("" : : "r"(ones), "r"(start) : "memory");
  F acc[kSums];
#pragma GCC unroll 24
  for (int n = 0; n < kSums; ++n) acc[n] = Simd::load(start + n * kLanes);
  const typename Math::Right right = Math::load(ones);
  const typename Math::Unit left = ones[0];
#pragma GCC unroll 4
  for (int64_t left_over = operations; left_over > 0; left_over -= 2 * Math::kPerUnit * kSums * kLanes)
#pragma GCC unroll 24
    for (int n = 0; n < kSums; ++n) acc[n] = Math::multiply_add(left, right, acc[n]);
  F sum = Simd::zero();
  for (int n = 0; n < kSums; ++n) sum = Simd::add(sum, acc[n]);
  volatile float used = Simd::sum(sum);
  static_cast<void>(used);
}

}  // namespace
}  // namespace flash_attention
