// Which compiled target runs on this processor.
#pragma once

#include "kernels.h"

namespace flash_attention {

// The best target that was compiled in and that the processor runs, see bfloat16_rate; the environment variable FLASH_ATTENTION_CPU_ISA
// (avx512_bf16, avx512, avx2, neon, scalar, amx) forces one. Null when the forced one cannot run. Read anew on every call.
const Kernels* choose_kernels();

// The i-th target that can run here, best first, but for amx, which comes last and runs only where it is forced; null past
// the last.
const Kernels* runnable_kernels(int index);

// Multiplications and additions of the processor's bfloat16 dot product, in those of float32 that take as long; 0 where no
// target can run that has one. Below 1 the target without it comes first: its bfloat16 is calculated in float32. Measured
// once in a process, in less than a millisecond. Tests assume a rate instead; 0 ends that.
double bfloat16_rate();
void assume_bfloat16_rate(double rate);

}  // namespace flash_attention
