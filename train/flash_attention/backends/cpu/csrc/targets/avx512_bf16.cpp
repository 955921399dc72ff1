// Compiled with the flags of avx512_bf16; empty where the compiler or the processor family does not know them.
#include "../kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BF16__)
#include "../simd/avx512.h"
#include "../target-inl.h"

static constexpr flash_attention::Kernels kKernels = flash_attention::make_kernels("avx512_bf16");
const flash_attention::Kernels* const flash_attention::kAvx512Bf16Kernels = &kKernels;
#else
const flash_attention::Kernels* const flash_attention::kAvx512Bf16Kernels = nullptr;
#endif
