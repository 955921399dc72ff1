// Compiled with the flags of avx2; empty where the compiler or the processor family does not know them.
#include "../kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "../simd/avx2.h"
#include "../target-inl.h"

namespace flash_attention {
namespace {
constexpr Kernels kKernels = make_kernels("avx2");
}
const Kernels* const kAvx2Kernels = &kKernels;
}  // namespace flash_attention
#else
namespace flash_attention {
const Kernels* const kAvx2Kernels = nullptr;
}
#endif
