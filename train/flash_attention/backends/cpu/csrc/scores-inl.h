// What stands between the products: which scores of a pair of tiles are visible, the bias, dropout's decisions, and the
// exponent of a score.
#pragma once

#include <cfloat>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "exp2-inl.h"
#include "kernels.h"
#include "pack-inl.h"
#include "philox-inl.h"
#include "problem.h"

namespace flash_attention {
namespace {

// Keys of a tile: whole strips of the micro-kernel, and whole words of bits. The grid starts at key 0.
constexpr int64_t kKeyTile = kMostTile / std::lcm(32, kRows) * std::lcm(32, kRows);
constexpr int64_t kWords = kKeyTile / 32;    // words of bits per row of a tile
// Whether strips of `strip` rows or keys lie in one tile of a block mask each.
constexpr bool fills_words(int64_t strip) { return 32 % strip == 0; }
constexpr int64_t kPanels = kKeyTile / kPanel;
constexpr int64_t kQueryRows = kKeyTile;      // query rows of the largest tile
constexpr float kInfinity = __builtin_inff();

// Bump allocator; with base null it only measures.
class Arena {
 public:
  explicit Arena(char* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    T* result = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return result;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// From one part of a row of probabilities or score gradients to the next, in units: as many as a tile has.
template <class Math>
constexpr int64_t kNextPart = kKeyTile / Math::kPerUnit;
static_assert(kKeyTile == kQueryRows, "they are summed over keys, or over query rows");

// Clears a panel of such a row.
template <class Math>
void clear_panel(typename Math::Unit* row) {
  for (int part = 0; part < Math::kParts; ++part)
    std::memset(row + part * kNextPart<Math>, 0, kPanel / Math::kPerUnit * sizeof(typename Math::Unit));
}

// The query rows of a tile with the interval of keys that each sees. Rows from `count` to `padded` do not exist: the
// products compute them, nobody reads them.
struct QueryTile {
  int64_t first;
  int64_t count;
  int64_t padded;
  int64_t lo[kQueryRows];
  int64_t hi[kQueryRows];

  void set(const Band& band, int64_t first_row, int64_t rows, int64_t strip) {
    first = first_row;
    count = rows;
    padded = round_up(rows, strip);
    const int64_t last = first + rows - 1;
    lo[0] = band.lo(first);
    hi[0] = band.hi(first);
    const bool same = band.lo(last) == lo[0] && band.hi(last) == hi[0];
    for (int64_t m = 1; m < padded; ++m) {
      lo[m] = same ? lo[0] : band.lo(Band::min(first + m, last));
      hi[m] = same ? hi[0] : band.hi(Band::min(first + m, last));
    }
  }
  // Both ends never decrease from row to row.
  int64_t union_lo() const { return lo[0]; }
  int64_t union_hi() const { return hi[padded - 1]; }
};

// Keys [first, first + count) of the key tile `index`.
struct KeyTile {
  int64_t index;
  int64_t first;
  int64_t count;

  KeyTile(int64_t tile, int64_t seq_k)
      : index(tile), first(tile * kKeyTile), count(seq_k - first < kKeyTile ? seq_k - first : kKeyTile) {}
  // An absolute key as a column of the tile, limited to the tile.
  int64_t column(int64_t key) const { return key < first ? 0 : key - first > count ? count : key - first; }
};

// kPerScore: a tensor; one bias for each key is one with a row stride of 0. kCapped: a soft cap, and whatever bias there is.
enum class Bias { kNone, kPerScore, kAlibi, kCapped };

// Which of 32 keys from `from` on a row of a mask, `count` keys long, shows.
inline uint32_t visible_word(const uint8_t* row, int64_t from, int64_t count) {
  if (from + 32 <= count) return ~Simd::nonzero_bits(row + from);
  if (from >= count) return 0;
  uint8_t rest[32];
  std::memset(rest, 1, sizeof(rest));
  std::memcpy(rest, row + from, count - from);
  return ~Simd::nonzero_bits(rest);
}

// Bits, bias and dropout of one (query tile, key tile) pair of one head.
struct PairInputs {
  uint32_t* visible;  // [row][kWords] from the explicit mask and the segments
  uint32_t* keep;     // [row][kWords] from dropout
  float* bias;        // [row or 1][bias_stride] in float32
  bool masked;
  // By the block mask: a bit for each 32 keys of the tile that rows before `second_block`, and rows from it on, may see.
  uint32_t block_words[2];
  int64_t second_block;
  int64_t bias_stride;  // 0 when all rows share one
  float slope;
  int64_t position;  // key position of the tile's first query row

  static constexpr int64_t kBiasStride = kKeyTile + 16;
  static constexpr uint32_t kAllWords = (1u << kWords) - 1;

  void allocate(Arena& arena, const Problem& p, int64_t rows) {
    visible = p.mask.data || p.segments ? arena.take<uint32_t>(rows * kWords) : nullptr;
    keep = p.dropout.kind != Dropout::kNone ? arena.take<uint32_t>(rows * kWords) : nullptr;
    bias = p.bias.data ? arena.take<float>(rows * kBiasStride) : p.capped() ? arena.take<float>(kBiasStride) : nullptr;
  }

  // Reads the block mask, the segments and the explicit mask. False when one of them hides the whole pair.
  bool load_mask(const Problem& p, int64_t batch, int64_t head, const QueryTile& q, const KeyTile& k) {
    masked = false;
    block_words[0] = block_words[1] = kAllWords;
    second_block = kQueryRows;
    if (p.blocks.data && !load_blocks(p, batch, head, q, k)) return false;
    if (p.segments && !load_segments(p, batch, q, k)) return false;
    if (!p.mask.data) return true;
    uint32_t any = 0;
    const uint8_t* base = static_cast<const uint8_t*>(p.mask.data);
    for (int64_t m = 0; m < q.count; ++m) {
      const uint8_t* row = base + p.mask.at(batch, head, q.first + m) + k.first;
      uint32_t* words = visible + m * kWords;
      for (int64_t w = 0; w < kWords; ++w) {
        const uint32_t shown = visible_word(row, 32 * w, k.count);
        any |= words[w] = masked ? words[w] & shown : shown;
      }
    }
    masked = true;
    return any != 0;
  }

  // The columns that the block mask leaves to some row of [first, last]: from the first on, and to the one behind the last.
  void narrow(int64_t first, int64_t last, int64_t& from, int64_t& to) const {
    const uint32_t words = (first < second_block ? block_words[0] : 0) | (last >= second_block ? block_words[1] : 0);
    if (words == kAllWords) return;
    from = words == 0 ? 0 : Band::max(from, 32 * __builtin_ctz(words));
    to = words == 0 ? 0 : Band::min(to, 32 * (32 - __builtin_clz(words)));
  }
  // Whether the block mask leaves a column to a row. It says the same of 32 rows and 32 columns.
  bool may_see(int64_t row, int64_t column) const { return block_words[row >= second_block] >> (column / 32) & 1; }
  // Whether it leaves a column to a row of the strip of kRows rows from `strip` on.
  bool may_see_strip(int64_t strip, int64_t column) const {
    return may_see(strip, column) || (!fills_words(kRows) && may_see(strip + kRows - 1, column));
  }
  // The rows of `count` to which the block mask leaves some column of `words`: from the first on, and to the one behind the
  // last.
  int64_t first_row(uint32_t words = kAllWords) const { return block_words[0] & words ? 0 : second_block; }
  int64_t rows_end(int64_t count, uint32_t words = kAllWords) const {
    return block_words[1] & words ? count : block_words[0] & words ? Band::min(count, second_block) : 0;
  }

  void load_rest(const Problem& p, int64_t batch, int64_t head, const QueryTile& q, const KeyTile& k) {
    if (keep) load_keep(p, batch, head, q, k);
    if (p.bias.data) load_bias(p, batch, head, q, k);
    slope = p.slopes ? p.slope(batch, head) : 0.0f;
    position = q.first + p.band.offset;
    if (p.capped() && !p.bias.data) {
      bias_stride = 0;
      std::memset(bias, 0, kBiasStride * sizeof(float));
    }
  }

 private:
  struct Range {
    int32_t least = INT32_MAX, largest = INT32_MIN;
    Range(const int32_t* ids, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        least = ids[i] < least ? ids[i] : least;
        largest = ids[i] > largest ? ids[i] : largest;
      }
    }
  };

  // False when the block mask hides the whole pair. The rows are in one block or two.
  bool load_blocks(const Problem& p, int64_t batch, int64_t head, const QueryTile& q, const KeyTile& k) {
    const int64_t tile = p.blocks.tile, first = q.first / tile;
    second_block = Band::min(q.count, (first + 1) * tile - q.first);
    const int sides = second_block < q.count ? 2 : 1;
    block_words[0] = block_words[1] = 0;
    for (int64_t column = k.first / tile; column * tile < k.first + k.count; ++column) {
      const int64_t from = k.column(column * tile), to = k.column((column + 1) * tile);
      const uint32_t words = (1u << ((to + 31) / 32)) - (1u << (from / 32));
      for (int side = 0; side < sides; ++side)
        if (p.blocks.data[p.blocks.at(batch, head, first + side) + column]) block_words[side] |= words;
    }
    if (sides == 1) block_words[1] = block_words[0];
    return (block_words[0] | block_words[1]) != 0;
  }

  // False when no id is of both. Sets `masked` and the words of the rows, unless all ids are the same.
  bool load_segments(const Problem& p, int64_t batch, const QueryTile& q, const KeyTile& k) {
    const int32_t* rows = p.segments + batch * p.seq_q + q.first;
    const int32_t* keys = p.kv_segments + batch * p.seq_k + k.first;
    const Range of_rows(rows, q.count), of_keys(keys, k.count);
    if (of_rows.largest < 0 || of_rows.largest < of_keys.least || of_keys.largest < of_rows.least) return false;
    const bool same = of_rows.least == of_keys.largest && of_keys.least == of_rows.largest;
    if (same) return true;
    masked = true;
    uint32_t any = 0;
    for (int64_t m = 0; m < q.count; ++m) {
      uint32_t* words = visible + m * kWords;
      if (m > 0 && rows[m] == rows[m - 1]) {  // as good as always
        std::memcpy(words, words - kWords, kWords * sizeof(uint32_t));
        continue;
      }
      std::memset(words, 0, kWords * sizeof(uint32_t));
      for (int64_t c = 0; rows[m] >= 0 && c < k.count; ++c)
        words[c / 32] |= static_cast<uint32_t>(keys[c] == rows[m]) << (c % 32);
      for (int64_t w = 0; w < kWords; ++w) any |= words[w];
    }
    return any != 0;
  }

  void load_keep(const Problem& p, int64_t batch, int64_t head, const QueryTile& q, const KeyTile& k) {
    const Dropout& d = p.dropout;
    const int64_t words = (k.count + 31) / 32;
    for (int64_t m = 0; m < q.count; ++m) {
      uint32_t* row = keep + m * kWords;
      if (d.kind == Dropout::kPhilox) {
        philox_keep_words(d, k.first / 32, words, static_cast<uint32_t>(q.first + m),
                          d.head_offset + static_cast<uint32_t>(head), d.batch_offset + static_cast<uint32_t>(batch),
                          row);
      } else {
        const int64_t bytes = (p.seq_k + 7) / 8;
        const uint8_t* bits = d.bits + ((batch * p.heads + head) * p.seq_q + q.first + m) * bytes + k.first / 8;
        for (int64_t w = 0; w < words; ++w) {
          row[w] = 0;
          for (int64_t i = 0; i < 4 && 32 * w + 8 * i < k.count; ++i)
            row[w] |= static_cast<uint32_t>(bits[4 * w + i]) << (8 * i);
        }
      }
      for (int64_t w = words; w < kWords; ++w) row[w] = 0;
    }
    std::memset(keep + q.count * kWords, 0, (q.padded - q.count) * kWords * sizeof(uint32_t));
  }

  void load_bias(const Problem& p, int64_t batch, int64_t head, const QueryTile& q, const KeyTile& k) {
    const char* base = static_cast<const char*>(p.bias.data);
    const int64_t size = size_of(p.bias.dtype);
    const bool same = p.bias.row_stride == 0;
    bias_stride = same ? 0 : kBiasStride;
    const int64_t rows = same ? 1 : q.padded;
    for (int64_t m = 0; m < rows; ++m) {
      float* row = bias + m * kBiasStride;
      int64_t filled = 0;
      if (m < q.count) {
        load_row(p.bias.dtype, base + (p.bias.at(batch, head, q.first + m) + k.first) * size, k.count, row);
        filled = round_up(k.count, kLanes);
      }
      std::memset(row + filled, 0, (kKeyTile - filled) * sizeof(float));
    }
  }
};

// Whether row m of the tile sees column `column` of the key tile.
inline bool sees(const QueryTile& q, const KeyTile& k, const PairInputs& inputs, int64_t m, int64_t column) {
  const int64_t key = k.first + column;
  if (key < q.lo[m] || key >= q.hi[m] || !inputs.may_see(m, column)) return false;
  return !inputs.masked || (inputs.visible[m * kWords + column / 32] >> (column % 32) & 1);
}

enum class Visibility { kHidden, kPartial, kFull };

// Visibility of a cell: kRows rows from `strip`, kPanel keys from column `panel` of the key tile. bits[] is filled for
// kPartial: bit c of bits[m] set when row strip + m sees column panel + c.
inline Visibility visibility_of(const QueryTile& q, const KeyTile& k, const PairInputs& inputs, int64_t strip, int64_t panel,
                                uint32_t (&bits)[kRows]) {
  const int64_t first = k.first + panel, last = first + kPanel;
  const int64_t end = strip + kRows - 1;
  if (first >= q.hi[end] || last <= q.lo[strip]) return Visibility::kHidden;
  // Rows that do not exist see nothing, or what a key holds would reach the sums through them.
  const bool apart = !fills_words(kRows) && inputs.may_see(strip, panel) != inputs.may_see(end, panel);
  const bool inside = !apart && end < q.count && first >= q.lo[end] && last <= q.hi[strip];
  if (inside && !inputs.masked) return Visibility::kFull;
  constexpr uint32_t kAll = static_cast<uint32_t>((uint64_t{1} << kPanel) - 1);
  uint32_t any = 0, all = kAll;
  for (int64_t m = 0; m < kRows; ++m) {
    bits[m] = 0;
    if (strip + m >= q.count) continue;
    const int64_t lo = q.lo[strip + m] - first, hi = q.hi[strip + m] - first;
    if (hi <= 0 || lo >= kPanel || hi <= lo) {
      all = 0;
      continue;
    }
    bits[m] = kAll;
    if (lo > 0) bits[m] &= kAll << lo;
    if (hi < kPanel) bits[m] &= ~(~uint32_t{0} << hi);
    if (apart && !inputs.may_see(strip + m, panel)) bits[m] = 0;
    if (inputs.masked) bits[m] &= inputs.visible[(strip + m) * kWords + panel / 32] >> (panel % 32);
    any |= bits[m];
    all &= bits[m];
  }
  return any == 0 ? Visibility::kHidden : all == kAll ? Visibility::kFull : Visibility::kPartial;
}

// The cells of a pair of tiles in the order of work: panel by panel up to the column `last`, all rows of each.
struct CellOrder {
  const QueryTile* q;
  const KeyTile* k;
  const PairInputs* inputs;
  int64_t last;

  // Goes on to the next `rows` rows and panel that may hold something visible. False behind the last.
  bool next(int64_t rows, int64_t& strip, int64_t& panel) const {
    do {
      strip += rows;
      if (strip >= q->padded) {
        strip = 0;
        panel += kPanel;
      }
      if (panel >= last) return false;
    } while (k->first + panel >= q->hi[strip + rows - 1] || k->first + panel + kPanel <= q->lo[strip] ||
             !inputs->may_see(strip, panel));
    return true;
  }
};

// Which keys of a tile each strip of kStrip rows takes in the products that sum over keys.
template <class Math>
struct StripSteps {
  int64_t from[kQueryRows / Math::kStrip];   // the first, in units
  int64_t count[kQueryRows / Math::kStrip];  // in units; 0 where nothing is visible
  int64_t cells;  // how many cells and panels of `width` columns there are, and 1

  void set(const QueryTile& q, const KeyTile& k, const PairInputs& inputs, int64_t width) {
    constexpr int64_t kStep = Math::kPerUnit * Math::kWhole;
    cells = 1;
    for (int64_t strip = 0; strip < q.padded; strip += Math::kStrip) {
      int64_t first = k.column(q.lo[strip]), end = k.column(q.hi[strip + Math::kStrip - 1]);
      inputs.narrow(strip, strip + Math::kStrip - 1, first, end);
      const int64_t unit = first / kStep * Math::kWhole, units = round_up(end, kStep) / Math::kPerUnit - unit;
      from[strip / Math::kStrip] = unit;
      count[strip / Math::kStrip] = units > 0 ? units : 0;
      if (units > 0)
        cells += Math::kStrip / kRows * ((end + kPanel - 1) / kPanel - first / kPanel) + (width + kPanel - 1) / kPanel;
    }
  }
};

// How a product of query and key becomes an exponent of 2. Scores are kept in the domain where this is cheapest:
// base-2 logarithms without a bias, natural ones with, and with a soft cap.
struct ScoreRule {
  float factor;       // product to score, or to what a soft cap takes tanh of
  float softcap;
  float to_base2;     // score difference to exponent of 2
  double to_natural;  // score to natural logarithm

  explicit ScoreRule(const Problem& p) {
    const bool biased = p.biased() || p.capped();
    factor = static_cast<float>(biased ? p.scale : p.scale / kLn2);
    softcap = p.softcap;
    if (p.capped()) {
      const double argument = p.scale / p.softcap;
      factor = static_cast<float>(argument > FLT_MAX ? FLT_MAX : argument < -FLT_MAX ? -FLT_MAX : argument);
    }
    to_base2 = biased ? static_cast<float>(1 / kLn2) : 1.0f;
    // The factor is rounded; this takes the error out of the logsumexp again.
    to_natural = biased ? 1.0 : factor == 0.0f ? kLn2 : p.scale / factor;
  }
};

// What `score` takes: the product, or with a soft cap its tanh.
template <Bias kBias>
FA_INLINE F squashed(F product, const ScoreRule& rule) {
  return kBias == Bias::kCapped ? tanh(Simd::mul(product, Simd::set1(rule.factor))) : product;
}

// Score of vector n of a cell's row m; `cell_bias` is the bias at the cell's first row and column, `distance` the key
// minus the query position there.
template <Bias kBias>
FA_INLINE F score(F product, const ScoreRule& rule, const PairInputs& inputs, const float* cell_bias, float distance, int m,
                  int n) {
  const F factor = Simd::set1(kBias == Bias::kCapped ? rule.softcap : rule.factor);
  if (kBias == Bias::kNone) return Simd::mul(product, factor);
  const F bias = kBias == Bias::kAlibi ? Simd::zero() : Simd::load(cell_bias + m * inputs.bias_stride + n * kLanes);
  if (kBias == Bias::kPerScore) return Simd::fma(product, factor, bias);
  const F apart = Simd::abs(Simd::add(Simd::iota(), Simd::set1(distance + static_cast<float>(n * kLanes - m))));
  const F slope = Simd::set1(-inputs.slope);
  return Simd::fma(product, factor, kBias == Bias::kAlibi ? Simd::mul(apart, slope) : Simd::fma(apart, slope, bias));
}

// shift = -(reference): the running maximum forward, the logsumexp backward, of which `rest` is what float32 rounds off.
template <Bias kBias>
FA_INLINE F exponent(F score, F shift, float to_base2, F rest) {
  const F difference = Simd::add(score, shift);
  return kBias == Bias::kNone ? Simd::add(difference, rest) : Simd::fma(difference, Simd::set1(to_base2), rest);
}
template <Bias kBias>
FA_INLINE F exponent(F score, F shift, float to_base2) {
  const F difference = Simd::add(score, shift);
  return kBias == Bias::kNone ? difference : Simd::fma(difference, Simd::set1(to_base2), Simd::zero());
}

}  // namespace
}  // namespace flash_attention
