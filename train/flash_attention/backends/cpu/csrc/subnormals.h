// Threads of MindSpore, and of programs around it, may take subnormal numbers for zero.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace flash_attention {

// While it lives, arithmetic of this thread keeps subnormal numbers, read and written; afterwards the thread treats them as
// it did before. Writing the register waits for what runs, so it is left alone where it is right.
class KeepSubnormals {
 public:
  KeepSubnormals() : flushed_(read() & kFlush) {
    if (flushed_) write(read() & ~kFlush);
  }
  ~KeepSubnormals() {
    if (flushed_) write(read() | flushed_);
  }
  KeepSubnormals(const KeepSubnormals&) = delete;
  KeepSubnormals& operator=(const KeepSubnormals&) = delete;

 private:
#if defined(__SSE__)
  using Register = uint32_t;
  static constexpr Register kFlush = 1 << 15 | 1 << 6;  // FTZ for results, DAZ for operands
  static Register read() { return _mm_getcsr(); }
  static void write(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Register = uint64_t;
  static constexpr Register kFlush = 1 << 24 | 1 << 19 | 1 << 0;  // FZ, FZ16 for float16, FIZ for operands
  static Register read() {
    Register value;
    asm volatile("mrs %0, fpcr" : "=r"(value) : : "memory");
    return value;
  }
  static void write(Register value) { asm volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
#else
  using Register = uint32_t;
  static constexpr Register kFlush = 0;
  static Register read() { return 0; }
  static void write(Register) {}
#endif

  const Register flushed_;
};

}  // namespace flash_attention
