// Compiled with the flags of avx512_bf16; empty where the compiler or the processor family does not know them.
#include "../kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BF16__)
#include "../simd/avx512.h"
#include "../target-inl.h"

namespace flash_attention {
namespace {
constexpr Kernels kKernels = make_kernels("avx512_bf16");
}
const Kernels* const kAvx512Bf16Kernels = &kKernels;
}  // namespace flash_attention
#else
namespace flash_attention {
const Kernels* const kAvx512Bf16Kernels = nullptr;
}
#endif
