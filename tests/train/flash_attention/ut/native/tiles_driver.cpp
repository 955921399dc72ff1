// Tile instructions on what arrives on standard input, or used as the first argument says: by the scalar implementation, or
// with -DINTRINSICS by the processor.
#define FLASH_ATTENTION_TILES
#include <cstdio>
#include <cstring>
#include <string>

#include "kernels.h"
#include "simd/portable.h"
#include "tile_permission.h"
#if defined(INTRINSICS)
#include "simd/amx_tiles.h"
#else
#include "simd/scalar_tiles.h"
#endif
#include "tiles-inl.h"

using namespace flash_attention;

namespace {

Tiles::Config config_of(int rows, int row_bytes) {
  Tiles::Config config{};
  config.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  }
  return config;
}

bool same(const Tiles::Config& one, const Tiles::Config& other) { return std::memcmp(&one, &other, sizeof(one)) == 0; }

// Sums, left and right operands as whole tiles on standard input; the new sums on standard output.
int dot() {
  uint32_t tiles[3][16][16];
  while (std::fread(tiles, sizeof(tiles), 1, stdin) == 1) {
    const TileSession<Tiles> session;
    Tiles::load<0>(tiles[0], 64);
    Tiles::load<4>(tiles[1], 64);
    Tiles::load<6>(tiles[2], 64);
    Tiles::dot_bf16<0, 4, 6>();
    Tiles::store<0>(tiles[0], 64);
    std::fwrite(tiles[0], sizeof(tiles[0]), 1, stdout);
  }
  return 0;
}

// Afterwards somebody else's configuration is there again; without one before, there is none.
int sessions() {
  Tiles::Config found{};
  const Tiles::Config none{}, theirs = config_of(3, 12);
  {
    const TileSession<Tiles> session;
    Tiles::store_config(found);
    if (!same(found, config_of(16, 64))) return 1;
  }
  Tiles::store_config(found);
  if (!same(found, none)) return 2;
  Tiles::load_config(theirs);
  {
    const TileSession<Tiles> session;
    Tiles::store_config(found);
    if (!same(found, config_of(16, 64))) return 3;
  }
  Tiles::store_config(found);
  Tiles::release();
  return same(found, theirs) ? 0 : 4;
}

// A tile smaller than what surrounds it in memory touches nothing else, and is zero behind its own.
int small() {
  uint8_t from[16][64], to[16][64], wide[16][64];
  std::memset(from, 7, sizeof(from));
  std::memset(to, 9, sizeof(to));
  Tiles::load_config(config_of(3, 8));
  Tiles::load<4>(from, 64);
  Tiles::store<4>(to, 64);
  Tiles::zero<4>();
  Tiles::store<4>(wide, 64);
  Tiles::release();
  for (int row = 0; row < 16; ++row)
    for (int byte = 0; byte < 64; ++byte)
      if (to[row][byte] != (row < 3 && byte < 8 ? 7 : 9)) return 1;
  return wide[2][7] == 0 ? 0 : 2;
}

#if !defined(INTRINSICS)
// Misuses that a processor refuses. Returns only if this implementation does not refuse.
int misuse(const std::string& what) {
  Tiles::Config config = config_of(16, 64);
  uint32_t memory[16][16] = {};
  if (what == "none") Tiles::zero<0>();
  if (what == "palette") config.palette = 2;
  if (what == "reserved") config.reserved[5] = 1;
  if (what == "ninth") config.rows[8] = config.row_bytes[8] = 1;
  if (what == "rows") config.rows[3] = 17;
  if (what == "bytes") config.row_bytes[3] = 65;
  if (what == "half") config.rows[3] = 0;
  if (what == "absent") config.rows[0] = config.row_bytes[0] = 0;
  if (what == "sizes") config.rows[6] = 15;
  if (what == "odd") config.row_bytes[0] = config.row_bytes[6] = 62;
  Tiles::load_config(config);
  if (what == "released") Tiles::release();
  Tiles::load<0>(memory, 64);
  Tiles::dot_bf16<0, 4, 6>();
  return 0;
}
#endif

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  if (tiles_missing() != nullptr) return 99;
  if (what == "dot") return dot();
  if (what == "sessions") return sessions();
  if (what == "small") return small();
#if !defined(INTRINSICS)
  return misuse(what);
#endif
  return 98;
}
