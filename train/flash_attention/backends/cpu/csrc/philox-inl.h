// Keep decisions of dropout for a row of keys: Philox4x32-10, see flash_attention/dropout/philox.py.
#pragma once

#include <cstdint>

#include "gemm-inl.h"
#include "problem.h"

namespace flash_attention {
namespace {

// Writes `count` words of 32 decisions each, those of the keys from 32 * first_word on; bit set = kept.
inline void philox_keep_words(const Dropout& dropout, int64_t first_word, int64_t count, uint32_t row, uint32_t head,
                              uint32_t batch, uint32_t* words) {
  using U = Simd::U;
  // One call decides eight keys, so four calls make a word.
  for (int64_t call = 0; call < 4 * count; call += kLanes) {
    U c0 = Simd::u_add(Simd::u_set1(static_cast<uint32_t>(4 * first_word + call)), Simd::u_iota());
    U c1 = Simd::u_set1(row), c2 = Simd::u_set1(head), c3 = Simd::u_set1(batch);
    uint32_t key0 = dropout.key[0], key1 = dropout.key[1];
    for (int round = 0; round < 10; ++round) {
      U high0, low0, high2, low2;
      Simd::u_multiply(c0, 0xD2511F53u, high0, low0);
      Simd::u_multiply(c2, 0xCD9E8D57u, high2, low2);
      c0 = Simd::u_xor(Simd::u_xor(high2, c1), Simd::u_set1(key0));
      c1 = low2;
      c2 = Simd::u_xor(Simd::u_xor(high0, c3), Simd::u_set1(key1));
      c3 = low0;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    const U low = Simd::u_or(Simd::u_halves_at_least(c0, dropout.threshold),
                             Simd::u_shift_left<2>(Simd::u_halves_at_least(c1, dropout.threshold)));
    const U high = Simd::u_or(Simd::u_halves_at_least(c2, dropout.threshold),
                              Simd::u_shift_left<2>(Simd::u_halves_at_least(c3, dropout.threshold)));
    uint32_t bytes[kLanes];
    Simd::u_store(bytes, Simd::u_or(low, Simd::u_shift_left<4>(high)));
    for (int lane = 0; lane < kLanes && call + lane < 4 * count; lane += 4)
      words[(call + lane) / 4] = bytes[lane] | bytes[lane + 1] << 8 | bytes[lane + 2] << 16 | bytes[lane + 3] << 24;
  }
}

}  // namespace
}  // namespace flash_attention
