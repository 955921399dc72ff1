// Compiled with the flags of neon; empty where the compiler or the processor family does not know them.
#include "../kernels.h"

#if defined(__aarch64__)
#include "../simd/neon.h"
#include "../target-inl.h"

static constexpr flash_attention::Kernels kKernels = flash_attention::make_kernels("neon");
const flash_attention::Kernels* const flash_attention::kNeonKernels = &kKernels;
#else
const flash_attention::Kernels* const flash_attention::kNeonKernels = nullptr;
#endif
