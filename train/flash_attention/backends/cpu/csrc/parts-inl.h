// float16 as sums of bfloat16: two parts are all of a number. Each part is the nearest bfloat16 of what those before it
// leave, so that products of parts, summed in float32, are products of the numbers. float32 would take three parts and
// six products, which take as long as multiply-adds do where two threads share the tiles of a core.
#pragma once

#include <cstdint>
#include <cstring>

#include "gemm-inl.h"
#include "pack-inl.h"
#include "scores-inl.h"

namespace flash_attention {
namespace {

// Below this, and only there, take_part is exact.
constexpr float kMostSplit = 0x1p100f;

// The nearest bfloat16 of x, as float32; x becomes the rest. NaN where x is not finite, or too large.
template <class S>
FA_INLINE F take_part(F& x) {
  // 2^16 x + x is rounded to bits that bfloat16 has; the first term is exact.
  const F part = S::fma(x, S::set1(-0x1p16f), S::mul(x, S::set1(0x1p16f + 1)));
  x = S::sub(x, part);
  return part;
}

// The same of any number: the largest ones are truncated, of an infinity or NaN the rest is 0.
template <class S>
FA_INLINE F take_any_part(F& x) {
  const F whole = x;
  F part = take_part<S>(x);
  float numbers[kLanes], parts[kLanes], rests[kLanes];
  S::store(numbers, whole);
  S::store(parts, part);
  S::store(rests, x);
  for (int i = 0; i < kLanes; ++i) {
    if (numbers[i] < kMostSplit && numbers[i] > -kMostSplit) continue;
    const float small = numbers[i] * 0x1p-64f;
    float high = (small * (0x1p16f + 1) - small * 0x1p16f) * 0x1p64f;
    if (is_finite(numbers[i]) && !is_finite(high)) {
      uint32_t bits;
      std::memcpy(&bits, &numbers[i], sizeof(bits));
      bits &= 0xFFFF0000u;
      std::memcpy(&high, &bits, sizeof(bits));
    }
    parts[i] = is_finite(numbers[i]) ? high : numbers[i];
    rests[i] = is_finite(numbers[i]) ? numbers[i] - high : 0.0f;
  }
  x = S::load(rests);
  return S::load(parts);
}

// Arithmetic on numbers of kCount parts. The last one is rounded when it is stored.
template <class S, int kCount>
struct PartsMathOf : Bf16MathOf<S> {
  static constexpr int kParts = kCount;
  static constexpr int kExpDegree = 6;
  static constexpr int64_t kNext = kNextPart<Bf16MathOf<S>>;

  template <class Take>
  static FA_INLINE void store_by(const Take& take, uint32_t* to, F first, F second) {
#pragma GCC unroll 3
    for (int part = 0; part < kCount - 1; ++part) {
      const F high = take(first);
      S::u_store(to + part * kNext, S::bf16_neighbours(high, take(second)));
    }
    S::u_store(to + (kCount - 1) * kNext, S::bf16_neighbours(first, second));
  }
  // Two rows; unit j holds low[j] and high[j]. From one part to the next it is `next` units.
  template <class Take>
  static FA_INLINE void store_pairs_by(const Take& take, uint32_t* to, ptrdiff_t next, F low, F high) {
#pragma GCC unroll 3
    for (int part = 0; part < kCount - 1; ++part) {
      const F of_low = take(low);
      S::u_store(to + part * next, S::bf16_pairs(of_low, take(high)));
    }
    S::u_store(to + (kCount - 1) * next, S::bf16_pairs(low, high));
  }
  static FA_INLINE void store(uint32_t* to, F (&row)[kVectors]) { store_by(take_part<S>, to, row[0], row[1]); }
  static FA_INLINE void store_pairs(uint32_t* to, ptrdiff_t next, F low, F high) {
    store_pairs_by(take_part<S>, to, next, low, high);
  }

  static float value(const uint32_t* row, int64_t index) {
    float sum = 0.0f;
    for (int part = kCount - 1; part >= 0; --part) sum += Bf16MathOf<S>::value(row + part * kNext, index);
    return sum;
  }
  static void scale(uint32_t* row, int64_t count, F factor) {
    for (int64_t c = 0; c < count; c += kPanel) {
      F numbers[kVectors];
      for (int n = 0; n < kVectors; ++n) {
        numbers[n] = S::zero();
        for (int part = kCount - 1; part >= 0; --part) {
          const uint16_t* const parts = reinterpret_cast<const uint16_t*>(row + part * kNext);
          numbers[n] = S::add(numbers[n], S::load_bf16(parts + c + n * kLanes));
        }
        numbers[n] = S::mul(numbers[n], factor);
      }
      store(row + c / 2, numbers);
    }
  }
};

template <class S>
struct PartsMathOf<S, 1> : Bf16MathOf<S> {
  static FA_INLINE void store_pairs(uint32_t* to, ptrdiff_t, F low, F high) { S::u_store(to, S::bf16_pairs(low, high)); }
};

// Operands of float16 in units of two parts. A row is filled up to whole multiples of kWhole units with zeros. Numbers that
// are not finite are seldom: they are looked for by the way, and their rows are then packed again.
template <class S, int kParts, int64_t kWhole>
struct PackParts {
  using Math = PartsMathOf<S, kParts>;
  static int64_t units(int64_t columns) { return round_up(columns, 2 * kWhole) / 2; }
  static int64_t row_stride(int64_t columns) { return tile_stride(kParts * units(columns)); }
  static int64_t stacked_stride(int64_t columns) { return kParts * tile_stride(columns); }

  static void rows(const Rows& src, int64_t count, int64_t padded, uint32_t* dst) {
    if (!rows_by(take_part<S>, src, count, padded, dst)) rows_by(take_any_part<S>, src, count, padded, dst);
  }
  static void stacked(const Rows& src, int64_t count, int64_t padded, uint32_t* dst) {
    if (!stacked_by(take_part<S>, src, count, padded, dst)) stacked_by(take_any_part<S>, src, count, padded, dst);
  }
  // rows() and stacked() of an even number of rows, which are split once.
  static void both(const Rows& src, int64_t count, int64_t padded, uint32_t* in_rows, uint32_t* in_stack) {
    if (!both_by(take_part<S>, src, count, padded, in_rows, in_stack))
      both_by(take_any_part<S>, src, count, padded, in_rows, in_stack);
  }
  static void clear_stacked(uint32_t* tile, int64_t stride, int64_t row, int64_t column) {
    for (int part = 0; part < kParts; ++part)
      reinterpret_cast<uint16_t*>(tile + row / 2 * stride + part * (stride / kParts) + column)[row % 2] = 0;
  }
  static void transposed(const Rows& src, int64_t count, int64_t padded, uint32_t* scratch, uint32_t* dst) {
    const int64_t width = units(src.columns);
    for (int64_t m = 0; m < padded; m += kLanes) {
      rows(src.from(m), src.left(count, m), kLanes, scratch);
      for (int part = 0; part < kParts; ++part)
        Pack<Float32Math>::transpose_block(scratch + part * width, row_stride(src.columns), width,
                                           dst + (m / kPanel * kParts + part) * kPanel * width + m % kPanel);
    }
  }

 private:
  // Each of these is false when a number is not finite.
  template <class Take>
  static FA_INLINE bool rows_by(const Take& take, const Rows& src, int64_t count, int64_t padded, uint32_t* dst) {
    const int64_t width = units(src.columns), stride = row_stride(src.columns);
    Finite finite;
    for (int64_t m = 0; m < padded; ++m)
      for (int64_t k = 0; k < width; k += kLanes) {
        F first = load(src, m, count, 2 * k), second = load(src, m, count, 2 * k + kLanes);
        finite.add(S::add(first, second));
        uint32_t* const to = dst + m * stride + k;
#pragma GCC unroll 3
        for (int part = 0; part < kParts - 1; ++part) {
          const F high = take(first);
          S::u_store(to + part * width, S::bf16_neighbours(high, take(second)));
        }
        S::u_store(to + (kParts - 1) * width, S::bf16_neighbours(first, second));
      }
    return finite.all();
  }
  template <class Take>
  static FA_INLINE bool stacked_by(const Take& take, const Rows& src, int64_t count, int64_t padded, uint32_t* dst) {
    const int64_t stride = stacked_stride(src.columns);
    Finite finite;
    for (int64_t m = 0; m < padded; m += 2)
      for (int64_t k = 0; k < round_up(src.columns, kWhole); k += kLanes) {
        const F low = load(src, m, count, k), high = load(src, m + 1, count, k);
        finite.add(S::add(low, high));
        Math::store_pairs_by(take, dst + m / 2 * stride + k, stride / kParts, low, high);
      }
    return finite.all();
  }
  template <class Take>
  static FA_INLINE bool both_by(const Take& take, const Rows& src, int64_t count, int64_t padded, uint32_t* in_rows,
                                uint32_t* in_stack) {
    const int64_t width = units(src.columns), stride = row_stride(src.columns);
    const int64_t stack_stride = stacked_stride(src.columns), stacked_columns = round_up(src.columns, kWhole);
    Finite finite;
    for (int64_t m = 0; m < padded; m += 2)
      for (int64_t k = 0; k < width; k += kLanes) {
        F rest[2][2] = {{load(src, m, count, 2 * k), load(src, m, count, 2 * k + kLanes)},
                        {load(src, m + 1, count, 2 * k), load(src, m + 1, count, 2 * k + kLanes)}};
        finite.add(S::add(S::add(rest[0][0], rest[0][1]), S::add(rest[1][0], rest[1][1])));
#pragma GCC unroll 3
        for (int part = 0; part < kParts; ++part) {
          F of[2][2];
#pragma GCC unroll 2
          for (int row = 0; row < 2; ++row)
#pragma GCC unroll 2
            for (int n = 0; n < 2; ++n) of[row][n] = part < kParts - 1 ? take(rest[row][n]) : rest[row][n];
          uint32_t* const to = in_rows + m * stride + part * width + k;
          S::u_store(to, S::bf16_neighbours(of[0][0], of[0][1]));
          S::u_store(to + stride, S::bf16_neighbours(of[1][0], of[1][1]));
          uint32_t* const stack = in_stack + m / 2 * stack_stride + part * (stack_stride / kParts) + 2 * k;
          S::u_store(stack, S::bf16_pairs(of[0][0], of[1][0]));
          if (2 * k + kLanes < stacked_columns) S::u_store(stack + kLanes, S::bf16_pairs(of[0][1], of[1][1]));
        }
      }
    return finite.all();
  }
  static FA_INLINE F load(const Rows& src, int64_t m, int64_t count, int64_t k) {
    if (m >= count || k >= src.columns) return S::zero();
    const uint16_t* const from = reinterpret_cast<const uint16_t*>(src.row(m)) + k;
    if (k + kLanes <= src.columns) return S::load_f16(from);
    uint16_t rest[kLanes] = {};
    std::memcpy(rest, from, (src.columns - k) * 2);
    return S::load_f16(rest);
  }
};

}  // namespace
}  // namespace flash_attention
