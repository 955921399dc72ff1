// Compiled with the flags of avx512; empty where the compiler or the processor family does not know them.
#include "../kernels.h"

#if defined(__AVX512F__)
#include "../simd/avx512.h"
#include "../target-inl.h"

namespace flash_attention {
namespace {
constexpr Kernels kKernels = make_kernels("avx512");
}
const Kernels* const kAvx512Kernels = &kKernels;
}  // namespace flash_attention
#else
namespace flash_attention {
const Kernels* const kAvx512Kernels = nullptr;
}
#endif
