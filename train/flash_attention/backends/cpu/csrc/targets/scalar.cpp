// What every compiler and processor knows.
#include "../kernels.h"
#include "../simd/portable.h"
#include "../target-inl.h"

static constexpr flash_attention::Kernels kKernels = flash_attention::make_kernels("scalar");
const flash_attention::Kernels* const flash_attention::kScalarKernels = &kKernels;
