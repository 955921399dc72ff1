// AVX2 with FMA and F16C, 8 lanes. See portable.h for the meanings.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "../problem.h"

namespace flash_attention {
namespace {

struct Simd {
  using F = __m256;
  using U = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6;  // eight sums leave gaps in two multiply-add units of a latency of four
  static constexpr int kVectors = 2;
  static constexpr bool kBf16 = false;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fma_constant(F a, F b, const float (&c)[4]) { return fma(a, b, set1(c[0])); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F max_if_positive(F a, F b) {
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  // The instructions give their second operand when one is NaN.
  static F clamp(F a, float limit) { return _mm256_min_ps(set1(limit), _mm256_max_ps(set1(-limit), a)); }
  static F abs(F a) { return _mm256_andnot_ps(set1(-0.0f), a); }
  static F iota() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
  static float sum(F v) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
  }
  static void sums(F a, F b, F c, F d, float* to) {
    const __m256 halves = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }
  static float largest(F v) {
    const __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
  }
  static bool any_greater(F v, float limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(v, set1(limit), _CMP_GT_OQ)) != 0;
  }
  static __m256 lanes_of(uint32_t bits) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane));
  }
  static F select(uint32_t bits, F a, F b) { return _mm256_blendv_ps(b, a, lanes_of(bits)); }
  static F zero_unless(uint32_t bits, F a) { return _mm256_and_ps(lanes_of(bits), a); }
  static F scale_by_power(F p, F z, F t, float limit) {
    const __m256i scaled =
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(z), 23));
    return _mm256_and_ps(_mm256_castsi256_ps(scaled), _mm256_cmp_ps(t, set1(limit), _CMP_NLT_UQ));
  }
  static FA_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static FA_INLINE void prefetch_far(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  static F load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static void store_f16(uint16_t* p, F v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static F load_bf16(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static void store_bf16(uint16_t* p, F v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }

  static void transpose(const uint32_t* src, ptrdiff_t src_stride, uint32_t* dst, ptrdiff_t dst_stride) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(src + i * src_stride));
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
      float* low = reinterpret_cast<float*>(dst + i * dst_stride);
      float* high = reinterpret_cast<float*>(dst + (i + 4) * dst_stride);
      _mm256_storeu_ps(low, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
      _mm256_storeu_ps(high, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
  }

  static F load_quads(const float* p, ptrdiff_t apart) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + apart), 1);
  }
  static void transpose_quads(F (&rows)[4]) {
    const F low01 = _mm256_unpacklo_ps(rows[0], rows[1]), high01 = _mm256_unpackhi_ps(rows[0], rows[1]);
    const F low23 = _mm256_unpacklo_ps(rows[2], rows[3]), high23 = _mm256_unpackhi_ps(rows[2], rows[3]);
    rows[0] = _mm256_shuffle_ps(low01, low23, 0x44);
    rows[1] = _mm256_shuffle_ps(low01, low23, 0xEE);
    rows[2] = _mm256_shuffle_ps(high01, high23, 0x44);
    rows[3] = _mm256_shuffle_ps(high01, high23, 0xEE);
  }

  static uint32_t nonzero_bits(const uint8_t* p) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return ~static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())));
  }

  static U u_set1(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static U u_iota() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static U u_add(U a, U b) { return _mm256_add_epi32(a, b); }
  static U u_xor(U a, U b) { return _mm256_xor_si256(a, b); }
  static U u_or(U a, U b) { return _mm256_or_si256(a, b); }
  template <int kCount>
  static U u_shift_left(U a) { return _mm256_slli_epi32(a, kCount); }
  static void u_store(uint32_t* p, U v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static void u_multiply(U a, uint32_t factor, U& high, U& low) {
    const __m256i f = u_set1(factor);
    const __m256i even = _mm256_mul_epu32(a, f);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), f);
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  }
  static U u_halves_at_least(U v, uint32_t threshold) {
    const __m256i limit = _mm256_set1_epi16(static_cast<short>(threshold));
    const __m256i kept = _mm256_and_si256(_mm256_cmpeq_epi16(_mm256_max_epu16(v, limit), v),
                                          _mm256_set1_epi32(0x00020001));
    return _mm256_and_si256(_mm256_or_si256(kept, _mm256_srli_epi32(kept, 16)), _mm256_set1_epi32(3));
  }
};

}  // namespace
}  // namespace flash_attention
