#include "dispatch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "tile_permission.h"

namespace flash_attention {
namespace {

bool runs(const Kernels* kernels) {
  if (kernels == nullptr) return false;
#if defined(FLASH_ATTENTION_SCALAR_TILES)
  if (kernels == kAmxKernels) return true;
#endif
#if defined(__x86_64__) || defined(__i386__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (kernels == kAvx2Kernels) return avx2;
  if (kernels == kAvx512Kernels) return avx512;
  if (kernels == kAvx512Bf16Kernels) return avx512 && __builtin_cpu_supports("avx512bf16");
  if (kernels == kAmxKernels) return avx512 && __builtin_cpu_supports("avx512bf16") && tiles_exist();
#endif
  return true;
}

// The shortest of several times is the one that nothing disturbed; by turns, so that the clock is the same for both.
double measured_bfloat16_rate() {
  constexpr int kRounds = 24;
  constexpr int64_t kOperations = 1 << 18;
  const auto shorten = [&](double& least, DType dtype) {
    const auto start = std::chrono::steady_clock::now();
    kAvx512Bf16Kernels->multiply_adds(dtype, kOperations);
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  };
  double float32 = std::numeric_limits<double>::infinity(), bfloat16 = float32;
  for (int round = 0; round < kRounds; ++round) {
    shorten(float32, DType::kFloat32);
    shorten(bfloat16, DType::kBFloat16);
  }
  return float32 / bfloat16;
}

std::atomic<double> assumed_rate{0};

}  // namespace

double bfloat16_rate() {
  if (!runs(kAvx512Bf16Kernels)) return 0;
  if (const double assumed = assumed_rate) return assumed;
  static const double measured = measured_bfloat16_rate();
  return measured;
}

void assume_bfloat16_rate(double rate) { assumed_rate = rate; }

const Kernels* runnable_kernels(int index) {
  if (runs(kAmxKernels) && index-- == 0) return kAmxKernels;
  const Kernels* others[] = {kAvx512Bf16Kernels, kAvx512Kernels, kAvx2Kernels, kNeonKernels, kScalarKernels};
  if (bfloat16_rate() < 1) std::swap(others[0], others[1]);
  for (const Kernels* kernels : others) {
    if (runs(kernels) && index-- == 0) return kernels;
  }
  return nullptr;
}

const Kernels* choose_kernels(DType dtype) {
  const char* forced = std::getenv("FLASH_ATTENTION_CPU_ISA");
  const bool any = forced == nullptr || *forced == '\0';
  for (int i = 0; const Kernels* kernels = runnable_kernels(i); ++i) {
    if (!any && std::strcmp(kernels->isa, forced) != 0) continue;
    if (kernels != kAmxKernels || dtype == DType::kFloat32 || tiles_missing() == nullptr) return kernels;
  }
  return nullptr;
}

}  // namespace flash_attention
