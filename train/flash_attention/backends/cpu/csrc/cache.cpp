// Entry points for caches of keys and values in pages, see arguments.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "arguments.h"
#include "attention.h"

namespace flash_attention {
namespace {

// paged_attention: sizes come from the shapes.
enum PagedParameter {
  kQuery,
  kKeyCache,
  kValueCache,
  kTables,
  kContexts,
  kPagedSinks,
  kPagedConfig,
  kPagedRates,
  kPagedOutput,
  kPagedCount,
};
// (version, left side of the window, kind of the slopes, whether there are sinks, most tokens of a sequence), and
// (scale, rest of the scale, softcap, a slope per head, or one per sequence and head). A most of -1 is none: a sequence
// that goes past the table is an error then. Else it may be longer: the queries of tokens that are not in the cache get
// NaN.
enum PagedConfig { kPagedVersion, kPagedWindow, kPagedSlopes, kPagedHasSinks, kPagedMost, kPagedConfigCount };
enum SlopesKind : int64_t { kNoSlopes = 0, kPerHead = 1, kPerSequence = 2 };
enum PagedRates { kPagedScale, kPagedScaleRest, kPagedSoftcap, kPagedRateCount };

// Bits of NaN in the elements of a row.
void fill_nan(DType dtype, int64_t count, void* row) {
  const uint32_t nan32 = 0x7FC00000;
  const uint16_t nan16 = dtype == DType::kFloat16 ? 0x7E00 : 0x7FC0;
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == DType::kFloat32) {
      std::memcpy(static_cast<char*>(row) + 4 * i, &nan32, 4);
    } else {
      std::memcpy(static_cast<char*>(row) + 2 * i, &nan16, 2);
    }
  }
}

int paged_entry(int count, const Tensors& t) {
  return answer([&] {
    require(count == kPagedCount, kBadCount);
    for (int i = 0; i < kPagedCount; ++i) require(t.present(i), kBadPointer);
    require(t.named(kPagedConfig, "int64") && t.named(kPagedRates, "float32"), kBadDType);
    t.check_shape(kPagedConfig, {kPagedConfigCount});
    const int64_t* config = static_cast<const int64_t*>(t.data[kPagedConfig]);
    const float* rates = static_cast<const float*>(t.data[kPagedRates]);
    require(config[kPagedVersion] == kVersion, kBadConfig);

    // (batch, seq_q, heads, head_dim), or (batch, heads, head_dim) with one query each.
    Problem p{};
    const int rank = t.ranks[kQuery];
    require((rank == 3 || rank == 4) && t.ranks[kKeyCache] == 4 && t.ranks[kValueCache] == 4, kBadShape);
    for (int i : {static_cast<int>(kQuery), static_cast<int>(kKeyCache), static_cast<int>(kValueCache)}) {
      checked_product(t.shape(i), t.ranks[i]);
      require(t.dtype(i) == t.dtype(kQuery), kBadDType);
      t.check_aligned(i, size_of(t.dtype(kQuery)));
    }
    const int64_t *query = t.shape(kQuery), *key = t.shape(kKeyCache), *value = t.shape(kValueCache);
    p.dtype = t.dtype(kQuery);
    require(p.dtype != DType::kByte, kBadDType);
    p.batch = query[0];
    p.seq_q = rank == 4 ? query[1] : 1;
    p.heads = query[rank - 2];
    p.head_dim = in_range(query[rank - 1], 1, kMaxHeadDim);
    const int64_t blocks = key[0], block_size = key[1];
    p.kv_heads = key[2];
    p.value_dim = in_range(value[3], 1, kMaxHeadDim);
    require(p.heads % p.kv_heads == 0 && key[3] == p.head_dim && std::equal(key, key + 3, value), kBadShape);
    p.query_layout = {p.seq_q * p.heads * p.head_dim, p.head_dim, p.heads * p.head_dim};
    p.output_layout = {p.seq_q * p.heads * p.value_dim, p.value_dim, p.heads * p.value_dim};
    p.key_layout = {0, p.head_dim, p.kv_heads * p.head_dim};
    p.value_layout = {0, p.value_dim, p.kv_heads * p.value_dim};
    require(t.ranks[kPagedOutput] == rank && std::equal(query, query + rank - 1, t.shape(kPagedOutput)) &&
                t.shape(kPagedOutput)[rank - 1] == p.value_dim,
            kBadShape);
    require(t.dtype(kPagedOutput) == p.dtype, kBadDType);
    const int64_t slopes = in_range(config[kPagedSlopes], kNoSlopes, kPerSequence);
    t.check_shape(kPagedRates, {kPagedRateCount + (slopes == kPerSequence ? p.batch : 1) * p.heads});
    p.scale = static_cast<double>(rates[kPagedScale]) + rates[kPagedScaleRest];
    p.softcap = rates[kPagedSoftcap];
    require(std::isfinite(p.scale) && std::isfinite(p.softcap) && p.softcap >= 0.0f, kBadValue);
    if (slopes != kNoSlopes) p.slopes = rates + kPagedRateCount;
    if (slopes == kPerSequence) p.slope_stride = p.heads;
    if (in_range(config[kPagedHasSinks], 0, 1)) {
      t.check(kPagedSinks, DType::kFloat32, {p.heads});
      p.sinks = static_cast<const float*>(t.data[kPagedSinks]);
    }
    p.dropout.scale = 1.0f;
    p.query = t.data[kQuery];
    p.key = t.data[kKeyCache];
    p.value = t.data[kValueCache];

    Paging paging{};
    require(t.ranks[kTables] == 2, kBadShape);
    paging.table_width = t.shape(kTables)[1];
    paging.tables = integers(t, kTables, {p.batch, paging.table_width});
    paging.lengths = integers(t, kContexts, {p.batch});
    paging.block_size = block_size;
    paging.key_block = block_size * p.kv_heads * p.head_dim;
    paging.value_block = block_size * p.kv_heads * p.value_dim;
    paging.window_left = in_range(config[kPagedWindow], -1, kMaxSize);
    const int64_t room = paging.table_width * block_size;
    const bool limited = config[kPagedMost] >= 0;
    paging.most = limited ? in_range(config[kPagedMost], 1, room) : room;
    for (int64_t b = 0; b < p.batch; ++b) {
      require(paging.lengths[b] >= 0 && (limited || paging.lengths[b] <= room), kBadTable);
      const int64_t length = std::min<int64_t>(paging.lengths[b], paging.most);
      const int64_t seen_from = paging.lengths[b] - p.seq_q - paging.window_left;
      const int64_t first = paging.window_left < 0 ? 0 : std::max<int64_t>(0, seen_from);
      for (int64_t at = first / block_size; at * block_size < length; ++at) {
        const int32_t block = paging.tables[b * paging.table_width + at];
        require(block >= 0 && block < blocks, kBadTable);
      }
    }
    const int status = forward_paged(p, paging, t.data[kPagedOutput]);
    for (int64_t b = 0; b < p.batch && status == kOk; ++b) {
      const int64_t past = std::clamp<int64_t>(paging.lengths[b] - paging.most, 0, p.seq_q);
      const int64_t row = p.heads * p.value_dim;
      const int64_t first = (b + 1) * p.seq_q - past;
      fill_nan(p.dtype, past * row, static_cast<char*>(t.data[kPagedOutput]) + first * row * size_of(p.dtype));
    }
    return status;
  });
}

// reshape_and_cache: (tokens..., kv_heads, width) into (blocks, block_size, kv_heads, width), in place.
enum CacheParameter { kNewKey, kNewValue, kOldKeys, kOldValues, kSlots, kCacheDone, kCacheCount };

int cache_entry(int count, const Tensors& t) {
  return answer([&] {
    require(count == kCacheCount, kBadCount);
    for (int i = 0; i < kCacheCount; ++i) require(t.present(i), kBadPointer);
    int64_t row_bytes[2], slots = 0;
    const int64_t tokens = checked_product(t.shape(kSlots), t.ranks[kSlots]);
    for (int i = 0; i < 2; ++i) {
      const int from = kNewKey + i, to = kOldKeys + i, rank = t.ranks[from];
      require(rank >= 2 && t.ranks[to] == 4, kBadShape);
      require(t.dtype(from) == t.dtype(to), kBadDType);
      const int64_t* shape = t.shape(to);
      require(t.shape(from)[rank - 2] == shape[2] && t.shape(from)[rank - 1] == shape[3], kBadShape);
      const int64_t row = shape[2] * shape[3];
      require(checked_product(t.shape(from), rank) == tokens * row, kBadShape);
      require(i == 0 || slots == shape[0] * shape[1], kBadShape);
      slots = checked_product(shape, 4) / row;
      row_bytes[i] = row * size_of(t.dtype(to));
    }
    require(t.named(kSlots, "int32"), kBadDType);
    t.check_aligned(kSlots, 4);
    const int32_t* slot = static_cast<const int32_t*>(t.data[kSlots]);
    for (int64_t token = 0; token < tokens; ++token) require(slot[token] < slots, kBadSlot);
    for (int64_t token = 0; token < tokens; ++token)
      for (int i = 0; i < 2 && slot[token] >= 0; ++i)
        std::memcpy(static_cast<char*>(t.data[kOldKeys + i]) + slot[token] * row_bytes[i],
                    static_cast<const char*>(t.data[kNewKey + i]) + token * row_bytes[i], row_bytes[i]);
    std::memcpy(t.data[kCacheDone], slot, sizeof(int32_t));
    return static_cast<int>(kOk);
  });
}

// KVCache.update: (batch, seq, kv_heads, width) behind the tokens of sequences whose blocks a table names, in place.
// Blocks that they need are handed out in the order of the sequences; a negative entry of the table has none yet.
enum AppendParameter {
  kAddedKey,
  kAddedValue,
  kGrownKeys,
  kGrownValues,
  kGrownTables,
  kGrownLengths,
  kUsedBlocks,
  kAppendConfig,
  kAppendedLengths,
  kAppendCount,
};
// (version, most tokens of a sequence, whether tokens past it are an error; else they are left out).
enum AppendConfig { kAppendVersion, kAppendMost, kAppendRefuses, kAppendConfigCount };

int32_t* writable(const Tensors& t, int i, std::initializer_list<int64_t> expected) {
  integers(t, i, expected);
  return static_cast<int32_t*>(t.data[i]);
}

// `complaint` becomes what is wrong with the tokens, and nothing is written.
int append_entry(int count, const Tensors& t, std::string& complaint) {
  return answer([&] {
    require(count == kAppendCount, kBadCount);
    for (int i = 0; i < kAppendCount; ++i) require(t.present(i), kBadPointer);
    require(t.named(kAppendConfig, "int64"), kBadDType);
    t.check_shape(kAppendConfig, {kAppendConfigCount});
    const int64_t* config = static_cast<const int64_t*>(t.data[kAppendConfig]);
    require(config[kAppendVersion] == kVersion, kBadConfig);
    require(t.ranks[kAddedKey] == 4 && t.ranks[kGrownKeys] == 4 && t.ranks[kGrownTables] == 2, kBadShape);
    const int64_t *shape = t.shape(kAddedKey), *stored = t.shape(kGrownKeys);
    const int64_t batch = shape[0], seq = shape[1], heads = shape[2], blocks = stored[0], block_size = stored[1];
    const int64_t width = t.shape(kGrownTables)[1];
    int64_t row_bytes[2];
    for (int i = 0; i < 2; ++i) {
      const int from = kAddedKey + i, to = kGrownKeys + i;
      require(t.ranks[from] == 4 && t.ranks[to] == 4, kBadShape);
      const int64_t size = size_of(t.dtype(kAddedKey)), dim = t.shape(to)[3];
      require(t.dtype(from) == t.dtype(kAddedKey) && t.dtype(to) == t.dtype(kAddedKey), kBadDType);
      t.check_shape(from, {batch, seq, heads, dim});
      t.check_shape(to, {blocks, block_size, heads, dim});
      t.check_aligned(from, size);
      t.check_aligned(to, size);
      checked_product(t.shape(from), 4);
      checked_product(t.shape(to), 4);
      row_bytes[i] = heads * dim * size;
    }
    int32_t* tables = writable(t, kGrownTables, {batch, width});
    int32_t* lengths = writable(t, kGrownLengths, {batch});
    int32_t* used = writable(t, kUsedBlocks, {1});
    int32_t* results = writable(t, kAppendedLengths, {batch});
    const int64_t most = in_range(config[kAppendMost], 1, width * block_size);
    const bool refuses = in_range(config[kAppendRefuses], 0, 1);

    // All checks come before the first change.
    const auto end = [&](int64_t b) { return std::min<int64_t>(lengths[b] + seq, INT32_MAX); };
    const auto needed = [&](int64_t b) { return (std::min(end(b), most) + block_size - 1) / block_size; };
    int64_t wanted = *used;
    require(wanted >= 0, kBadTable);
    for (int64_t b = 0; b < batch; ++b) {
      require(lengths[b] >= 0, kBadTable);
      if (refuses && end(b) > most) {
        complaint = "key: got " + std::to_string(seq) + " tokens, which make a sequence of " + std::to_string(end(b)) +
                    "; max_length is " + std::to_string(most);
        return static_cast<int>(kBadSlot);
      }
      for (int64_t at = 0; at < needed(b); ++at) {
        require(tables[b * width + at] < blocks, kBadTable);
        wanted += tables[b * width + at] < 0;
      }
    }
    if (wanted > std::max<int64_t>(blocks, *used)) {
      complaint = "key: the tokens need " + std::to_string(wanted) + " blocks; num_blocks is " + std::to_string(blocks);
      return static_cast<int>(kBadSlot);
    }
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t at = 0; at < needed(b); ++at)
        if (tables[b * width + at] < 0) tables[b * width + at] = (*used)++;
      for (int64_t token = 0; token < seq && lengths[b] + token < most; ++token) {
        const int64_t position = lengths[b] + token;
        const int64_t slot = tables[b * width + position / block_size] * block_size + position % block_size;
        for (int i = 0; i < 2; ++i)
          std::memcpy(static_cast<char*>(t.data[kGrownKeys + i]) + slot * row_bytes[i],
                      static_cast<const char*>(t.data[kAddedKey + i]) + (b * seq + token) * row_bytes[i], row_bytes[i]);
      }
      lengths[b] = results[b] = static_cast<int32_t>(end(b));
    }
    return static_cast<int>(kOk);
  });
}

}  // namespace
}  // namespace flash_attention

namespace fa = flash_attention;

#pragma GCC visibility push(default)
extern "C" {

int FlashAttentionPaged(FA_PARAMETERS) {
  return fa::or_throw("paged_attention", fa::paged_entry(count, FA_TENSORS));
}
int FlashAttentionReshapeAndCache(FA_PARAMETERS) {
  return fa::or_throw("reshape_and_cache", fa::cache_entry(count, FA_TENSORS));
}
int FlashAttentionCacheAppend(FA_PARAMETERS) {
  std::string complaint;
  const int status = fa::append_entry(count, FA_TENSORS, complaint);
  if (!complaint.empty()) throw std::runtime_error("KVCache: " + complaint);
  return fa::or_throw("KVCache", status);
}

}  // extern "C"
#pragma GCC visibility pop
