// The tile instructions of x86-64 (AMX: amx_tile, amx_bf16) in plain C++, for tests on processors without them. This header
// also says what the operations of amx_tiles.h mean. Whatever a processor refuses, or leaves undefined, ends the program.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tile_config.h"

namespace flash_attention {
namespace {

// Eight registers of a thread, each of up to 16 rows of up to 64 bytes. A configuration gives them their sizes; without one
// there are none. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1 ("Programming with Intel
// AMX") and volume 2 (LDTILECFG, STTILECFG, TILELOADD, TILESTORED, TILEZERO, TILERELEASE, TDPBF16PS).
struct Tiles {
  static constexpr int kCount = 8;
  static constexpr int kMostRows = 16;
  static constexpr int kMostBytes = 64;
  using Config = TileConfig;

  // Gives the registers their sizes and clears them.
  static void load_config(const Config& config) {
    State& s = state();
    s = State{};
    if (config.palette == 0) return;
    require(config.palette == 1, "load_config: unknown palette");
    require(config.start_row == 0, "load_config: restarts are not meant here");
    for (uint8_t byte : config.reserved) require(byte == 0, "load_config: a reserved byte is not 0");
    for (int tile = 0; tile < 16; ++tile) {
      const int rows = config.rows[tile], bytes = config.row_bytes[tile];
      require(tile < kCount || (rows == 0 && bytes == 0), "load_config: there are 8 tiles");
      require(rows <= kMostRows && bytes <= kMostBytes, "load_config: a tile is too large");
      require((rows == 0) == (bytes == 0), "load_config: rows without columns, or the other way round");
    }
    s.config = config;
  }
  // All zeros where there is none.
  static void store_config(Config& config) { config = state().config; }
  // The state of a thread that never had a configuration.
  static void release() { state() = State{}; }

  template <int kTile>
  static void zero() {
    used<kTile>("zero");
    std::memset(state().data[kTile], 0, sizeof(state().data[kTile]));
  }
  // `stride` counts bytes. What lies behind the tile's rows and columns becomes 0.
  template <int kTile>
  static void load(const void* from, ptrdiff_t stride) {
    const Size size = used<kTile>("load");
    zero<kTile>();
    for (int row = 0; row < size.rows; ++row)
      std::memcpy(state().data[kTile][row], static_cast<const char*>(from) + row * stride, size.bytes);
  }
  template <int kTile>
  static void store(void* to, ptrdiff_t stride) {
    const Size size = used<kTile>("store");
    for (int row = 0; row < size.rows; ++row)
      std::memcpy(static_cast<char*>(to) + row * stride, state().data[kTile][row], size.bytes);
  }
  // sum[m][n] += products of the pairs (k) of bfloat16 in left[m][k] and right[k][n]. The first ones of all pairs are
  // summed apart from the second ones, then both together, then `sum`; each step is rounded once to float32. Subnormal
  // numbers, read or calculated, count as 0.
  template <int kSum, int kLeft, int kRight>
  static void dot_bf16() {
    static_assert(kSum != kLeft && kSum != kRight && kLeft != kRight, "the processor refuses a register named twice");
    const Size sum = used<kSum>("dot_bf16"), left = used<kLeft>("dot_bf16"), right = used<kRight>("dot_bf16");
    require(sum.bytes % 4 == 0 && left.bytes % 4 == 0 && right.bytes % 4 == 0, "dot_bf16: half a column");
    require(sum.rows == left.rows && sum.bytes == right.bytes && left.bytes / 4 == right.rows,
            "dot_bf16: sizes do not fit");
    constexpr int kColumns = kMostBytes / 4;
    State& s = state();
    for (int m = 0; m < sum.rows; ++m) {
      float sums[2][kColumns] = {};
      for (int k = 0; k < right.rows; ++k) {
        uint32_t pair;
        std::memcpy(&pair, &s.data[kLeft][m][4 * k], 4);
        const float a[2] = {half(pair << 16), half(pair & 0xFFFF0000u)};
        for (int n = 0; n < kColumns; ++n) {
          uint32_t other;
          std::memcpy(&other, &s.data[kRight][k][4 * n], 4);
          sums[0][n] = added(a[0], half(other << 16), sums[0][n]);
          sums[1][n] = added(a[1], half(other & 0xFFFF0000u), sums[1][n]);
        }
      }
      for (int n = 0; n < kColumns; ++n) {
        float whole;
        std::memcpy(&whole, &s.data[kSum][m][4 * n], 4);
        whole = added(1.0f, added(1.0f, sums[0][n], sums[1][n]), flushed(whole));
        std::memcpy(&s.data[kSum][m][4 * n], &whole, 4);
      }
    }
  }

 private:
  struct State {
    Config config;
    uint8_t data[kCount][kMostRows][kMostBytes];
  };
  struct Size {
    int rows;
    int bytes;
  };
  static State& state() {
    static thread_local State here{};
    return here;
  }
  static void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "tiles: %s\n", what);
    std::abort();
  }
  template <int kTile>
  static Size used(const char* what) {
    static_assert(kTile >= 0 && kTile < kCount, "there are 8 tiles");
    const Config& config = state().config;
    if (config.palette == 0 || config.rows[kTile] == 0) {
      std::fprintf(stderr, "tiles: %s of a tile that has no size\n", what);
      std::abort();
    }
    return {config.rows[kTile], config.row_bytes[kTile]};
  }

  static float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
  static float half(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return flushed(x);
  }
  // a * b + c, rounded once: a has 8 significant bits or is 1, so double precision holds whatever decides the rounding.
  // What would be subnormal after rounding with an unbounded exponent becomes 0.
  static float added(float a, float b, float c) {
    const double exact = static_cast<double>(a) * b + c;
    if (std::fabs(exact) < 0x1p-126 * (1 - 0x1p-25)) return static_cast<float>(std::copysign(0.0, exact));
    return static_cast<float>(exact);
  }
};

}  // namespace
}  // namespace flash_attention
