// Few queries against many keys by tile instructions: keys are the left operand, straight from memory where they lie in
// whole tiles, and the queries of a group the right one. Chunks, parts and their merging are those of decode-inl.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "decode-inl.h"
#include "tiles-inl.h"

namespace flash_attention {
namespace {

constexpr int64_t kLeastTileQueries = 9;

template <class Math>
struct TileDecodeTask : DecodeTask {
  using Exact = typename CarefulOf<Math>::Type;
  // In whole tiles: rows, and units of a row of query and key.
  int64_t padded, units;
  int64_t key_row_stride, value_row_stride, value_stacked_stride, part_width;
  uint32_t* query_rows_;   // [row][key_row_stride]
  uint32_t* queries;       // [unit][padded]
  uint32_t* key_rows_;     // [key][key_row_stride]: copies
  uint32_t* value_rows_;   // [key][value_row_stride]: copies
  uint32_t* value_stacked;
  uint32_t* probability;   // [row][kTileSide]: two keys in a unit
  float* products_by_key;  // [key][padded]
  float* sums;             // [row][part_width], as the parts of the plan
  float* pack;             // scratch of one row
  NonFinite nonfinite;

  // With fewer queries the time goes into memory, and float32 needs no packing of values. The heads of a group do not count:
  // what a head comes to does not depend on how many share its keys.
  static bool pays(const Problem& p) { return p.seq_q >= kLeastTileQueries; }

  TileDecodeTask(const DecodePlan& all, Arena& arena) : DecodeTask(all, arena) {
    padded = round_up(rows, kTileSide);
    units = Pack<Math>::units(p.head_dim);
    key_row_stride = Pack<Math>::row_stride(p.head_dim);
    value_row_stride = Pack<Math>::row_stride(p.value_dim);
    value_stacked_stride = Pack<Math>::stacked_stride(p.value_dim);
    part_width = plan.part_width;
    query_rows_ = arena.take<uint32_t>(padded * key_row_stride);
    queries = arena.take<uint32_t>(units * padded);
    key_rows_ = arena.take<uint32_t>(kDecodeTile * key_row_stride);
    value_rows_ = arena.take<uint32_t>(kDecodeTile * value_row_stride);
    value_stacked = arena.take<uint32_t>(kDecodeTile / 2 * value_stacked_stride);
    probability = arena.take<uint32_t>(padded * kTileSide);
    products_by_key = arena.take<float>(kDecodeTile * padded);
    sums = arena.take<float>(padded * part_width);
    score = arena.take<float>(padded * kDecodeTile);
    pack = arena.take<float>(round_up(p.value_dim, kLanes));
  }

  void run(int64_t batch_index, int64_t kv_head, int64_t chunk) {
    std::memset(sums, 0, padded * part_width * sizeof(float));
    std::memset(probability, 0, padded * kTileSide * sizeof(uint32_t));
    const auto [first_key, last_key] = start(batch_index, kv_head, chunk, sums);
    const bool tiny_queries = pack_queries(kv_head);
    const DecodeRows keys(plan, p.key, p.key_layout, plan.key_block, p.head_dim, batch, kv_head);
    const DecodeRows values(plan, p.value, p.value_layout, plan.value_block, p.value_dim, batch, kv_head);
    for (int64_t first = first_key / kDecodeTile * kDecodeTile; first < last_key; first += kDecodeTile) {
      const uint32_t any = look(kv_head, first);
      if (any == 0) continue;
      const int64_t from = first + first_of(any), to = first + end_of(any);
      values.prefetch(p.dtype, from, to - from);
      const Rows key_tile = gathered(keys, first, from, to, key_rows_, key_row_stride, true);
      const bool tiny_keys = tiny_queries || Tiny<Simd>::any(key_tile, kDecodeTile);
      tiny_keys ? multiply_keys<Exact>(key_tile) : multiply_keys<Math>(key_tile);
      for (int64_t row = 0; row < rows; ++row)
        soften(row, kv_head * p.group() + row / p.seq_q, first, sums + row * part_width);
      fetch_after(first, last_key, keys);
      const Rows value_tile = gathered(values, first, from, to, value_rows_, value_row_stride, false);
      Pack<Math>::stacked(value_tile, kDecodeTile, kDecodeTile, value_stacked);
      const bool careful = !all_finite(value_tile);
      if (careful) nonfinite.template clear<Math>(value_tile, kDecodeTile, value_stacked, pack);
      careful || Tiny<Simd>::any(value_tile, kDecodeTile) ? add_values<Exact>() : add_values<Math>();
      if (careful) add_nonfinite();
    }
    float* parts = plan.part(batch, kv_head, chunk);
    std::memcpy(parts, sums, rows * part_width * sizeof(float));
  }

 private:
  // True when there are tiny numbers among them.
  bool pack_queries(int64_t kv_head) {
    bool tiny = false;
    for (int64_t row = 0; row < padded; ++row) {
      const int64_t head = kv_head * p.group() + row / p.seq_q;
      const bool exists = row < rows;
      const Rows from = query_rows(p, p.query, batch, exists ? head : 0, exists ? row % p.seq_q : 0);
      Pack<Math>::rows(from, exists ? 1 : 0, 1, query_rows_ + row * key_row_stride);
      tiny = tiny || (exists && Tiny<Simd>::any(from, 1));
    }
    for (int64_t row = 0; row < padded; row += kTileSide)
      for (int64_t unit = 0; unit < units; unit += kTileSide)
        transpose_tile(query_rows_ + row * key_row_stride + unit, key_row_stride, queries + unit * padded + row, padded);
    return tiny;
  }

  // kDecodeTile rows from key `first` on: where they lie, or copies with zeros in the place of those out of [from, to),
  // which may not exist. Tiles read whole units of 32 columns of what is not copied.
  Rows gathered(const DecodeRows& of, int64_t first, int64_t from, int64_t to, uint32_t* copies, int64_t stride,
                bool by_tiles) const {
    const bool together = of.blocks == nullptr || of.block_size % kDecodeTile == 0;
    const bool whole = !by_tiles || (of.width % kTileBlock == 0 && of.row_bytes % 4 == 0);
    if (together && whole && from == first && to == first + kDecodeTile)
      return {p.dtype, of.row(first), of.row_bytes, of.width};
    for (int64_t key = first; key < first + kDecodeTile; ++key) {
      const bool exists = from <= key && key < to;
      const Rows row{p.dtype, exists ? of.row(key) : nullptr, 0, of.width};
      Pack<Math>::rows(row, exists ? 1 : 0, 1, copies + (key - first) * stride);
    }
    return {p.dtype, reinterpret_cast<const char*>(copies), stride * 4, of.width};
  }

  template <class Arithmetic>
  void multiply_keys(const Rows& keys) const {
    const uint32_t* const left = reinterpret_cast<const uint32_t*>(keys.data);
    Arithmetic::template multiply<true>({left, keys.stride / 4, queries, padded, units, products_by_key, padded},
                                        kDecodeTile, padded);
    const uint32_t* const products = reinterpret_cast<const uint32_t*>(products_by_key);
    for (int64_t row = 0; row < padded; row += kTileSide)
      for (int64_t key = 0; key < kDecodeTile; key += kTileSide)
        transpose_tile(products + key * padded + row, padded,
                       reinterpret_cast<uint32_t*>(score) + row * kDecodeTile + key, kDecodeTile);
  }

  template <class Arithmetic>
  void add_values() const {
    for (int64_t row = 0; row < rows; ++row) {
      F values[kVectors];
      for (int n = 0; n < kVectors; ++n) values[n] = Simd::load(score + row * kDecodeTile + n * kLanes);
      Arithmetic::store(probability + row * kTileSide, values);
    }
    Arithmetic::template multiply<false>(
        {probability, kTileSide, value_stacked, value_stacked_stride, kTileSide, sums, part_width}, padded, p.value_dim);
  }

  static bool all_finite(const Rows& values) {
    F sum = Simd::zero();
    for (int64_t key = 0; key < kDecodeTile; ++key) {
      const uint16_t* row = reinterpret_cast<const uint16_t*>(values.row(key));
      int64_t d = 0;
      for (; d + kLanes <= values.columns; d += kLanes) sum = Simd::fma(Simd::load_bf16(row + d), Simd::zero(), sum);
      uint16_t rest[kLanes] = {};
      std::memcpy(rest, row + d, (values.columns - d) * sizeof(uint16_t));
      sum = Simd::fma(Simd::load_bf16(rest), Simd::zero(), sum);
    }
    return Simd::sum(sum) == 0.0f;
  }

  void add_nonfinite() const {
    nonfinite.each([&](int64_t index, const auto& add) {
      for (int64_t row = 0; row < rows; ++row)
        if (seen[row] >> index & 1)
          add(Math::value(probability + row * kTileSide, index), sums + row * part_width);
    });
  }
};

template <class Math>
int64_t tile_decode_scratch(const DecodePlan& plan) {
  Arena arena(nullptr);
  TileDecodeTask<Math>(plan, arena);
  return arena.used();
}

template <class Math>
void tile_decode_task(const DecodePlan& plan, int64_t batch, int64_t kv_head, int64_t chunk, char* scratch) {
  const typename Math::Session session;
  Arena arena(scratch);
  TileDecodeTask<Math>(plan, arena).run(batch, kv_head, chunk);
}

}  // namespace
}  // namespace flash_attention
