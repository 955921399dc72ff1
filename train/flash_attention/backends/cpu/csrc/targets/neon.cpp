// Compiled with the flags of neon; empty where the compiler or the processor family does not know them.
#include "../kernels.h"

#if defined(__aarch64__)
#include "../simd/neon.h"
#include "../target-inl.h"

namespace flash_attention {
namespace {
constexpr Kernels kKernels = make_kernels("neon");
}
const Kernels* const kNeonKernels = &kKernels;
}  // namespace flash_attention
#else
namespace flash_attention {
const Kernels* const kNeonKernels = nullptr;
}
#endif
