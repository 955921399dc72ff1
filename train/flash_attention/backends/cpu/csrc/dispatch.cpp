#include "dispatch.h"

#include <cstdlib>
#include <cstring>

namespace flash_attention {
namespace {

bool runs(const Kernels* kernels) {
  if (kernels == nullptr) return false;
#if defined(__x86_64__) || defined(__i386__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (kernels == kAvx2Kernels) return avx2;
  if (kernels == kAvx512Kernels) return avx512;
  if (kernels == kAvx512Bf16Kernels) return avx512 && __builtin_cpu_supports("avx512bf16");
#endif
  return true;
}

}  // namespace

const Kernels* runnable_kernels(int index) {
  const Kernels* const all[] = {kAvx512Bf16Kernels, kAvx512Kernels, kAvx2Kernels, kNeonKernels, kScalarKernels};
  for (const Kernels* kernels : all) {
    if (runs(kernels) && index-- == 0) return kernels;
  }
  return nullptr;
}

const Kernels* choose_kernels() {
  const char* forced = std::getenv("FLASH_ATTENTION_CPU_ISA");
  if (forced == nullptr || *forced == '\0') return runnable_kernels(0);
  for (int i = 0; const Kernels* kernels = runnable_kernels(i); ++i) {
    if (std::strcmp(kernels->isa, forced) == 0) return kernels;
  }
  return nullptr;
}

}  // namespace flash_attention
