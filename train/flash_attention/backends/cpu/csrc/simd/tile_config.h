// The configuration of tile registers, in memory as the processor reads it.
#pragma once

#include <cstdint>

namespace flash_attention {
namespace {

struct TileConfig {
  uint8_t palette;  // 1, or 0 for no tiles
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];  // the last eight of palette 1 must be 0, here and below
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64, "as the processor reads it");

}  // namespace
}  // namespace flash_attention
