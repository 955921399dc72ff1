// Entry points of attention, see arguments.h. The configuration says which of the optional inputs count; the others may be
// anything, because None does not pass through every MindSpore version.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "arguments.h"
#include "attention.h"
#include "dispatch.h"
#include "tile_permission.h"

namespace flash_attention {
namespace {

constexpr int64_t kMaxBlocks = int64_t{1} << 31;
constexpr int64_t kBottomRight = -1;  // as first query: aligned with the last key

// The int64 configuration; library.py fills it in this order.
enum Config {
  kConfigVersion,
  kCausal,
  kFirstQuery,
  kWindowLeft,
  kWindowRight,
  kPrevBlocks,
  kNextBlocks,
  kBlock,
  kDropoutKind,
  kDropoutThreshold,
  kBatchOffset,
  kHeadOffset,
  kHasMask,
  kBiasKind,
  kLayout,
  kHeadDim,
  kValueDim,
  kHasSinks,
  kHasPrefix,
  kHasSegments,
  kBlockMaskTile,  // 0 = there is none
  kConfigCount,
};

// Axes of query, key, value, output and their gradients. Those of kHeadsFirst are (..., heads, seq, width): its leading
// ones together are the batch, and a tensor of rank 2 has one head.
// Packed sequences have no batch axis.
enum LayoutKind : int64_t { kHeadsFirst = 0 /* BNSD */, kBSND = 1, kBSH = 2, kSBH = 3, kTND = 4, kTH = 5 };

// The slopes of kAlibi are in the configuration, those of kGivenSlopes in the place of the bias.
enum BiasKind : int64_t { kNoBias = 0, kPerScore = 1, kAlibi = 2, kGivenSlopes = 3 };

// The float32 configuration. The scale is the sum of two numbers, which makes it exact enough for a float64. One number per
// query head follows: its slope, if there are slopes. Their count says how many heads there are.
enum Rates { kScale, kScaleRest, kDropoutScale, kSoftcap, kRateCount };

enum ForwardParameter {
  kQuery,
  kKey,
  kValue,
  kMask,
  kBias,
  kKeepBits,
  kSeed,
  kSinks,
  kPrefix,
  kSegments,
  kKvSegments,
  kBlockMask,
  kForwardConfig,
  kForwardRates,
  kForwardOutput,
  kForwardLogsumexp,
  kForwardCount,
};

enum BackwardParameter {
  kOutput = kBlockMask + 1,
  kLogsumexp,
  kDOutput,
  kDLogsumexp,
  kBackwardConfig,
  kBackwardRates,
  kDQuery,
  kDKey,
  kDValue,
  kBackwardCount,  // the gradient of a bias follows where it is wanted, then that of the sinks where there are any
};

// Packed sequences: their cumulative lengths come after the other inputs, before the configuration.
constexpr int kLengths = 2;

// Sizes of query, or of key and value, and where their rows are.
struct Sizes {
  int64_t batch;
  int64_t heads;
  int64_t seq;
  Layout layout;
};

Sizes sizes_of(const Tensors& t, int i, int64_t kind, int64_t dim) {
  const int rank = t.ranks[i];
  const int64_t* shape = t.shape(i);
  constexpr int kRanks[] = {0, 4, 3, 3, 3, 2};
  require(kind == kHeadsFirst ? rank >= 2 : rank == kRanks[kind], kBadShape);
  const int64_t count = checked_product(shape, rank);
  const bool merged = kind == kBSH || kind == kSBH || kind == kTH;
  require(merged ? shape[rank - 1] % dim == 0 : shape[rank - 1] == dim, kBadShape);
  if (kind == kHeadsFirst) {
    const int64_t seq = shape[rank - 2], heads = rank == 2 ? 1 : shape[rank - 3];
    return {count / (heads * seq * dim), heads, seq, {heads * seq * dim, seq * dim, dim}};
  }
  if (kind == kTND || kind == kTH) {
    const int64_t heads = kind == kTND ? shape[1] : shape[1] / dim;
    return {1, heads, shape[0], {0, dim, heads * dim}};
  }
  const int64_t heads = kind == kBSND ? shape[2] : shape[2] / dim;
  if (kind == kSBH) return {shape[1], heads, shape[0], {heads * dim, dim, shape[1] * heads * dim}};
  return {shape[0], heads, shape[1], {shape[1] * heads * dim, dim, heads * dim}};
}

// A tensor of rank 4 that broadcasts to (batch, heads, seq_q, seq_k), with a full last axis.
Broadcast broadcast(const Tensors& t, int i, const Problem& p) {
  require(t.present(i), kBadPointer);
  const int64_t* shape = t.shape(i);
  require(t.ranks[i] == 4 && shape[3] == p.seq_k, kBadShape);
  const int64_t full[3] = {p.batch, p.heads, p.seq_q};
  for (int axis = 0; axis < 3; ++axis) require(shape[axis] == full[axis] || shape[axis] == 1, kBadShape);
  checked_product(shape, 4);
  Broadcast b{};
  b.data = t.data[i];
  b.dtype = t.dtype(i);
  t.check_aligned(i, size_of(b.dtype));
  b.row_stride = shape[2] == 1 ? 0 : p.seq_k;
  b.head_stride = shape[1] == 1 ? 0 : shape[2] * p.seq_k;
  b.batch_stride = shape[0] == 1 ? 0 : shape[1] * shape[2] * p.seq_k;
  return b;
}

void set_block_mask(const Tensors& t, int64_t tile, Problem& p) {
  require(tile % 64 == 0, kBadValue);
  const auto tiles = [&](int64_t seq) { return (seq + tile - 1) / tile; };
  require(t.present(kBlockMask), kBadPointer);
  require(t.dtype(kBlockMask) == DType::kByte, kBadDType);
  const int64_t *shape = t.shape(kBlockMask), rows = tiles(p.seq_q), columns = tiles(p.seq_k);
  require(t.ranks[kBlockMask] == 4 && shape[2] == rows && shape[3] == columns, kBadShape);
  require((shape[0] == p.batch || shape[0] == 1) && (shape[1] == p.heads || shape[1] == 1), kBadShape);
  const int64_t head_stride = shape[1] == 1 ? 0 : rows * columns;
  const int64_t batch_stride = shape[0] == 1 ? 0 : shape[1] * rows * columns;
  p.blocks = {{batch_stride, head_stride, columns}, static_cast<const uint8_t*>(t.data[kBlockMask]), tile};
  const int64_t count = checked_product(shape, 4);
  const auto hidden = std::count(p.blocks.data, p.blocks.data + count, 0);
  p.blocks_share = static_cast<double>(count - hidden) / static_cast<double>(count);
}

// Of a tensor as wide as the value, with the batch, heads and length of `like`.
Layout layout_of(const Tensors& t, int i, int64_t kind, int64_t dim, DType dtype, const Sizes& like) {
  require(t.present(i), kBadPointer);
  require(t.dtype(i) == dtype, kBadDType);
  const Sizes sizes = sizes_of(t, i, kind, dim);
  require(sizes.batch == like.batch && sizes.heads == like.heads && sizes.seq == like.seq, kBadShape);
  t.check_aligned(i, size_of(dtype));
  return sizes.layout;
}

Problem parse(const Tensors& t, int config_index, int rates_index, int output_index, bool packed = false) {
  require(t.present(config_index) && t.present(rates_index), kBadPointer);
  require(t.named(config_index, "int64") && t.named(rates_index, "float32"), kBadDType);
  require(t.ranks[config_index] == 1 && t.shape(config_index)[0] == kConfigCount, kBadConfig);
  require(t.ranks[rates_index] == 1 && t.shape(rates_index)[0] > kRateCount, kBadConfig);
  t.check_aligned(config_index, 8);
  t.check_aligned(rates_index, 4);
  const int64_t* config = static_cast<const int64_t*>(t.data[config_index]);
  const float* rates = static_cast<const float*>(t.data[rates_index]);
  require(config[kConfigVersion] == kVersion, kBadConfig);

  Problem p{};
  require(t.present(kQuery) && t.present(kKey), kBadPointer);
  p.dtype = t.dtype(kQuery);
  require(p.dtype != DType::kByte && t.dtype(kKey) == p.dtype, kBadDType);
  p.head_dim = in_range(config[kHeadDim], 1, kMaxHeadDim);
  p.value_dim = in_range(config[kValueDim], 1, kMaxHeadDim);
  const int64_t kind = in_range(config[kLayout], packed ? kTND : kHeadsFirst, packed ? kTH : kSBH);
  const Sizes query = sizes_of(t, kQuery, kind, p.head_dim), key = sizes_of(t, kKey, kind, p.head_dim);
  p.batch = query.batch;
  p.heads = query.heads;
  p.seq_q = p.lse_stride = query.seq;
  p.query_layout = query.layout;
  p.kv_heads = key.heads;
  p.seq_k = key.seq;
  p.key_layout = key.layout;
  require(key.batch == p.batch && p.heads % p.kv_heads == 0, kBadShape);
  require(t.shape(rates_index)[0] == kRateCount + p.heads, kBadConfig);
  t.check_aligned(kQuery, size_of(p.dtype));
  t.check_aligned(kKey, size_of(p.dtype));
  p.value_layout = layout_of(t, kValue, kind, p.value_dim, p.dtype, key);
  p.output_layout = layout_of(t, output_index, kind, p.value_dim, p.dtype, query);
  p.query = t.data[kQuery];
  p.key = t.data[kKey];
  p.value = t.data[kValue];
  p.scale = static_cast<double>(rates[kScale]) + rates[kScaleRest];
  p.softcap = rates[kSoftcap];
  require(std::isfinite(p.scale) && std::isfinite(p.softcap) && p.softcap >= 0.0f, kBadValue);

  Band& band = p.band;
  band.seq_k = p.seq_k;
  const int64_t first = in_range(config[kFirstQuery], kBottomRight, packed ? 0 : kMaxSize);
  band.offset = first == kBottomRight ? p.seq_k - p.seq_q : first;
  band.causal = in_range(config[kCausal], 0, 1);
  band.left = in_range(config[kWindowLeft], -1, kMaxSize);
  band.right = in_range(config[kWindowRight], -1, kMaxSize);
  band.prev_blocks = in_range(config[kPrevBlocks], 0, kMaxBlocks);
  band.next_blocks = in_range(config[kNextBlocks], 0, kMaxBlocks);
  band.block = in_range(config[kBlock], 1, kMaxBlocks);

  if (in_range(config[kHasMask], 0, 1)) {
    p.mask = broadcast(t, kMask, p);
    require(p.mask.dtype == DType::kByte, kBadDType);
  }
  switch (in_range(config[kBiasKind], kNoBias, kGivenSlopes)) {
    case kPerScore:
      p.bias = broadcast(t, kBias, p);
      require(p.bias.dtype != DType::kByte, kBadDType);
      break;
    case kAlibi:
      p.slopes = rates + kRateCount;
      break;
    case kGivenSlopes: {
      require(t.present(kBias), kBadPointer);
      const bool shared = t.ranks[kBias] == 1;
      require(shared || t.ranks[kBias] == 2, kBadShape);
      if (shared) {
        t.check(kBias, DType::kFloat32, {p.heads});
      } else {  // packed: packing_of counts the sequences
        t.check(kBias, DType::kFloat32, {packed ? t.shape(kBias)[0] : p.batch, p.heads});
      }
      p.slopes = static_cast<const float*>(t.data[kBias]);
      p.slope_stride = shared ? 0 : p.heads;
      break;
    }
  }

  if (in_range(config[kHasSinks], 0, 1)) {
    t.check(kSinks, DType::kFloat32, {p.heads});
    p.sinks = static_cast<const float*>(t.data[kSinks]);
  }
  if (in_range(config[kHasPrefix], 0, 1)) {
    require(t.present(kPrefix), kBadPointer);
    require(t.ranks[kPrefix] == 1, kBadShape);
    const int64_t items = packed ? t.shape(kPrefix)[0] : p.batch;  // each sequence has one; packing_of counts them
    p.prefix = integers(t, kPrefix, {items});
    require(band.causal && band.left < 0 && band.right < 0, kBadValue);
    require(band.prev_blocks >= kAllBlocks && band.next_blocks >= kAllBlocks, kBadValue);
    for (int64_t item = 0; item < items; ++item) require(p.prefix[item] >= 0 && p.prefix[item] <= p.seq_k, kBadPrefix);
  }
  if (in_range(config[kHasSegments], 0, 1)) {
    p.segments = integers(t, kSegments, {p.batch, p.seq_q});
    p.kv_segments = integers(t, kKvSegments, {p.batch, p.seq_k});
  }
  if (const int64_t tile = in_range(config[kBlockMaskTile], 0, kMaxBlocks)) set_block_mask(t, tile, p);

  Dropout& dropout = p.dropout;
  dropout.kind = in_range(config[kDropoutKind], Dropout::kNone, Dropout::kGiven);
  dropout.scale = 1.0f;
  if (dropout.kind != Dropout::kNone) {
    dropout.scale = rates[kDropoutScale];
    require(std::isfinite(dropout.scale) && dropout.scale > 0.0f, kBadValue);
  }
  if (dropout.kind == Dropout::kPhilox) {
    const int64_t* seed = numbers<int64_t>(t, kSeed, "int64", {2});
    for (int i = 0; i < 2; ++i) dropout.key[i] = static_cast<uint32_t>(seed[i]);
    dropout.threshold = static_cast<uint32_t>(in_range(config[kDropoutThreshold], 1, 65535));
    dropout.batch_offset = static_cast<uint32_t>(in_range(config[kBatchOffset], 0, UINT32_MAX));
    dropout.head_offset = static_cast<uint32_t>(in_range(config[kHeadOffset], 0, UINT32_MAX));
  } else if (dropout.kind == Dropout::kGiven) {
    const int64_t bits[] = {p.batch, p.heads, p.seq_q, (p.seq_k + 7) / 8};
    checked_product(bits, 4);
    if (packed) {  // packing_of counts the bytes
      require(t.present(kKeepBits), kBadPointer);
      require(t.ranks[kKeepBits] == 1, kBadShape);
      t.check(kKeepBits, DType::kByte, {t.shape(kKeepBits)[0]});
    } else {
      t.check(kKeepBits, DType::kByte, {bits[0], bits[1], bits[2], bits[3]});
    }
    dropout.bits = static_cast<const uint8_t*>(t.data[kKeepBits]);
  }
  return p;
}

// Cumulative lengths that end at `total`, with a 0 in front; the caller's tensor may begin with it or not.
std::vector<int64_t> lengths_of(const Tensors& t, int i, int64_t total) {
  require(t.present(i), kBadPointer);
  const bool wide = t.named(i, "int64");
  require(wide || t.named(i, "int32"), kBadDType);
  require(t.ranks[i] == 1, kBadShape);
  t.check_aligned(i, wide ? 8 : 4);
  std::vector<int64_t> ends{0};
  for (int64_t at = 0; at < t.shape(i)[0]; ++at) {
    const int64_t end = wide ? static_cast<const int64_t*>(t.data[i])[at] : static_cast<const int32_t*>(t.data[i])[at];
    require(end >= ends.back() && end <= total, kBadLengths);
    if (at > 0 || end > 0) ends.push_back(end);
  }
  require(ends.back() == total, kBadLengths);
  return ends;
}

Packing packing_of(const Tensors& t, int config_index, const Problem& p) {
  const int64_t* config = static_cast<const int64_t*>(t.data[config_index]);
  require(p.segments == nullptr && p.blocks.data == nullptr && p.mask.data == nullptr && p.bias.row_stride == 0, kBadValue);
  Packing packing{lengths_of(t, config_index - 2, p.seq_q), lengths_of(t, config_index - 1, p.seq_k),
                  config[kFirstQuery] == kBottomRight, {}};
  require(packing.query.size() == packing.key.size(), kBadLengths);
  if (p.dropout.kind == Dropout::kGiven) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < packing.count(); ++i) {
      packing.keep.push_back(bytes);
      const int64_t keys = packing.key[i + 1] - packing.key[i];
      bytes += p.heads * (packing.query[i + 1] - packing.query[i]) * ((keys + 7) / 8);
    }
    require(t.shape(kKeepBits)[0] == bytes, kBadKeepBits);
  }
  require(p.slope_stride == 0 || t.shape(kBias)[0] == packing.count(), kBadLengths);
  if (p.prefix) {
    require(t.shape(kPrefix)[0] == packing.count(), kBadLengths);
    for (int64_t i = 0; i < packing.count(); ++i)
      require(p.prefix[i] <= packing.key[i + 1] - packing.key[i], kBadPrefix);
  }
  return packing;
}

// float32 numbers, one for each query row.
void check_rows(const Tensors& t, int i, const Problem& p, bool packed) {
  packed ? t.check(i, DType::kFloat32, {p.heads, p.seq_q}) : t.check(i, DType::kFloat32, {p.batch, p.heads, p.seq_q});
}

// Whether there is not a single score, as a graph for unknown sizes may find.
bool empty(const Tensors& t) {
  const auto has_none = [&](int i) { return std::count(t.shape(i), t.shape(i) + t.ranks[i], 0) > 0; };
  return has_none(kQuery) || has_none(kKey);
}

// Rows that see nothing: zeros, and in the logsumexp the sinks.
int forward_of_nothing(const Tensors& t) {
  fill(t, false, kForwardOutput, kForwardLogsumexp);
  const int64_t* config = static_cast<const int64_t*>(t.data[kForwardConfig]);
  const int64_t *rows = t.shape(kForwardLogsumexp), count = elements(t, kForwardLogsumexp);
  for (int64_t i = 0; i < count; ++i)
    static_cast<float*>(t.data[kForwardLogsumexp])[i] =
        config[kHasSinks] ? static_cast<const float*>(t.data[kSinks])[i / rows[2] % rows[1]] : -INFINITY;
  return kOk;
}

int backward_of_nothing(const Tensors& t, int count, bool sink_gradient) {
  fill(t, false, kDQuery, count);
  const int64_t rows = sink_gradient && t.present(kDLogsumexp) ? elements(t, kDLogsumexp) : 0;
  const int64_t* shape = t.shape(kDLogsumexp);
  for (int64_t i = 0; i < rows; ++i)
    static_cast<float*>(t.data[count - 1])[i / shape[2] % shape[1]] += static_cast<const float*>(t.data[kDLogsumexp])[i];
  return kOk;
}

int forward_entry(int count, const Tensors& t, bool packed) {
  return answer([&] {
    const int more = packed ? kLengths : 0;
    require(count == kForwardCount + more, kBadCount);
    if (!packed && empty(t)) return forward_of_nothing(t);
    const Problem p = parse(t, kForwardConfig + more, kForwardRates + more, kForwardOutput + more, packed);
    const Packing packing = packed ? packing_of(t, kForwardConfig + more, p) : Packing{};
    check_rows(t, kForwardLogsumexp + more, p, packed);
    const ForwardOutputs outputs{t.data[kForwardOutput + more], static_cast<float*>(t.data[kForwardLogsumexp + more])};
    return packed ? forward_packed(p, packing, outputs) : forward(p, outputs);
  });
}

int backward_entry(int count, const Tensors& t, bool packed, bool bias_gradient, bool sink_gradient) {
  return answer([&] {
    const int more = packed ? kLengths : 0;
    require(count == kBackwardCount + more + bias_gradient + sink_gradient, kBadCount);
    if (!packed && empty(t)) return backward_of_nothing(t, count, sink_gradient);
    const Problem p = parse(t, kBackwardConfig + more, kBackwardRates + more, kOutput, packed);
    const Packing packing = packed ? packing_of(t, kBackwardConfig + more, p) : Packing{};
    check_rows(t, kLogsumexp, p, packed);
    t.check_like(kDOutput, kOutput);
    if (t.present(kDLogsumexp)) check_rows(t, kDLogsumexp, p, packed);
    t.check_like(kDQuery + more, kQuery);
    t.check_like(kDKey + more, kKey);
    t.check_like(kDValue + more, kValue);
    const BackwardInputs inputs{t.data[kOutput], static_cast<const float*>(t.data[kLogsumexp]), t.data[kDOutput],
                                static_cast<const float*>(t.data[kDLogsumexp])};
    BackwardOutputs outputs{t.data[kDQuery + more], t.data[kDKey + more], t.data[kDValue + more], nullptr, nullptr};
    int next = kBackwardCount + more;
    require((!bias_gradient || p.bias.data) && (!sink_gradient || p.sinks), kBadPointer);
    if (bias_gradient) {
      t.check_like(next, kBias);
      outputs.d_bias = t.data[next++];
    }
    if (sink_gradient) {
      t.check_like(next, kSinks);
      outputs.d_sinks = static_cast<float*>(t.data[next]);
    }
    return packed ? backward_packed(p, packing, inputs, outputs) : backward(p, inputs, outputs);
  });
}

// For MindSpore's inference of shapes and types in graphs with dynamic shapes. What it hands over are vectors of its own
// enumeration of types, whose numbers differ between versions: outputs take theirs from inputs.
using Shapes = std::vector<std::vector<int64_t>>;
using Types = std::vector<int>;

std::vector<int64_t> shape_of(const int* ranks, int64_t* const* shapes, int i) { return {shapes[i], shapes[i] + ranks[i]}; }

// `batch` and `seq` are axes of query, a batch of -1 that of packed sequences; the rates tell the heads.
Shapes forward_shapes(const int* ranks, int64_t* const* shapes, int batch, int seq) {
  const bool packed = batch < 0;
  const int last = ranks[kQuery] - 1;
  const int64_t* query = shapes[kQuery];
  const int64_t heads = shapes[kForwardRates + (packed ? kLengths : 0)][0] - kRateCount;
  std::vector<int64_t> output = shape_of(ranks, shapes, kQuery);
  // The last axis is the width of the value, or that of all its heads.
  const bool merged = last == (packed ? 1 : 2);
  const int64_t kv_heads = merged ? heads * shapes[kKey][last] / query[last] : heads;
  output.back() = shapes[kValue][last] * heads / kv_heads;
  if (packed) return {output, {heads, query[seq]}};
  return {output, {query[batch], heads, query[seq]}};
}

Shapes backward_shapes(const int* ranks, int64_t* const* shapes, bool bias_gradient, bool sink_gradient) {
  Shapes result;
  for (int i : {kQuery, kKey, kValue}) result.push_back(shape_of(ranks, shapes, i));
  if (bias_gradient) result.push_back(shape_of(ranks, shapes, kBias));
  if (sink_gradient) result.push_back(shape_of(ranks, shapes, kSinks));
  return result;
}

Types backward_types(const Types& types, bool bias_gradient, bool sink_gradient) {
  Types result = {types[kQuery], types[kKey], types[kValue]};
  if (bias_gradient) result.push_back(types[kBias]);
  if (sink_gradient) result.push_back(types[kSinks]);
  return result;
}

}  // namespace
}  // namespace flash_attention

namespace fa = flash_attention;

#pragma GCC visibility push(default)
extern "C" {

// For ctypes: a Status comes back, nothing is thrown.
int flash_attention_forward(FA_PARAMETERS) { return fa::forward_entry(count, FA_TENSORS, false); }
int flash_attention_forward_packed(FA_PARAMETERS) { return fa::forward_entry(count, FA_TENSORS, true); }

// For MindSpore. The forward pass has a name for each layout, because inference has to know where batch and seq are.
#define FA_FORWARD(layout, function, packed, batch, seq)                                                  \
  int FlashAttentionForward##layout(FA_PARAMETERS) {                                                      \
    return fa::or_nan(function " forward", fa::forward_entry(count, FA_TENSORS, packed), FA_TENSORS,       \
                      fa::kForwardOutput + (packed ? fa::kLengths : 0), count);                           \
  }                                                                                                       \
  fa::Shapes FlashAttentionForward##layout##InferShape(int* ranks, int64_t** shapes, void*) {             \
    return fa::forward_shapes(ranks, shapes, batch, seq);                                                 \
  }                                                                                                       \
  fa::Types FlashAttentionForward##layout##InferType(fa::Types types, void*) {                            \
    return {types[fa::kQuery], types[fa::kForwardRates + (packed ? fa::kLengths : 0)]};                   \
  }
FA_FORWARD(BNSD, "flash_attention", false, 0, 2)
FA_FORWARD(BSND, "flash_attention", false, 0, 1)
FA_FORWARD(BSH, "flash_attention", false, 0, 1)
FA_FORWARD(SBH, "flash_attention", false, 1, 0)
FA_FORWARD(Packed, "flash_attention_varlen", true, -1, 0)

// The backward pass has names for what its results are; each for MindSpore, and for ctypes.
#define FA_BACKWARD(name, plain, function, packed, bias, sinks)                                                       \
  int plain(FA_PARAMETERS) { return fa::backward_entry(count, FA_TENSORS, packed, bias, sinks); }                     \
  int name(FA_PARAMETERS) {                                                                                           \
    return fa::or_nan(function " backward", fa::backward_entry(count, FA_TENSORS, packed, bias, sinks), FA_TENSORS,   \
                      fa::kDQuery + (packed ? fa::kLengths : 0), count);                                              \
  }                                                                                                                   \
  fa::Shapes name##InferShape(int* ranks, int64_t** shapes, void*) {                                                  \
    return fa::backward_shapes(ranks, shapes, bias, sinks);                                                           \
  }                                                                                                                   \
  fa::Types name##InferType(fa::Types types, void*) { return fa::backward_types(types, bias, sinks); }
#define FA_BACKWARDS(name, plain, bias, sinks)                                                                        \
  FA_BACKWARD(FlashAttentionBackward##name, flash_attention_backward##plain, "flash_attention", false, bias, sinks)   \
  FA_BACKWARD(FlashAttentionBackwardPacked##name, flash_attention_backward_packed##plain, "flash_attention_varlen", true,\
              bias, sinks)
FA_BACKWARDS(, , false, false)
FA_BACKWARDS(Bias, _bias, true, false)
FA_BACKWARDS(Sinks, _sinks, false, true)
FA_BACKWARDS(BiasSinks, _bias_sinks, true, true)

const char* flash_attention_message(int status) { return fa::message(status); }

// Name of the i-th instruction set that can run here, best first; null past the last.
const char* flash_attention_isa(int index) {
  const fa::Kernels* kernels = fa::runnable_kernels(index);
  return kernels ? kernels->isa : nullptr;
}

// Name of the instruction set that problems in bfloat16 take, or null. Asks Linux for tiles.
const char* flash_attention_bfloat16_isa() {
  const fa::Kernels* kernels = fa::choose_kernels(fa::DType::kBFloat16);
  return kernels ? kernels->isa : nullptr;
}

// See tile_permission.h.
const char* flash_attention_tiles_missing() { return fa::tiles_missing(); }

// See dispatch.h.
double flash_attention_bfloat16_rate() { return fa::bfloat16_rate(); }
void flash_attention_assume_bfloat16_rate(double rate) { fa::assume_bfloat16_rate(rate); }

// Takes the time of so many operations, see attention.h; for profiles.
int flash_attention_multiply_adds(const char* dtype, int64_t operations) {
  const fa::Tensors named{nullptr, nullptr, nullptr, &dtype};
  return fa::answer([&] { return fa::multiply_adds(named.dtype(0), operations); });
}

// The interval of keys that a query row sees; for the test against visibility.Band.
void flash_attention_band(const int64_t* band, int64_t row, int64_t* interval) {
  fa::Band b{};
  std::memcpy(static_cast<void*>(&b), band, sizeof(b));
  interval[0] = b.lo(row);
  interval[1] = b.hi(row);
}

}  // extern "C"
#pragma GCC visibility pop
