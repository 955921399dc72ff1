// Which compiled target runs on this processor.
#pragma once

#include "kernels.h"

namespace flash_attention {

// The best target for problems of that dtype among those that were compiled in and that the processor runs, see
// runnable_kernels; the environment variable FLASH_ATTENTION_CPU_ISA (amx, avx512_bf16, avx512, avx2, neon, scalar) forces
// one. Null when the forced one cannot run. Read anew on every call. The first problem in
// bfloat16 or float16 asks Linux for tiles.
const Kernels* choose_kernels(DType dtype);

// The i-th target that can run here, best first; null past the last. That of tiles is among them where processor and Linux
// have tiles, whether or not this process may use them.
const Kernels* runnable_kernels(int index);

// Multiplications and additions of the processor's bfloat16 dot product, in those of float32 that take as long; 0 where no
// target can run that has one. Below 1 the target without it comes first: its bfloat16 is calculated in float32. Measured
// once in a process, in less than a millisecond. Tests assume a rate instead; 0 ends that.
double bfloat16_rate();
void assume_bfloat16_rate(double rate);

}  // namespace flash_attention
