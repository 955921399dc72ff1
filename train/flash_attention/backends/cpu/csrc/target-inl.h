// The body of a target: everything of one instruction set, with internal linkage, so that no code compiled for a newer
// processor can be linked into another target. A file in targets/ includes one header of simd/ and then this one.
#pragma once

#include "kernels.h"
#include "gemm-inl.h"
#include "exp2-inl.h"
#include "philox-inl.h"
#include "pack-inl.h"
#include "scores-inl.h"
#include "forward-inl.h"
#include "backward-inl.h"
#include "decode-inl.h"
#include "parts-inl.h"
#include "tiles-inl.h"
#include "tiles-decode-inl.h"

namespace flash_attention {
namespace {

// Calls use(bias, keep), whose values are the bias of a problem and whether it has dropout.
template <class Use>
void with_rules(const Problem& p, const Use& use) {
  const auto with_keep = [&](auto bias) {
    p.dropout.kind != Dropout::kNone ? use(bias, std::true_type{}) : use(bias, std::false_type{});
  };
  if (p.capped()) return with_keep(std::integral_constant<Bias, Bias::kCapped>{});
  if (p.bias.data) return with_keep(std::integral_constant<Bias, Bias::kPerScore>{});
  if (p.slopes) return with_keep(std::integral_constant<Bias, Bias::kAlibi>{});
  with_keep(std::integral_constant<Bias, Bias::kNone>{});
}

template <class Math>
struct Entry {
  static int64_t forward_scratch(const ForwardPlan& plan) {
    Arena arena(nullptr);
    ForwardTile<Math>({&plan, 0, 0}, {}, arena);
    return arena.used();
  }
  static int64_t packed_bytes(const ForwardPlan& plan) {
    Arena arena(nullptr);
    PackedKeys<Math>(plan.problem, arena);
    return arena.used();
  }
  static void forward(const ForwardTask& task, const NextTask<ForwardTask>& next, char* scratch) {
    [[maybe_unused]] const typename Math::Session session;
    with_rules(task.plan->problem,
               [&](auto bias, auto keep) { forward_rows<Math, bias.value, keep.value>(task, next, scratch); });
  }
  static int64_t backward_scratch(const BackwardPlan& plan) {
    Arena arena(nullptr);
    BackwardTile<Math>(plan, arena);
    return arena.used();
  }
  static void backward(const BackwardTask& task, const NextTask<BackwardTask>& next, char* scratch) {
    [[maybe_unused]] const typename Math::Session session;
    with_rules(task.plan->problem,
               [&](auto bias, auto keep) { backward_keys<Math, bias.value, keep.value>(task, next, scratch); });
  }
};

// The arithmetic for a dtype, of targets for bfloat16 alone.
template <class Math>
struct MathFor {
  static bool has(DType dtype) { return dtype == DType::kBFloat16; }
  template <class Use>
  static auto with(DType, const Use& use) { return use(Math()); }
};

#if defined(FLASH_ATTENTION_TILES)
static_assert(kPanel == kTileBlock && kTileBlock % kRows == 0, "a panel is two tiles wide");
static_assert(kDecodeTile == kTileBlock, "a tile of keys is one step of the products");
using TargetMath = TileMathOf<Simd, Tiles, 1>;

template <>
struct MathFor<TargetMath> {
  static bool has(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }
  template <class Use>
  static auto with(DType dtype, const Use& use) {
    return dtype == DType::kBFloat16 ? use(TargetMath()) : use(TileMathOf<Simd, Tiles, 2>());
  }
};
#elif defined(__AVX512BF16__)
using TargetMath = Bf16MathOf<Simd>;
#else
using TargetMath = Float32Math;
#endif

template <class Math>
void register_multiply_adds(int64_t operations) {
  [[maybe_unused]] const typename Math::Session session;
  if constexpr (Math::kTiles) {
    Math::multiply_adds(operations);
  } else {
    multiply_adds<Math>(operations);
  }
}

// A target whose instructions multiply bfloat16: what they are of no use for is left to the one below it.
template <class Math>
struct Target {
  static bool own(const Problem& p) {
    // What fills no tiles takes longer with them.
    if (Math::kTiles && (p.seq_q <= Math::kStrip || p.seq_k <= Math::kStrip)) return false;
    return MathFor<Math>::has(p.dtype);
  }
  // Score gradients that become the gradient of a bias are float32.
  static bool own(const BackwardPlan& plan) { return own(plan.problem) && plan.outputs.d_bias == nullptr; }
  static bool own(const DecodePlan& plan) {
    if constexpr (Math::kTiles) return plan.problem.dtype == DType::kBFloat16 && TileDecodeTask<Math>::pays(plan.problem);
    return false;
  }
  static const Kernels& below() { return *(kAvx512Kernels ? kAvx512Kernels : kScalarKernels); }

  static int64_t forward_scratch(const ForwardPlan& plan) {
    if (!own(plan.problem)) return below().forward_scratch(plan);
    return with(plan.problem, [&](auto math) { return Entry<decltype(math)>::forward_scratch(plan); });
  }
  static int64_t packed_bytes(const ForwardPlan& plan) {
    if (!own(plan.problem)) return below().packed_bytes(plan);
    return with(plan.problem, [&](auto math) { return Entry<decltype(math)>::packed_bytes(plan); });
  }
  static void forward(const ForwardTask& task, const NextTask<ForwardTask>& next, char* scratch) {
    if (!own(task.plan->problem)) return below().forward_task(task, next, scratch);
    with(task.plan->problem, [&](auto math) { Entry<decltype(math)>::forward(task, next, scratch); });
  }
  static int64_t backward_scratch(const BackwardPlan& plan) {
    if (!own(plan)) return below().backward_scratch(plan);
    return with(plan.problem, [&](auto math) { return Entry<decltype(math)>::backward_scratch(plan); });
  }
  static void rows(const BackwardPlan& plan, int64_t batch_head, int64_t first, int64_t count, char* scratch) {
    own(plan) ? backward_rows(plan, batch_head, first, count, scratch)
              : below().backward_rows(plan, batch_head, first, count, scratch);
  }
  static void backward(const BackwardTask& task, const NextTask<BackwardTask>& next, char* scratch) {
    if (!own(*task.plan)) return below().backward_task(task, next, scratch);
    with(task.plan->problem, [&](auto math) { Entry<decltype(math)>::backward(task, next, scratch); });
  }
  static void finish(const BackwardPlan& plan, int64_t batch_head, int64_t first, int64_t count) {
    below().finish_d_query(plan, batch_head, first, count);
  }
  static int64_t decode_scratch(const DecodePlan& plan) {
    if constexpr (Math::kTiles)
      if (own(plan)) return tile_decode_scratch<Math>(plan);
    return below().decode_scratch(plan);
  }
  static void decode(const DecodePlan& plan, int64_t batch, int64_t kv_head, int64_t chunk, char* scratch) {
    if constexpr (Math::kTiles)
      if (own(plan)) return tile_decode_task<Math>(plan, batch, kv_head, chunk, scratch);
    below().decode_task(plan, batch, kv_head, chunk, scratch);
  }
  static void merge(const DecodePlan& plan, int64_t batch, int64_t head) { below().decode_merge(plan, batch, head); }
  static void convert(const float* src, float factor, int64_t count, DType dtype, void* dst) {
    below().convert(src, factor, count, dtype, dst);
  }
  static void multiply_adds(DType dtype, int64_t operations) {
    if (!MathFor<Math>::has(dtype)) return below().multiply_adds(dtype, operations);
    MathFor<Math>::with(dtype, [&](auto math) { register_multiply_adds<decltype(math)>(operations); });
  }

 private:
  template <class Use>
  static auto with(const Problem& p, const Use& use) { return MathFor<Math>::with(p.dtype, use); }
};

// Everything in float32.
template <>
struct Target<Float32Math> : Entry<Float32Math> {
  static constexpr auto rows = flash_attention::backward_rows;
  static constexpr auto finish = flash_attention::finish_d_query;
  static constexpr auto decode_scratch = flash_attention::decode_scratch;
  static constexpr auto decode = decode_task;
  static constexpr auto merge = decode_merge;
  static void convert(const float* src, float factor, int64_t count, DType dtype, void* dst) {
    // store_row reads whole vectors; the end goes through a copy.
    const int64_t whole = count / kLanes * kLanes;
    store_row(dtype, src, factor, whole, dst);
    float rest[kLanes] = {};
    for (int64_t i = whole; i < count; ++i) rest[i - whole] = src[i];
    if (whole < count) store_row(dtype, rest, factor, count - whole, static_cast<char*>(dst) + whole * size_of(dtype));
  }
  static void multiply_adds(DType, int64_t operations) { register_multiply_adds<Float32Math>(operations); }
};

template <class Of = Target<TargetMath>>
constexpr Kernels make_kernels(const char* isa) {
  return {isa,
          kKeyTile,
          Of::forward_scratch,
          Of::packed_bytes,
          Of::forward,
          Of::backward_scratch,
          Of::rows,
          Of::backward,
          Of::finish,
          Of::decode_scratch,
          Of::decode,
          Of::merge,
          load_row,
          Of::convert,
          Of::multiply_adds};
}

}  // namespace
}  // namespace flash_attention
