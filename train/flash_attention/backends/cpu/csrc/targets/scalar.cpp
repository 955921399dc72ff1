// Compiled with the flags of scalar; empty where the compiler or the processor family does not know them.
#include "../kernels.h"

#if 1  // every compiler
#include "../simd/portable.h"
#include "../target-inl.h"

namespace flash_attention {
namespace {
constexpr Kernels kKernels = make_kernels("scalar");
}
const Kernels* const kScalarKernels = &kKernels;
}  // namespace flash_attention
#else
namespace flash_attention {
const Kernels* const kScalarKernels = nullptr;
}
#endif
