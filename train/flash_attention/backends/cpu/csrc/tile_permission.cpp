#include "tile_permission.h"

#if defined(__x86_64__) && !defined(FLASH_ATTENTION_SCALAR_TILES)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace flash_attention {
namespace {

// arch_prctl's requests of Linux 5.16, and the number of the registers' state. Source: Linux,
// Documentation/arch/x86/xstate.rst ("Using XSTATE features in user space applications").
constexpr long kGetSupported = 0x1021, kGetPermitted = 0x1022, kRequest = 0x1023;
constexpr long kTileData = 18;

bool holds_tile_data(long request) {
  uint64_t features = 0;
  return syscall(SYS_arch_prctl, request, &features) == 0 && (features >> kTileData & 1) != 0;
}

bool processor_has_tiles() {
  constexpr uint32_t kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  return (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
}

bool permitted() { return syscall(SYS_arch_prctl, kRequest, kTileData) == 0 && holds_tile_data(kGetPermitted); }

}  // namespace

bool tiles_exist() {
  static const bool exist = processor_has_tiles() && holds_tile_data(kGetSupported);
  return exist;
}

const char* tiles_missing() {
  static const char* const missing = !processor_has_tiles() ? "the processor has no tiles"
                                     : !tiles_exist()       ? "Linux does not know the processor's tiles"
                                     : !permitted()         ? "Linux does not permit tiles to this process"
                                                            : nullptr;
  return missing;
}

}  // namespace flash_attention
#else
namespace flash_attention {

#if defined(FLASH_ATTENTION_SCALAR_TILES)
bool tiles_exist() { return true; }
const char* tiles_missing() { return nullptr; }
#else
bool tiles_exist() { return false; }
const char* tiles_missing() { return "the processor has no tiles"; }
#endif

}  // namespace flash_attention
#endif
