// Compiled with the flags of avx2; empty where the compiler or the processor family does not know them.
#include "../kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "../simd/avx2.h"
#include "../target-inl.h"

static constexpr flash_attention::Kernels kKernels = flash_attention::make_kernels("avx2");
const flash_attention::Kernels* const flash_attention::kAvx2Kernels = &kKernels;
#else
const flash_attention::Kernels* const flash_attention::kAvx2Kernels = nullptr;
#endif
