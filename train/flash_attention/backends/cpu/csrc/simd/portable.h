// The always-available target: vectors of four floats in plain C++, which the compiler maps to whatever there is. Beside
// tiles, in tests alone, they are of sixteen, and there is what tiles need of bfloat16.
// This header also says what the operations of every target mean.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace flash_attention {
namespace {

struct Simd {
#if defined(FLASH_ATTENTION_TILES)
  static constexpr int kLanes = 16;  // floats in a vector
  static constexpr int kRows = 2;    // micro-kernel: kRows rows of kVectors vectors are held in registers
  static constexpr bool kBf16 = true;  // whether the target has instructions that multiply bfloat16
#else
  static constexpr int kLanes = 4;
  static constexpr int kRows = 4;
  static constexpr bool kBf16 = false;
#endif
  static constexpr int kVectors = 2;  // kVectors * kLanes divides 32
  struct F {
    float v[kLanes];
  };
  struct U {
    uint32_t v[kLanes];
  };

  template <class Function>
  static F each(Function function) {
    F result;
    for (int i = 0; i < kLanes; ++i) result.v[i] = function(i);
    return result;
  }
  template <class Function>
  static U u_each(Function function) {
    U result;
    for (int i = 0; i < kLanes; ++i) result.v[i] = function(i);
    return result;
  }
  static float as_float(uint32_t bits) {
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
  }
  static uint32_t as_bits(float value) {
    uint32_t result;
    std::memcpy(&result, &value, 4);
    return result;
  }

  static F zero() { return set1(0.0f); }
  static F set1(float x) { return each([&](int) { return x; }); }
  static F load(const float* p) {
    F result;
    std::memcpy(result.v, p, sizeof(result.v));
    return result;
  }
  static void store(float* p, F a) { std::memcpy(p, a.v, sizeof(a.v)); }
  static F add(F a, F b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
  static F sub(F a, F b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
  static F mul(F a, F b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
  static F div(F a, F b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
  // a * b + c; rounded once where the target has it.
  static F fma(F a, F b, F c) { return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; }); }
  // a * b + c likewise, c being a constant of which four copies lie in memory.
  static F fma_constant(F a, F b, const float (&c)[4]) { return fma(a, b, set1(c[0])); }
  // The larger; either one when the other is NaN.
  static F max(F a, F b) { return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
  // The larger; any negative number when both are negative. Cheaper than max where integer units are idle.
  static F max_if_positive(F a, F b) { return max(a, b); }
  // NaN stays NaN.
  static F clamp(F a, float limit) {
    return each([&](int i) { return a.v[i] > limit ? limit : a.v[i] < -limit ? -limit : a.v[i]; });
  }
  static F abs(F a) { return each([&](int i) { return std::fabs(a.v[i]); }); }
  static F iota() { return each([](int i) { return static_cast<float>(i); }); }
  static float sum(F a) {
    for (int count = kLanes / 2; count > 0; count /= 2)
      for (int i = 0; i < count; ++i) a.v[i] += a.v[i + count];
    return a.v[0];
  }
  // The four of four vectors.
  static void sums(F a, F b, F c, F d, float* to) {
    to[0] = sum(a);
    to[1] = sum(b);
    to[2] = sum(c);
    to[3] = sum(d);
  }
  static float largest(F a) {
    float result = a.v[0];
    for (int i = 1; i < kLanes; ++i) result = a.v[i] > result ? a.v[i] : result;
    return result;
  }
  static bool any_greater(F a, float limit) {
    bool result = false;
    for (int i = 0; i < kLanes; ++i) result |= a.v[i] > limit;
    return result;
  }
  // Lane i of a where bit i is set, else of b (or zero).
  static F select(uint32_t bits, F a, F b) { return each([&](int i) { return bits >> i & 1 ? a.v[i] : b.v[i]; }); }
  static F zero_unless(uint32_t bits, F a) { return select(bits, a, zero()); }
  // p * 2^n, with n in the low bits of z; zero where t < limit.
  static F scale_by_power(F p, F z, F t, float limit) {
    return each([&](int i) {
      return t.v[i] < limit ? 0.0f : as_float(as_bits(p.v[i]) + (as_bits(z.v[i]) << 23));
    });
  }
  // Asks for a cache line, into the nearest cache or into the next one.
  // These two must be FA_INLINE elsewhere: GCC takes a function that only asks for memory for one without effect.
  static void prefetch(const void*) {}
  static void prefetch_far(const void*) {}

  static float from_f16(uint16_t half) {
    // Exponent and fraction moved to their float places; the factor corrects the bias, also for subnormal numbers.
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = half & 0x7FFF;
    const uint32_t special = rest >= 0x7C00 ? 0x7F800000u : 0u;
    return as_float(sign | special | as_bits(as_float(rest << 13) * as_float(0x77800000)));
  }
  static uint16_t to_f16(float value) {
    const uint32_t bits = as_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);
    if (rest >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);  // rounds to 65536 or more
    if (rest < 0x38800000) {
      // Subnormal: adding 0.5 leaves the fraction, rounded to even, in the low bits.
      return static_cast<uint16_t>(sign | (as_bits(as_float(rest) + 0.5f) - 0x3F000000));
    }
    const uint32_t rounded = rest - 0x38000000 + 0xFFF + (rest >> 13 & 1);
    return static_cast<uint16_t>(sign | rounded >> 13);
  }
  static uint16_t to_bf16(float value) {
    const uint32_t bits = as_bits(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
  static F load_f16(const uint16_t* p) { return each([&](int i) { return from_f16(p[i]); }); }
  static void store_f16(uint16_t* p, F a) {
    for (int i = 0; i < kLanes; ++i) p[i] = to_f16(a.v[i]);
  }
  static F load_bf16(const uint16_t* p) {
    return each([&](int i) { return as_float(static_cast<uint32_t>(p[i]) << 16); });
  }
  static void store_bf16(uint16_t* p, F a) {
    for (int i = 0; i < kLanes; ++i) p[i] = to_bf16(a.v[i]);
  }

  // kLanes x kLanes block: dst[j][i] = src[i][j].
  static void transpose(const uint32_t* src, ptrdiff_t src_stride, uint32_t* dst, ptrdiff_t dst_stride) {
    for (int i = 0; i < kLanes; ++i)
      for (int j = 0; j < kLanes; ++j) dst[j * dst_stride + i] = src[i * src_stride + j];
  }

  // Each four lanes from a place of their own.
  static F load_quads(const float* p, ptrdiff_t apart) { return each([&](int i) { return p[i / 4 * apart + i % 4]; }); }
  // 4 x 4 blocks of lanes: rows[j][4 q + i] = rows[i][4 q + j].
  static void transpose_quads(F (&rows)[4]) {
    F from[4];
    for (int i = 0; i < 4; ++i) from[i] = rows[i];
    for (int j = 0; j < 4; ++j) rows[j] = each([&](int lane) { return from[lane % 4].v[lane / 4 * 4 + j]; });
  }

  // Bit i set when byte i of 32 is not zero.
  static uint32_t nonzero_bits(const uint8_t* p) {
    uint32_t result = 0;
    for (int i = 0; i < 32; ++i) result |= static_cast<uint32_t>(p[i] != 0) << i;
    return result;
  }

  static U u_set1(uint32_t x) { return u_each([&](int) { return x; }); }
  static U u_iota() { return u_each([](int i) { return static_cast<uint32_t>(i); }); }
  static U u_add(U a, U b) { return u_each([&](int i) { return a.v[i] + b.v[i]; }); }
  static U u_xor(U a, U b) { return u_each([&](int i) { return a.v[i] ^ b.v[i]; }); }
  static U u_or(U a, U b) { return u_each([&](int i) { return a.v[i] | b.v[i]; }); }
  template <int kCount>
  static U u_shift_left(U a) { return u_each([&](int i) { return a.v[i] << kCount; }); }
  static void u_store(uint32_t* p, U a) { std::memcpy(p, a.v, sizeof(a.v)); }
  // Upper and lower half of the 64-bit product.
  static void u_multiply(U a, uint32_t factor, U& high, U& low) {
    high = u_each([&](int i) { return static_cast<uint32_t>(static_cast<uint64_t>(a.v[i]) * factor >> 32); });
    low = u_each([&](int i) { return a.v[i] * factor; });
  }
  // Per lane: bit 0 set when the low 16 bits are at least the threshold, bit 1 for the high 16 bits.
  static U u_halves_at_least(U a, uint32_t threshold) {
    return u_each([&](int i) {
      return static_cast<uint32_t>((a.v[i] & 0xFFFF) >= threshold) |
             static_cast<uint32_t>((a.v[i] >> 16) >= threshold) << 1;
    });
  }

#if defined(FLASH_ATTENTION_TILES)
  // Units of two bfloat16, and the conversion of each half to float32.
  static U u_load(const uint32_t* p) {
    U result;
    std::memcpy(result.v, p, sizeof(result.v));
    return result;
  }
  static U u_load16(const uint16_t* p) { return u_each([&](int i) { return uint32_t{p[i]}; }); }
  static F bf16_low(U a) { return each([&](int i) { return as_float(a.v[i] << 16); }); }
  static F bf16_high(U a) { return each([&](int i) { return as_float(a.v[i] & 0xFFFF0000u); }); }
  // Rounded to bfloat16, in the low half of each unit.
  static U bf16_bits(F a) { return u_each([&](int i) { return uint32_t{to_bf16(a.v[i])}; }); }
  // The smallest magnitudes of two bfloat16 a unit, zero left out, as one less than their bits.
  static U bf16_smallest(U values, U least) {
    return u_each([&](int i) {
      const auto smaller = [&](int shift) {
        const uint32_t magnitude = ((values.v[i] >> shift & 0x7FFF) - 1) & 0xFFFF, other = least.v[i] >> shift & 0xFFFF;
        return (magnitude < other ? magnitude : other) << shift;
      };
      return smaller(0) | smaller(16);
    });
  }
  static bool bf16_any_below(U least, uint16_t limit) {
    bool result = false;
    for (uint32_t unit : least.v) result |= (unit & 0xFFFF) < limit || unit >> 16 < limit;
    return result;
  }
  // Two rows as units: unit j holds low[j] and high[j]. Subnormal numbers count as 0, as the instructions have it.
  static U bf16_pairs(F low, F high) {
    return u_each([&](int i) { return flushed_bf16(low.v[i]) | flushed_bf16(high.v[i]) << 16; });
  }
  // Consecutive values as units, likewise: neighbours share a unit.
  static U bf16_neighbours(F first, F second) {
    return u_each([&](int i) {
      const float* from = i < kLanes / 2 ? first.v + 2 * i : second.v + 2 * i - kLanes;
      return flushed_bf16(from[0]) | flushed_bf16(from[1]) << 16;
    });
  }
  static uint32_t flushed_bf16(float value) {
    return as_bits(value) & 0x7F800000 ? to_bf16(value) : as_bits(value) >> 16 & 0x8000;
  }
#endif
};

}  // namespace
}  // namespace flash_attention
