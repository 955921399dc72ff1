// What one attention call is, as every target's kernels see it: sizes, pointers, rules. Plain data, already validated.
#pragma once

#include <cstdint>

// Functions in headers that targets share are always inlined: a copy compiled for a newer processor would be merged with
// the others by the linker, and could run on an older one.
#define FA_INLINE inline __attribute__((always_inline))

namespace flash_attention {

enum class DType : int32_t { kFloat32, kFloat16, kBFloat16, kByte };

FA_INLINE int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return 4;
    case DType::kByte: return 1;
    default: return 2;
  }
}

// This many blocks of a block window, or more, are all of them.
constexpr int64_t kAllBlocks = 65536;

// Positional visibility, the formulas of visibility.Band: the keys that query row i sees are [lo(i), hi(i)).
struct Band {
  int64_t seq_k;
  int64_t offset;  // key position of query row 0
  int64_t causal;
  int64_t left;  // token window, -1 = unlimited
  int64_t right;
  int64_t prev_blocks;
  int64_t next_blocks;
  int64_t block;  // tokens per block, at least 1
  int64_t prefix;  // the keys before it are seen by every row; only without windows

  static FA_INLINE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
  static FA_INLINE int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
  FA_INLINE int64_t block_of(int64_t position) const {
    return position >= 0 ? position / block : -((-position + block - 1) / block);
  }
  FA_INLINE int64_t lo(int64_t row) const {
    const int64_t position = row + offset;
    int64_t result = prev_blocks >= kAllBlocks ? 0 : max(0, (block_of(position) - prev_blocks) * block);
    if (left >= 0) result = max(result, position - left);
    return min(result, seq_k);
  }
  // May be smaller than lo: the row then sees nothing.
  FA_INLINE int64_t hi(int64_t row) const {
    const int64_t position = row + offset;
    int64_t result = seq_k;
    if (next_blocks < kAllBlocks) result = min(result, (block_of(position) + next_blocks + 1) * block);
    if (causal) result = min(result, position + 1);
    if (right >= 0) result = min(result, position + right + 1);
    return max(result, prefix);
  }
};

// Where the rows of a tensor with axes batch, heads, seq and head_dim (or value_dim) are, whatever their order. Strides
// count elements; a row is contiguous.
struct Layout {
  int64_t batch_stride;
  int64_t head_stride;
  int64_t row_stride;

  FA_INLINE int64_t at(int64_t batch, int64_t head, int64_t row) const {
    return batch * batch_stride + head * head_stride + row * row_stride;
  }
};

// An optional tensor that broadcasts to (batch, heads, seq_q, seq_k), where a stride is 0. Its last axis is seq_k long.
struct Broadcast : Layout {
  const void* data;  // null when absent
  DType dtype;
};

// Which tiles of queries see which tiles of keys at all: non-zero = visible. A row of tiles of keys is contiguous.
struct BlockMask : Layout {
  const uint8_t* data;  // null when absent
  int64_t tile;         // tokens of a tile, a multiple of 64

  FA_INLINE bool sees(int64_t batch, int64_t head, int64_t row, int64_t key) const {
    return data[at(batch, head, row / tile) + key / tile] != 0;
  }
  // Whether some row of [row, rows_end) may see some key of [key, keys_end).
  FA_INLINE bool sees_some(int64_t batch, int64_t head, int64_t row, int64_t rows_end, int64_t key, int64_t keys_end) const {
    if (data == nullptr) return true;
    for (int64_t r = row / tile; r * tile < rows_end; ++r)
      for (int64_t k = key / tile; k * tile < keys_end; ++k)
        if (data[at(batch, head, r) + k]) return true;
    return false;
  }
  // Leaves of the keys [key, keys_end) out, at both ends, what no row of [row, rows_end) may see.
  FA_INLINE void narrow_keys(int64_t batch, int64_t head, int64_t row, int64_t rows_end, int64_t& key, int64_t& keys_end) const {
    if (data == nullptr) return;
    while (key < keys_end && !sees_some(batch, head, row, rows_end, key, key + 1)) key = (key / tile + 1) * tile;
    while (keys_end > key && !sees_some(batch, head, row, rows_end, keys_end - 1, keys_end)) keys_end = (keys_end - 1) / tile * tile;
  }
  // How many of the tiles that they are in are visible.
  FA_INLINE int64_t count(int64_t batch, int64_t head, int64_t row, int64_t rows_end, int64_t key, int64_t keys_end) const {
    int64_t result = 0;
    for (int64_t r = row / tile; r * tile < rows_end; ++r)
      for (int64_t k = key / tile; k * tile < keys_end; ++k) result += data[at(batch, head, r) + k] != 0;
    return result;
  }
  // Leaves of the rows [row, rows_end) out, at both ends, what may see no key of [key, keys_end).
  FA_INLINE void narrow_rows(int64_t batch, int64_t head, int64_t& row, int64_t& rows_end, int64_t key, int64_t keys_end) const {
    if (data == nullptr) return;
    while (row < rows_end && !sees_some(batch, head, row, row + 1, key, keys_end)) row = (row / tile + 1) * tile;
    while (rows_end > row && !sees_some(batch, head, rows_end - 1, rows_end, key, keys_end))
      rows_end = (rows_end - 1) / tile * tile;
  }
};

struct Dropout {
  enum Kind : int64_t { kNone = 0, kPhilox = 1, kGiven = 2 };
  int64_t kind;
  const uint8_t* bits;  // kGiven: (batch, heads, seq_q, ceil(seq_k / 8))
  uint32_t key[2];      // kPhilox
  uint32_t threshold;   // of the 16-bit values; kept when not below
  uint32_t batch_offset;
  uint32_t head_offset;
  float scale;  // factor on what is kept
};

struct Problem {
  DType dtype;
  int64_t batch;
  int64_t heads;
  int64_t kv_heads;
  int64_t seq_q;
  int64_t seq_k;
  int64_t head_dim;   // of query and key
  int64_t value_dim;  // of value and output
  double scale;
  float softcap;  // scores become softcap * tanh(score / softcap) before a bias is added; 0 = off
  Band band;  // but for the prefix, see band_of
  Layout query_layout;   // of query and its gradient: batch, heads, seq_q
  Layout output_layout;  // of output and its gradient
  Layout key_layout;     // of key and its gradient: batch, kv_heads, seq_k
  Layout value_layout;   // of value and its gradient
  int64_t lse_stride;   // from one head to the next in the logsumexp and its gradient; rows and heads follow each other
  const void* query;
  const void* key;
  const void* value;
  Broadcast mask;       // non-zero = hidden; kByte
  BlockMask blocks;
  double blocks_share = 1.0;  // of the tiles that are visible
  Broadcast bias;       // added to the scaled scores
  const float* slopes;  // (heads) or (batch, heads): adds -slope * |position of the query - key|; null when absent
  int64_t slope_stride;  // from one item of the batch to the next; 0 when they share the slopes
  Dropout dropout;
  const float* sinks;          // (heads): logits that join every denominator; null when absent
  const int32_t* prefix;       // (batch): of the bands; null when absent
  const int32_t* segments;     // (batch, seq_q): a row sees keys of its own id only, and none if that is negative; or null
  const int32_t* kv_segments;  // (batch, seq_k)

  FA_INLINE Band band_of(int64_t item) const {
    Band result = band;
    if (prefix) result.prefix = prefix[item];
    return result;
  }
  FA_INLINE float slope(int64_t item, int64_t head) const { return slopes[item * slope_stride + head]; }
  FA_INLINE int64_t group() const { return heads / kv_heads; }
  FA_INLINE bool biased() const { return bias.data != nullptr || slopes != nullptr; }
  FA_INLINE bool capped() const { return softcap > 0.0f; }
};

struct ForwardOutputs {
  void* output;           // null = not wanted
  float* logsumexp;       // (batch, heads, lse_stride), the first seq_q of each
  float* rest = nullptr;  // likewise, what float32 rounds off of them; null = not wanted
};

struct BackwardInputs {
  const void* output;
  const float* logsumexp;
  const void* d_output;
  const float* d_logsumexp;  // null = zero
};

struct BackwardOutputs {
  void* d_query;
  void* d_key;
  void* d_value;
  void* d_bias;    // null = not wanted; shape and dtype of the bias, whose strides it shares
  float* d_sinks;  // null without sinks; (heads)
};

}  // namespace flash_attention
