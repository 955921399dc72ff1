// Entry points for caches of keys and values in pages, see arguments.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

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
  kFirstKeys,
  kPagedSinks,
  kPagedConfig,
  kPagedRates,
  kPagedOutput,
  kPagedCount,
  kPagedLogsumexp = kPagedCount,  // of an entry point of its own
};
// (version, causal, left and right side of the window, kind of the slopes, whether there are sinks, most tokens of a sequence, whether
// there are first keys), and (scale, rest of the scale, softcap, a slope per head, or one per sequence and head). A most of -1 is none: a sequence
// that goes past the table is an error then. Else it may be longer: the queries of tokens that are not in the cache get
// NaN.
enum PagedConfig {
  kPagedVersion,
  kPagedCausal,
  kPagedLeft,
  kPagedRight,
  kPagedSlopes,
  kPagedHasSinks,
  kPagedMost,
  kPagedHasFirstKeys,
  kPagedConfigCount,
};
enum SlopesKind : int64_t { kNoSlopes = 0, kPerHead = 1, kPerSequence = 2 };
enum PagedRates { kPagedScale, kPagedScaleRest, kPagedSoftcap, kPagedRateCount };

int paged_entry(int count, const Tensors& t, bool with_logsumexp) {
  return answer([&] {
    check_count(t, count, kPagedCount + with_logsumexp);
    const int64_t* config = config_of(t, kPagedConfig, kPagedConfigCount);
    require(t.named(kPagedRates, "float32"), kBadDType);
    const float* rates = static_cast<const float*>(t.data[kPagedRates]);

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
    if (in_range(config[kPagedHasFirstKeys], 0, 1)) paging.first_keys = integers(t, kFirstKeys, {p.batch});
    paging.block_size = block_size;
    paging.key_block = block_size * p.kv_heads * p.head_dim;
    paging.value_block = block_size * p.kv_heads * p.value_dim;
    paging.causal = in_range(config[kPagedCausal], 0, 1);
    paging.window_left = in_range(config[kPagedLeft], -1, kMaxSize);
    paging.window_right = in_range(config[kPagedRight], -1, kMaxSize);
    const int64_t room = paging.table_width * block_size;
    const bool limited = config[kPagedMost] >= 0;
    paging.most = limited ? in_range(config[kPagedMost], 1, room) : room;
    for (int64_t b = 0; b < p.batch; ++b) {
      require(paging.lengths[b] >= 0 && (limited || paging.lengths[b] <= room), kBadTable);
      const int64_t length = std::min<int64_t>(paging.lengths[b], paging.most);
      const int64_t seen_from = paging.lengths[b] - p.seq_q - paging.window_left;
      int64_t first = paging.window_left < 0 ? 0 : std::max<int64_t>(0, seen_from);
      if (paging.first_keys) first = std::max<int64_t>(first, paging.first_keys[b]);
      for (int64_t at = first / block_size; at * block_size < length; ++at) {
        const int32_t block = paging.tables[b * paging.table_width + at];
        require(block >= 0 && block < blocks, kBadTable);
      }
    }
    ForwardOutputs outputs{t.data[kPagedOutput], nullptr};
    if (with_logsumexp) {
      require(!limited, kBadConfig);
      outputs.logsumexp = numbers<float>(t, kPagedLogsumexp, "float32", {p.batch, p.heads, p.seq_q});
      p.lse_stride = p.seq_q;
    }
    const int status = forward_paged(p, paging, outputs);
    for (int64_t b = 0; b < p.batch && status == kOk; ++b) {
      const int64_t past = std::clamp<int64_t>(paging.lengths[b] - paging.most, 0, p.seq_q);
      const int64_t row = p.heads * p.value_dim;
      const int64_t first = (b + 1) * p.seq_q - past;
      fill(p.dtype, true, past * row, static_cast<char*>(t.data[kPagedOutput]) + first * row * size_of(p.dtype));
    }
    return status;
  });
}

// reshape_and_cache: (tokens..., kv_heads, width) into (blocks, block_size, kv_heads, width), in place. The caches come
// twice: MindSpore hands on a copy of a view, another one for each input.
enum CacheParameter { kNewKey, kNewValue, kOldKeys, kOldValues, kSlots, kSameKeys, kSameValues, kCacheDone, kCacheCount };

int cache_entry(int count, const Tensors& t) {
  return answer([&] {
    check_count(t, count, kCacheCount);
    for (int i = 0; i < 2; ++i)
      if (t.data[kOldKeys + i] != t.data[kSameKeys + i])
        throw Complaint(std::string("reshape_and_cache: ") + (i ? "value" : "key") +
                        "_cache: got a view of a Tensor, of which a graph gets a copy; allowed are a Parameter and a whole "
                        "Tensor, in PYNATIVE also a contiguous view");
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

// The storage of a KVCache. A negative entry of the table has no block yet; several sequences may name a block, but one
// that a sequence writes into is its own. A block that no table names is free.
struct Blocks {
  char* data[2];           // of keys and of values
  int64_t row_bytes[2];    // of a token
  int64_t count, size;     // blocks, tokens of one
  int32_t* tables;         // (batch, width)
  int64_t batch, width;
  int32_t* lengths;

  // Tensors from `keys` on: keys, values, table, lengths.
  Blocks(const Tensors& t, int keys) {
    const int table = keys + 2;
    require(t.ranks[keys] == 4 && t.ranks[table] == 2, kBadShape);
    const int64_t* stored = t.shape(keys);
    count = stored[0], size = stored[1];
    for (int i = 0; i < 2; ++i) {
      const int tensor = keys + i;
      require(t.ranks[tensor] == 4 && t.dtype(tensor) == t.dtype(keys), kBadShape);
      const int64_t element = size_of(t.dtype(keys)), dim = t.shape(tensor)[3];
      t.check_shape(tensor, {count, size, stored[2], dim});
      t.check_aligned(tensor, element);
      checked_product(t.shape(tensor), 4);
      data[i] = static_cast<char*>(t.data[tensor]);
      row_bytes[i] = stored[2] * dim * element;
    }
    batch = t.shape(table)[0], width = t.shape(table)[1];
    tables = integers(t, table, {batch, width});
    lengths = integers(t, table + 1, {batch});
    for (int64_t at = 0; at < batch * width; ++at) require(tables[at] < count, kBadTable);
    for (int64_t b = 0; b < batch; ++b) require(lengths[b] >= 0, kBadTable);
  }
  int32_t& entry(int64_t b, int64_t at) { return tables[b * width + at]; }
  // Which blocks `of`, a table like `tables`, names.
  std::vector<char> named(const int32_t* of) const {
    std::vector<char> result(count, 0);
    for (int64_t at = 0; at < batch * width; ++at)
      if (of[at] >= 0) result[of[at]] = 1;
    return result;
  }
};

[[noreturn]] void complain(const std::string& what) { throw Complaint("KVCache: " + what); }

// Complains where no blocks are left for what a call wants besides those that are taken.
void check_room(const char* what, const std::vector<char>& taken, int64_t wanted) {
  const int64_t blocks = static_cast<int64_t>(taken.size()), used = std::count(taken.begin(), taken.end(), 1);
  if (used + wanted <= blocks) return;
  complain(std::string(what) + " need " + std::to_string(used + wanted) + " blocks; num_blocks is " + std::to_string(blocks));
}

// Takes the first free block.
int32_t take(std::vector<char>& taken, int64_t& from) {
  while (taken[from]) ++from;
  taken[from] = 1;
  return static_cast<int32_t>(from);
}

// KVCache.update: the tokens of (batch, seq, kv_heads, width) that are no padding behind those of the sequences, in place.
// Blocks that they need are handed out in the order of the sequences.
enum AppendParameter {
  kAddedKey,
  kAddedValue,
  kGrownKeys,
  kGrownValues,
  kGrownTables,
  kGrownLengths,
  kAddedTokens,
  kAppendConfig,
  kAppendedLengths,
  kAppendCount,
};
// (version, most tokens of a sequence, whether tokens past it are an error, else they are left out; whether padding comes
// first).
enum AppendConfig { kAppendVersion, kAppendMost, kAppendRefuses, kAppendPaddingFirst, kAppendConfigCount };

int append_entry(int count, const Tensors& t) {
  return answer([&] {
    check_count(t, count, kAppendCount);
    const int64_t* config = config_of(t, kAppendConfig, kAppendConfigCount);
    Blocks blocks(t, kGrownKeys);
    require(t.ranks[kAddedKey] == 4, kBadShape);
    const int64_t batch = blocks.batch, seq = t.shape(kAddedKey)[1];
    for (int i = 0; i < 2; ++i) {
      const int from = kAddedKey + i, to = kGrownKeys + i;
      require(t.dtype(from) == t.dtype(kGrownKeys), kBadDType);
      t.check_shape(from, {batch, seq, t.shape(to)[2], t.shape(to)[3]});
      t.check_aligned(from, size_of(t.dtype(from)));
      checked_product(t.shape(from), 4);
    }
    const int32_t* tokens = integers(t, kAddedTokens, {batch});
    int32_t* results = integers(t, kAppendedLengths, {batch});
    const int64_t most = in_range(config[kAppendMost], 1, blocks.width * blocks.size);
    const bool refuses = in_range(config[kAppendRefuses], 0, 1);
    const bool padding_first = in_range(config[kAppendPaddingFirst], 0, 1);
    int32_t* lengths = blocks.lengths;

    // All checks come before the first change.
    const auto end = [&](int64_t b) { return std::min<int64_t>(int64_t{lengths[b]} + tokens[b], INT32_MAX); };
    const auto needed = [&](int64_t b) {
      return tokens[b] == 0 ? 0 : (std::min(end(b), most) + blocks.size - 1) / blocks.size;
    };
    int64_t wanted = 0;
    for (int64_t b = 0; b < batch; ++b) {
      if (tokens[b] < 0 || tokens[b] > seq)
        complain("tokens: got " + std::to_string(tokens[b]) + ", allowed are 0 to " + std::to_string(seq));
      if (refuses && tokens[b] > 0 && end(b) > most)
        complain("key: got " + std::to_string(tokens[b]) + " tokens, which make a sequence of " + std::to_string(end(b)) +
                 "; max_length is " + std::to_string(most));
      for (int64_t at = 0; at < needed(b); ++at) wanted += blocks.entry(b, at) < 0;
    }
    if (wanted > 0) {
      std::vector<char> taken = blocks.named(blocks.tables);
      check_room("key: the tokens", taken, wanted);
      int64_t from = 0;
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t at = 0; at < needed(b); ++at)
          if (blocks.entry(b, at) < 0) blocks.entry(b, at) = take(taken, from);
    }
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t first = b * seq + (padding_first ? seq - tokens[b] : 0);
      for (int64_t token = 0; token < tokens[b] && lengths[b] + token < most; ++token) {
        const int64_t position = lengths[b] + token;
        const int64_t slot = blocks.entry(b, position / blocks.size) * blocks.size + position % blocks.size;
        for (int i = 0; i < 2; ++i)
          std::memcpy(blocks.data[i] + slot * blocks.row_bytes[i],
                      static_cast<const char*>(t.data[kAddedKey + i]) + (first + token) * blocks.row_bytes[i],
                      blocks.row_bytes[i]);
      }
      lengths[b] = results[b] = static_cast<int32_t>(end(b));
    }
    return static_cast<int>(kOk);
  });
}

// KVCache.reorder: sequence b goes on from what sequence indices[b] has, in place. They share blocks; of that into which
// several would write next, all but the first get a copy.
enum ReorderParameter {
  kOrderedKeys,
  kOrderedValues,
  kOrderedTables,
  kOrderedLengths,
  kOrder,
  kReorderConfig,
  kReorderedLengths,
  kReorderCount,
};
// (version, most tokens of a sequence).
enum ReorderConfig { kReorderVersion, kReorderMost, kReorderConfigCount };

int reorder_entry(int count, const Tensors& t) {
  return answer([&] {
    check_count(t, count, kReorderCount);
    const int64_t* config = config_of(t, kReorderConfig, kReorderConfigCount);
    Blocks blocks(t, kOrderedKeys);
    const int64_t batch = blocks.batch, width = blocks.width;
    const int64_t most = in_range(config[kReorderMost], 1, width * blocks.size);
    const int32_t* indices = integers(t, kOrder, {batch});
    int32_t* results = integers(t, kReorderedLengths, {batch});
    std::vector<int32_t> tables(batch * width), lengths(batch);
    for (int64_t b = 0; b < batch; ++b) {
      if (indices[b] < 0 || indices[b] >= batch)
        complain("indices: got " + std::to_string(indices[b]) + ", allowed are 0 to " + std::to_string(batch - 1));
      std::copy_n(blocks.tables + indices[b] * width, width, tables.begin() + b * width);
      lengths[b] = blocks.lengths[indices[b]];
    }
    // The block that a sequence writes into next, if it has one.
    const auto open = [&](int64_t b) -> int32_t& {
      return tables[b * width + std::min<int64_t>(lengths[b], most - 1) / blocks.size];
    };
    std::vector<int64_t> copies;
    std::vector<char> continued(batch, 0);
    for (int64_t b = 0; b < batch; ++b) {
      if (continued[indices[b]] && open(b) >= 0) copies.push_back(b);
      continued[indices[b]] = 1;
    }
    std::vector<char> taken = blocks.named(tables.data());
    check_room("indices: the sequences", taken, static_cast<int64_t>(copies.size()));
    int64_t from = 0;
    for (const int64_t b : copies) {
      const int64_t source = open(b), target = take(taken, from);
      open(b) = static_cast<int32_t>(target);
      // Tokens of the block that there are.
      const int64_t used = std::min<int64_t>(lengths[b], most);
      const int64_t rows = used - std::min<int64_t>(lengths[b], most - 1) / blocks.size * blocks.size;
      for (int i = 0; i < 2; ++i)
        std::memcpy(blocks.data[i] + target * blocks.size * blocks.row_bytes[i],
                    blocks.data[i] + source * blocks.size * blocks.row_bytes[i], rows * blocks.row_bytes[i]);
    }
    std::copy(tables.begin(), tables.end(), blocks.tables);
    std::copy(lengths.begin(), lengths.end(), blocks.lengths);
    std::copy(lengths.begin(), lengths.end(), results);
    return static_cast<int>(kOk);
  });
}

}  // namespace
}  // namespace flash_attention

namespace fa = flash_attention;

#pragma GCC visibility push(default)
extern "C" {

// For MindSpore's inference of shapes and types in graphs with dynamic shapes.
std::vector<int64_t> FlashAttentionPagedInferShape(int* ranks, int64_t** shapes, void*) {
  std::vector<int64_t> output(shapes[fa::kQuery], shapes[fa::kQuery] + ranks[fa::kQuery]);
  output.back() = shapes[fa::kValueCache][3];
  return output;
}
int FlashAttentionPagedInferType(std::vector<int> types, void*) { return types[fa::kQuery]; }
std::vector<std::vector<int64_t>> FlashAttentionPagedLogsumexpInferShape(int* ranks, int64_t** shapes, void* attributes) {
  const int64_t* query = shapes[fa::kQuery];
  return {FlashAttentionPagedInferShape(ranks, shapes, attributes), {query[0], query[2], query[1]}};
}
std::vector<int> FlashAttentionPagedLogsumexpInferType(std::vector<int> types, void*) {
  return {types[fa::kQuery], types[fa::kPagedRates]};
}
std::vector<int64_t> FlashAttentionReshapeAndCacheInferShape(int*, int64_t**, void*) { return {1}; }
int FlashAttentionReshapeAndCacheInferType(std::vector<int> types, void*) { return types[fa::kSlots]; }
std::vector<int64_t> FlashAttentionCacheAppendInferShape(int*, int64_t** shapes, void*) {
  return {shapes[fa::kGrownLengths][0]};
}
int FlashAttentionCacheAppendInferType(std::vector<int> types, void*) { return types[fa::kGrownLengths]; }

int FlashAttentionPaged(FA_PARAMETERS) {
  return fa::or_nan("paged_attention", fa::paged_entry(count, FA_TENSORS, false), FA_TENSORS, fa::kPagedOutput, count);
}
int FlashAttentionPagedLogsumexp(FA_PARAMETERS) {
  return fa::or_nan("paged_attention", fa::paged_entry(count, FA_TENSORS, true), FA_TENSORS, fa::kPagedOutput, count);
}
int FlashAttentionReshapeAndCache(FA_PARAMETERS) {
  return fa::or_throw("reshape_and_cache", fa::cache_entry(count, FA_TENSORS));
}
int FlashAttentionCacheAppend(FA_PARAMETERS) {
  return fa::or_throw("KVCache", fa::append_entry(count, FA_TENSORS));
}
int FlashAttentionCacheReorder(FA_PARAMETERS) {
  return fa::or_throw("KVCache", fa::reorder_entry(count, FA_TENSORS));
}

}  // extern "C"
#pragma GCC visibility pop
