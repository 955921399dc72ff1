// Compiled with the flags of avx512; empty where the compiler or the processor family does not know them.
#include "../kernels.h"

#if defined(__AVX512F__)
#include "../simd/avx512.h"
#include "../target-inl.h"

static constexpr flash_attention::Kernels kKernels = flash_attention::make_kernels("avx512");
const flash_attention::Kernels* const flash_attention::kAvx512Kernels = &kKernels;
#else
const flash_attention::Kernels* const flash_attention::kAvx512Kernels = nullptr;
#endif
