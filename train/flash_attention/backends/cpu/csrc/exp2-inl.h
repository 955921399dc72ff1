// 2^t and tanh, vectorised.
#pragma once

#include "gemm-inl.h"

namespace flash_attention {
namespace {

constexpr double kLn2 = 0.69314718055994530942;
// Below this a probability is flushed to zero: no subnormal numbers enter the products.
constexpr float kSmallestExponent = -126.0f;

// t = n + r with |r| <= 1/2.
struct Split {
  F z;  // holds n in its low bits
  F r;

  FA_INLINE explicit Split(F t) {
    const F magic = Simd::set1(12582912.0f);  // 1.5 * 2^23: the sum holds round(t) in its low bits
    z = Simd::add(t, magic);
    r = Simd::sub(t, Simd::sub(z, magic));
  }
};

// Constants that are added to products, see Simd::fma_constant.
alignas(16) constexpr float kOne[4] = {1.0f, 1.0f, 1.0f, 1.0f};
#define FA_FOUR(x) {x, x, x, x}
alignas(16) constexpr float kSlope6[5][4] = {FA_FOUR(0x1.5f3e54p-10f), FA_FOUR(0x1.3b2d4cp-7f), FA_FOUR(0x1.c6aee8p-5f),
                                             FA_FOUR(0x1.ebfbdcp-3f), FA_FOUR(0x1.62e430p-1f)};
alignas(16) constexpr float kSlope4[3][4] = {FA_FOUR(0x1.c9fc46p-5f), FA_FOUR(0x1.ec0378p-3f), FA_FOUR(0x1.62e12cp-1f)};
#undef FA_FOUR

// (2^r - 1) / r for |r| <= 1/2: 1 + r * this is the polynomial of 2^r that is the best of its degree in relative error
// with value 1 at 0.
template <int kDegree>
FA_INLINE F power_slope(F r) {
  static_assert(kDegree == 4 || kDegree == 6, "no coefficients");
  F p;
  if constexpr (kDegree == 6) {
    p = Simd::set1(0x1.41fbbcp-13f);
#pragma GCC unroll 5
    for (const auto& constant : kSlope6) p = Simd::fma_constant(p, r, constant);
  } else {
    p = Simd::set1(0x1.3a02ccp-7f);
#pragma GCC unroll 3
    for (const auto& constant : kSlope4) p = Simd::fma_constant(p, r, constant);
  }
  return p;
}

// Exactly 0 for t < -126; NaN stays NaN. For -126 <= t < 127 the error is below 1 unit in the last place with degree 6,
// and below 3e-6 with degree 4: plenty for what is then rounded to bfloat16.
template <int kDegree>
FA_INLINE F exp2(F t) {
  const Split split(t);
  const F p = Simd::fma_constant(power_slope<kDegree>(split.r), split.r, kOne);
  return Simd::scale_by_power(p, split.z, t, kSmallestExponent);
}

// Accurate to a few units in the last place, also near 0: expm1(2x) / (expm1(2x) + 2). NaN stays NaN.
FA_INLINE F tanh(F x) {
  // From here on the result is 1.
  const F t = Simd::mul(Simd::clamp(x, 10.0f), Simd::set1(static_cast<float>(2 / kLn2)));
  const Split split(t);
  const F power = Simd::scale_by_power(Simd::set1(1.0f), split.z, t, kSmallestExponent);
  // 2^n 2^r - 1 = 2^n (2^r - 1) + (2^n - 1)
  const F fraction = Simd::mul(power_slope<6>(split.r), split.r);
  const F expm1 = Simd::fma(power, fraction, Simd::sub(power, Simd::set1(1.0f)));
  return Simd::div(expm1, Simd::add(expm1, Simd::set1(2.0f)));
}

}  // namespace
}  // namespace flash_attention
