// AVX-512 (F, BW, DQ, VL), 16 lanes; with AVX512_BF16 also the bfloat16 dot product. See portable.h for the meanings.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "../problem.h"

namespace flash_attention {
namespace {

struct Simd {
  using F = __m512;
  using U = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 8;
  static constexpr int kVectors = 2;
#if defined(__AVX512BF16__)
  static constexpr bool kBf16 = true;
#else
  static constexpr bool kBf16 = false;
#endif

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fma_constant(F a, F b, const float (&c)[4]) { return fma(a, b, set1(c[0])); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F max_if_positive(F a, F b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  // The instructions give their second operand when one is NaN.
  static F clamp(F a, float limit) { return _mm512_min_ps(set1(limit), _mm512_max_ps(set1(-limit), a)); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static F iota() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  static float sum(F v) { return _mm512_reduce_add_ps(v); }
  static void sums(F a, F b, F c, F d, float* to) {
    const F ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const F cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const F quarters = add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }
  static float largest(F v) { return _mm512_reduce_max_ps(v); }
  static bool any_greater(F v, float limit) { return _mm512_cmp_ps_mask(v, set1(limit), _CMP_GT_OQ) != 0; }
  static F select(uint32_t bits, F a, F b) { return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), b, a); }
  static F zero_unless(uint32_t bits, F a) { return _mm512_maskz_mov_ps(static_cast<__mmask16>(bits), a); }
  static F scale_by_power(F p, F z, F t, float limit) {
    const __mmask16 keep = _mm512_cmp_ps_mask(t, set1(limit), _CMP_NLT_UQ);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(
        keep, _mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(z), 23)));
  }
  static FA_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static FA_INLINE void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  static F load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store_f16(uint16_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static F load_bf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  // Rounded to bfloat16, in the low half of each unit.
  static U bf16_bits(F v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
    return _mm512_srli_epi32(rounded, 16);
  }
  static void store_bf16(uint16_t* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(bf16_bits(v)));
  }

  // 16 x 16 transposition of 32-bit units in four stages: pairs, quadruples, then 128-bit quarters twice.
  static void transpose(const uint32_t* src, ptrdiff_t src_stride, uint32_t* dst, ptrdiff_t dst_stride) {
    __m512i r[16], t[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(src + i * src_stride);
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
      r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
      r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
      r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      const __m512i low01 = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
      const __m512i high01 = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
      const __m512i low23 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
      const __m512i high23 = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
      _mm512_storeu_si512(dst + i * dst_stride, _mm512_shuffle_i32x4(low01, low23, 0x88));
      _mm512_storeu_si512(dst + (i + 4) * dst_stride, _mm512_shuffle_i32x4(high01, high23, 0x88));
      _mm512_storeu_si512(dst + (i + 8) * dst_stride, _mm512_shuffle_i32x4(low01, low23, 0xDD));
      _mm512_storeu_si512(dst + (i + 12) * dst_stride, _mm512_shuffle_i32x4(high01, high23, 0xDD));
    }
  }

  static F load_quads(const float* p, ptrdiff_t apart) {
    const auto two = [&](const float* q) {
      return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(q)), _mm_loadu_ps(q + apart), 1);
    };
    return _mm512_insertf32x8(_mm512_castps256_ps512(two(p)), two(p + 2 * apart), 1);
  }
  static void transpose_quads(F (&rows)[4]) {
    const F low01 = _mm512_unpacklo_ps(rows[0], rows[1]), high01 = _mm512_unpackhi_ps(rows[0], rows[1]);
    const F low23 = _mm512_unpacklo_ps(rows[2], rows[3]), high23 = _mm512_unpackhi_ps(rows[2], rows[3]);
    rows[0] = _mm512_shuffle_ps(low01, low23, 0x44);
    rows[1] = _mm512_shuffle_ps(low01, low23, 0xEE);
    rows[2] = _mm512_shuffle_ps(high01, high23, 0x44);
    rows[3] = _mm512_shuffle_ps(high01, high23, 0xEE);
  }

  static uint32_t nonzero_bits(const uint8_t* p) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_test_epi8_mask(bytes, bytes);
  }

  static U u_set1(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static U u_iota() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  static U u_add(U a, U b) { return _mm512_add_epi32(a, b); }
  static U u_xor(U a, U b) { return _mm512_xor_si512(a, b); }
  static U u_or(U a, U b) { return _mm512_or_si512(a, b); }
  template <int kCount>
  static U u_shift_left(U a) { return _mm512_slli_epi32(a, kCount); }
  static void u_store(uint32_t* p, U v) { _mm512_storeu_si512(p, v); }
  static void u_multiply(U a, uint32_t factor, U& high, U& low) {
    const __m512i f = u_set1(factor);
    const __m512i even = _mm512_mul_epu32(a, f);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), f);
    high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
  }
  static U u_halves_at_least(U v, uint32_t threshold) {
    const __m512i limit = _mm512_set1_epi16(static_cast<short>(threshold));
    const __m512i bits = _mm512_set1_epi32(0x00020001);
    const __m512i kept = _mm512_maskz_mov_epi16(_mm512_cmpge_epu16_mask(v, limit), bits);
    return _mm512_and_si512(_mm512_or_si512(kept, _mm512_srli_epi32(kept, 16)), _mm512_set1_epi32(3));
  }

#if defined(__AVX512BF16__)
  // acc + a.low * b.low + a.high * b.high per 32-bit unit of two bfloat16.
  static F dot_bf16(U a, U b, F acc) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  // The same without taking subnormal numbers for zero: the instruction adds the high halves first, each rounded once.
  static F dot_bf16_exact(U a, U b, F acc) {
    return fma(bf16_low(a), bf16_low(b), fma(bf16_high(a), bf16_high(b), acc));
  }
  // The halves of units of two bfloat16 as float32.
  static F bf16_low(U a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }
  static F bf16_high(U a) {
    return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  }
  // The smallest magnitudes of two bfloat16 a unit, zero left out, as one less than their bits.
  static U bf16_smallest(U values, U least) {
    const __m512i magnitude = _mm512_and_si512(values, _mm512_set1_epi16(0x7FFF));
    return _mm512_min_epu16(least, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)));
  }
  static bool bf16_any_below(U least, uint16_t limit) {
    return _mm512_cmplt_epu16_mask(least, _mm512_set1_epi16(static_cast<short>(limit))) != 0;
  }
  static U u_load(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static U u_load16(const uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  // 32 consecutive values as 16 units: neighbours share a unit.
  static U bf16_neighbours(F first, F second) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  }
  // Two rows as 16 units: unit j holds low[j] and high[j].
  static U bf16_pairs(F low, F high) {
    const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, both);
  }
#endif
};

}  // namespace
}  // namespace flash_attention
