// Compiled with the flags of amx; empty where the compiler or the processor family does not know them. Builds for tests
// (-DFLASH_ATTENTION_SCALAR_TILES) calculate the tile instructions in C++, on any processor.
#include "../kernels.h"

#if defined(FLASH_ATTENTION_SCALAR_TILES) || (defined(__AVX512BF16__) && defined(__AMX_TILE__) && defined(__AMX_BF16__))
#define FLASH_ATTENTION_TILES
#if defined(__AVX512BF16__)
#include "../simd/avx512.h"
#else
#include "../simd/portable.h"
#endif
#if defined(FLASH_ATTENTION_SCALAR_TILES)
#include "../simd/scalar_tiles.h"
#else
#include "../simd/amx_tiles.h"
#endif
#include "../target-inl.h"

static constexpr flash_attention::Kernels kKernels = flash_attention::make_kernels("amx");
const flash_attention::Kernels* const flash_attention::kAmxKernels = &kKernels;
#else
const flash_attention::Kernels* const flash_attention::kAmxKernels = nullptr;
#endif
