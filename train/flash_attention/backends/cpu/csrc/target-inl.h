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
#include "tiles-inl.h"
#include "tiles-decode-inl.h"

namespace flash_attention {
namespace {

using ForwardFunction = void (*)(const ForwardTask&, const NextTask<ForwardTask>&, char*);
using BackwardFunction = void (*)(const BackwardTask&, const NextTask<BackwardTask>&, char*);

Bias bias_of(const Problem& p) {
  return p.capped() ? Bias::kCapped : p.bias.data ? Bias::kPerScore : p.slopes ? Bias::kAlibi : Bias::kNone;
}

template <class Math, bool kKeep>
ForwardFunction forward_task_of(Bias bias) {
  switch (bias) {
    case Bias::kNone: return forward_rows<Math, Bias::kNone, kKeep>;
    case Bias::kPerScore: return forward_rows<Math, Bias::kPerScore, kKeep>;
    case Bias::kAlibi: return forward_rows<Math, Bias::kAlibi, kKeep>;
    default: return forward_rows<Math, Bias::kCapped, kKeep>;
  }
}

template <class Math, bool kKeep>
BackwardFunction backward_task_of(Bias bias) {
  switch (bias) {
    case Bias::kNone: return backward_keys<Math, Bias::kNone, kKeep>;
    case Bias::kPerScore: return backward_keys<Math, Bias::kPerScore, kKeep>;
    case Bias::kAlibi: return backward_keys<Math, Bias::kAlibi, kKeep>;
    default: return backward_keys<Math, Bias::kCapped, kKeep>;
  }
}

template <class Math>
struct Entry {
  using Arithmetic = Math;
  static int64_t forward_scratch(const ForwardPlan& plan) {
    Arena arena(nullptr);
    ForwardTile<Math>({&plan, 0, 0}, {}, arena);
    return arena.used();
  }
  static void forward(const ForwardTask& task, const NextTask<ForwardTask>& next, char* scratch) {
    [[maybe_unused]] const typename Math::Session session;
    const Problem& p = task.plan->problem;
    const bool keep = p.dropout.kind != Dropout::kNone;
    const ForwardFunction run =
        keep ? forward_task_of<Math, true>(bias_of(p)) : forward_task_of<Math, false>(bias_of(p));
    run(task, next, scratch);
  }
  static int64_t backward_scratch(const BackwardPlan& plan) {
    Arena arena(nullptr);
    BackwardTile<Math>(plan, arena);
    return arena.used();
  }
  static void backward(const BackwardTask& task, const NextTask<BackwardTask>& next, char* scratch) {
    [[maybe_unused]] const typename Math::Session session;
    const Problem& p = task.plan->problem;
    const bool keep = p.dropout.kind != Dropout::kNone;
    const BackwardFunction run =
        keep ? backward_task_of<Math, true>(bias_of(p)) : backward_task_of<Math, false>(bias_of(p));
    run(task, next, scratch);
  }
};

// Chooses the arithmetic of a problem: tiles or the bfloat16 dot product where the target has them, else float32.
template <bool kBf16>
struct Choose {
  static bool bf16(const Problem&, bool) { return false; }
  using Bf16 = Entry<Float32Math>;
};
#if defined(FLASH_ATTENTION_TILES)
static_assert(kPanel == kTileBlock && kTileBlock % kRows == 0, "a panel is two tiles wide");
static_assert(kDecodeTile == kTileBlock, "a tile of keys is one step of the products");
using Bf16Math = TileMathOf<Simd, Tiles>;
#elif defined(__AVX512BF16__)
using Bf16Math = Bf16MathOf<Simd>;
#endif
#if defined(FLASH_ATTENTION_TILES) || defined(__AVX512BF16__)
template <>
struct Choose<true> {
  static bool bf16(const Problem& p, bool bias_gradient) { return p.dtype == DType::kBFloat16 && !bias_gradient; }
  using Bf16 = Entry<Bf16Math>;
};
#endif
using Chosen = Choose<Simd::kBf16>;

int64_t target_forward_scratch(const ForwardPlan& plan) {
  return Chosen::bf16(plan.problem, false) ? Chosen::Bf16::forward_scratch(plan)
                                           : Entry<Float32Math>::forward_scratch(plan);
}
void target_forward(const ForwardTask& task, const NextTask<ForwardTask>& next, char* scratch) {
  if (Chosen::bf16(task.plan->problem, false)) return Chosen::Bf16::forward(task, next, scratch);
  Entry<Float32Math>::forward(task, next, scratch);
}
int64_t target_backward_scratch(const BackwardPlan& plan) {
  return Chosen::bf16(plan.problem, plan.outputs.d_bias) ? Chosen::Bf16::backward_scratch(plan)
                                                         : Entry<Float32Math>::backward_scratch(plan);
}
void target_backward(const BackwardTask& task, const NextTask<BackwardTask>& next, char* scratch) {
  const BackwardPlan& plan = *task.plan;
  if (Chosen::bf16(plan.problem, plan.outputs.d_bias)) return Chosen::Bf16::backward(task, next, scratch);
  Entry<Float32Math>::backward(task, next, scratch);
}
void target_convert(const float* src, float factor, int64_t count, DType dtype, void* dst) {
  // store_row reads whole vectors; the end goes through a copy.
  const int64_t whole = count / kLanes * kLanes;
  store_row(dtype, src, factor, whole, dst);
  float rest[kLanes] = {};
  for (int64_t i = whole; i < count; ++i) rest[i - whole] = src[i];
  if (whole < count) store_row(dtype, rest, factor, count - whole, static_cast<char*>(dst) + whole * size_of(dtype));
}

template <class Math>
void register_multiply_adds(int64_t operations) {
  [[maybe_unused]] const typename Math::Session session;
  if constexpr (Math::kTiles) {
    Math::multiply_adds(operations);
  } else {
    multiply_adds<Math>(operations);
  }
}
void target_multiply_adds(DType dtype, int64_t operations) {
  if (dtype == DType::kBFloat16) return register_multiply_adds<Chosen::Bf16::Arithmetic>(operations);
  register_multiply_adds<Float32Math>(operations);
}

#if defined(FLASH_ATTENTION_TILES)
int64_t target_decode_scratch(const DecodePlan& plan) {
  return plan.problem.dtype == DType::kBFloat16 ? tile_decode_scratch<Bf16Math>(plan) : decode_scratch(plan);
}
void target_decode(const DecodePlan& plan, int64_t batch, int64_t kv_head, int64_t chunk, char* scratch) {
  if (plan.problem.dtype == DType::kBFloat16) return tile_decode_task<Bf16Math>(plan, batch, kv_head, chunk, scratch);
  decode_task(plan, batch, kv_head, chunk, scratch);
}
#else
constexpr auto target_decode_scratch = decode_scratch;
constexpr auto target_decode = decode_task;
#endif

constexpr Kernels make_kernels(const char* isa) {
  return {isa,
          target_forward_scratch,
          target_forward,
          target_backward_scratch,
          backward_rows,
          target_backward,
          finish_d_query,
          target_decode_scratch,
          target_decode,
          decode_merge,
          target_convert,
          target_multiply_adds};
}

}  // namespace
}  // namespace flash_attention
