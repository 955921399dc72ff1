// Which compiled target runs on this processor.
#pragma once

#include "kernels.h"

namespace flash_attention {

// The best target that was compiled in and that the processor runs; the environment variable FLASH_ATTENTION_CPU_ISA
// (avx512_bf16, avx512, avx2, neon, scalar) forces one. Null when the forced one cannot run. Read anew on every call.
const Kernels* choose_kernels();

// The i-th target that can run here, best first; null past the last.
const Kernels* runnable_kernels(int index);

}  // namespace flash_attention
