// NEON of AArch64 (Armv8.0), 4 lanes. See portable.h for the meanings.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "../problem.h"

namespace flash_attention {
namespace {

struct Simd {
  using F = float32x4_t;
  using U = uint32x4_t;
  static constexpr int kLanes = 4;
  static constexpr int kRows = 4;
  static constexpr int kVectors = 4;
  static constexpr bool kBf16 = false;

  static F zero() { return vdupq_n_f32(0.0f); }
  static F set1(float x) { return vdupq_n_f32(x); }
  static F load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, F v) { vst1q_f32(p, v); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  // The instruction overwrites c: each time it is read anew, where the compiler would copy it from a register or, having
  // none left, from the stack. That it seems to depend on b keeps the compiler from reading it once for all.
  static FA_INLINE F fma_constant(F a, F b, const float (&c)[4]) {
    F sum;
    asm("ldr %q0, %1" : "=w"(sum) : "m"(*reinterpret_cast<const F*>(c)), "w"(b));
    return vfmaq_f32(sum, a, b);
  }
  static F max(F a, F b) { return vmaxnmq_f32(a, b); }
  static F max_if_positive(F a, F b) { return max(a, b); }
  static F clamp(F a, float limit) { return vminq_f32(vmaxq_f32(a, set1(-limit)), set1(limit)); }
  static F abs(F a) { return vabsq_f32(a); }
  static F iota() {
    const float values[4] = {0, 1, 2, 3};
    return vld1q_f32(values);
  }
  static float sum(F v) { return vaddvq_f32(v); }
  static void sums(F a, F b, F c, F d, float* to) { vst1q_f32(to, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d))); }
  static float largest(F v) { return vmaxnmvq_f32(v); }
  static bool any_greater(F v, float limit) { return vmaxvq_u32(vcgtq_f32(v, set1(limit))) != 0; }
  static uint32x4_t lanes_of(uint32_t bits) {
    const uint32_t lanes[4] = {1, 2, 4, 8};
    return vtstq_u32(vdupq_n_u32(bits), vld1q_u32(lanes));
  }
  static F select(uint32_t bits, F a, F b) { return vbslq_f32(lanes_of(bits), a, b); }
  static F zero_unless(uint32_t bits, F a) {
    return vreinterpretq_f32_u32(vandq_u32(lanes_of(bits), vreinterpretq_u32_f32(a)));
  }
  static F scale_by_power(F p, F z, F t, float limit) {
    const uint32x4_t scaled = vaddq_u32(vreinterpretq_u32_f32(p), vshlq_n_u32(vreinterpretq_u32_f32(z), 23));
    return vreinterpretq_f32_u32(vbicq_u32(scaled, vcltq_f32(t, set1(limit))));
  }
  static FA_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
  static FA_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

  static F load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static void store_f16(uint16_t* p, F v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
  static F load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  static void store_bf16(uint16_t* p, F v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16));
  }

  static void transpose(const uint32_t* src, ptrdiff_t src_stride, uint32_t* dst, ptrdiff_t dst_stride) {
    const uint32x4_t r0 = vld1q_u32(src), r1 = vld1q_u32(src + src_stride);
    const uint32x4_t r2 = vld1q_u32(src + 2 * src_stride), r3 = vld1q_u32(src + 3 * src_stride);
    const uint64x2_t a = vreinterpretq_u64_u32(vtrn1q_u32(r0, r1)), b = vreinterpretq_u64_u32(vtrn2q_u32(r0, r1));
    const uint64x2_t c = vreinterpretq_u64_u32(vtrn1q_u32(r2, r3)), d = vreinterpretq_u64_u32(vtrn2q_u32(r2, r3));
    vst1q_u32(dst, vreinterpretq_u32_u64(vtrn1q_u64(a, c)));
    vst1q_u32(dst + dst_stride, vreinterpretq_u32_u64(vtrn1q_u64(b, d)));
    vst1q_u32(dst + 2 * dst_stride, vreinterpretq_u32_u64(vtrn2q_u64(a, c)));
    vst1q_u32(dst + 3 * dst_stride, vreinterpretq_u32_u64(vtrn2q_u64(b, d)));
  }

  static F load_quads(const float* p, ptrdiff_t) { return load(p); }
  static FA_INLINE void transpose_quads(F (&rows)[4]) {
    uint32_t bits[16];
    for (int m = 0; m < 4; ++m) vst1q_u32(bits + 4 * m, vreinterpretq_u32_f32(rows[m]));
    transpose(bits, 4, bits, 4);
    for (int m = 0; m < 4; ++m) rows[m] = vreinterpretq_f32_u32(vld1q_u32(bits + 4 * m));
  }

  static uint32_t nonzero_bits(const uint8_t* p) {
    const uint8_t weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint32_t result = 0;
    for (int half = 0; half < 2; ++half) {
      const uint8x16_t bytes = vld1q_u8(p + 16 * half);
      const uint8x16_t set = vandq_u8(vtstq_u8(bytes, bytes), vld1q_u8(weights));
      const uint32_t low = vaddv_u8(vget_low_u8(set)), high = vaddv_u8(vget_high_u8(set));
      result |= (low | high << 8) << (16 * half);
    }
    return result;
  }

  static U u_set1(uint32_t x) { return vdupq_n_u32(x); }
  static U u_iota() {
    const uint32_t values[4] = {0, 1, 2, 3};
    return vld1q_u32(values);
  }
  static U u_add(U a, U b) { return vaddq_u32(a, b); }
  static U u_xor(U a, U b) { return veorq_u32(a, b); }
  static U u_or(U a, U b) { return vorrq_u32(a, b); }
  template <int kCount>
  static U u_shift_left(U a) { return vshlq_n_u32(a, kCount); }
  static void u_store(uint32_t* p, U v) { vst1q_u32(p, v); }
  static void u_multiply(U a, uint32_t factor, U& high, U& low) {
    const uint64x2_t first = vmull_n_u32(vget_low_u32(a), factor), second = vmull_n_u32(vget_high_u32(a), factor);
    low = vuzp1q_u32(vreinterpretq_u32_u64(first), vreinterpretq_u32_u64(second));
    high = vuzp2q_u32(vreinterpretq_u32_u64(first), vreinterpretq_u32_u64(second));
  }
  static U u_halves_at_least(U v, uint32_t threshold) {
    const uint32x4_t limit = vdupq_n_u32(threshold);
    const uint32x4_t low = vcgeq_u32(vandq_u32(v, vdupq_n_u32(0xFFFF)), limit);
    const uint32x4_t high = vcgeq_u32(vshrq_n_u32(v, 16), limit);
    return vorrq_u32(vandq_u32(low, vdupq_n_u32(1)), vandq_u32(high, vdupq_n_u32(2)));
  }
};

}  // namespace
}  // namespace flash_attention
