// The tile instructions of x86-64 (AMX: amx_tile, amx_bf16). See scalar_tiles.h for the meanings.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "../problem.h"
#include "tile_config.h"

namespace flash_attention {
namespace {

// GCC's intrinsics take numbers of tiles as text, and do not say that memory is read, or how much of it is written.
#define FA_EACH_TILE(index, call) \
  do {                            \
    if (index == 0) call(0);      \
    if (index == 1) call(1);      \
    if (index == 2) call(2);      \
    if (index == 3) call(3);      \
    if (index == 4) call(4);      \
    if (index == 5) call(5);      \
    if (index == 6) call(6);      \
    if (index == 7) call(7);      \
  } while (false)

struct Tiles {
  static constexpr int kMostRows = 16;
  static constexpr int kMostBytes = 64;
  using Config = TileConfig;

  static FA_INLINE void load_config(const Config& config) {
    finish_memory();
    _tile_loadconfig(&config);
  }
  static FA_INLINE void store_config(Config& config) {
    _tile_storeconfig(&config);
    finish_memory();
  }
  static FA_INLINE void release() { _tile_release(); }

  template <int kTile>
  static FA_INLINE void zero() {
#define FA_ZERO(tile) _tile_zero(tile)
    FA_EACH_TILE(kTile, FA_ZERO);
#undef FA_ZERO
  }
  template <int kTile>
  static FA_INLINE void load(const void* from, ptrdiff_t stride) {
    finish_memory();
#define FA_LOAD(tile) _tile_loadd(tile, from, stride)
    FA_EACH_TILE(kTile, FA_LOAD);
#undef FA_LOAD
  }
  template <int kTile>
  static FA_INLINE void store(void* to, ptrdiff_t stride) {
#define FA_STORE(tile) _tile_stored(tile, to, stride)
    FA_EACH_TILE(kTile, FA_STORE);
#undef FA_STORE
    finish_memory();
  }
  // Those that products of two by two tiles need: sums in 0 to 3, left operands in 4 and 5, right ones in 6 and 7.
  template <int kSum, int kLeft, int kRight>
  static FA_INLINE void dot_bf16() {
    static_assert(kSum == 2 * (kLeft - 4) + (kRight - 6) && kSum >= 0 && kSum < 4, "no such product");
    if (kSum == 0) _tile_dpbf16ps(0, 4, 6);
    if (kSum == 1) _tile_dpbf16ps(1, 4, 7);
    if (kSum == 2) _tile_dpbf16ps(2, 5, 6);
    if (kSum == 3) _tile_dpbf16ps(3, 5, 7);
  }

 private:
  // What the program has written is in memory, and is read from there again.
  static FA_INLINE void finish_memory() { asm volatile("" : : : "memory"); }
};

#undef FA_EACH_TILE

}  // namespace
}  // namespace flash_attention
