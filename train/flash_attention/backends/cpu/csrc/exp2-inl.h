// 2^t, vectorised.
#pragma once

#include "gemm-inl.h"

namespace flash_attention {
namespace {

constexpr double kLn2 = 0.69314718055994530942;
// Below this a probability is flushed to zero: no subnormal numbers enter the products.
constexpr float kSmallestExponent = -126.0f;

// Exactly 0 for t < -126; NaN stays NaN. t = n + r with |r| <= 1/2; the polynomial of 2^r is the best of its degree in
// relative error with value 1 at 0. For -126 <= t < 127 the error is below 1 unit in the last place with degree 6, and
// below 3e-6 with degree 4: plenty for what is then rounded to bfloat16.
template <int kDegree>
FA_INLINE F exp2(F t) {
  static_assert(kDegree == 4 || kDegree == 6, "no coefficients");
  const F magic = Simd::set1(12582912.0f);  // 1.5 * 2^23: the sum holds round(t) in its low bits
  const F z = Simd::add(t, magic);
  const F r = Simd::sub(t, Simd::sub(z, magic));
  F p;
  if constexpr (kDegree == 6) {
    p = Simd::set1(0x1.41fbbcp-13f);
    p = Simd::fma(p, r, Simd::set1(0x1.5f3e54p-10f));
    p = Simd::fma(p, r, Simd::set1(0x1.3b2d4cp-7f));
    p = Simd::fma(p, r, Simd::set1(0x1.c6aee8p-5f));
    p = Simd::fma(p, r, Simd::set1(0x1.ebfbdcp-3f));
    p = Simd::fma(p, r, Simd::set1(0x1.62e430p-1f));
  } else {
    p = Simd::set1(0x1.3a02ccp-7f);
    p = Simd::fma(p, r, Simd::set1(0x1.c9fc46p-5f));
    p = Simd::fma(p, r, Simd::set1(0x1.ec0378p-3f));
    p = Simd::fma(p, r, Simd::set1(0x1.62e12cp-1f));
  }
  p = Simd::fma(p, r, Simd::set1(1.0f));
  return Simd::scale_by_power(p, z, t, kSmallestExponent);
}

}  // namespace
}  // namespace flash_attention
