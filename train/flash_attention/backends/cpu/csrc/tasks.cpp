#include "tasks.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#ifdef FLASH_ATTENTION_MEMCHECK
#include <valgrind/memcheck.h>
#else
#define VALGRIND_MAKE_MEM_UNDEFINED(memory, bytes)
#endif

namespace flash_attention {
namespace {

// Work below this many multiplications is not worth a second thread.
constexpr double kWorthAThread = 1 << 20;

// The process that loaded the library.
const pid_t kLoader = getpid();

}  // namespace

bool poisoned() {
  const char* wanted = std::getenv("FLASH_ATTENTION_CPU_POISON");
  return wanted != nullptr && *wanted != '\0' && *wanted != '0';
}

void poison(void* memory, int64_t bytes) {
  static std::atomic<uint32_t> fills{0};
  constexpr uint32_t kGarbage[2] = {0x7FA07FA0, 0x7CF07CF0};
  const uint32_t turn = fills.fetch_add(1, std::memory_order_relaxed);
  char* to = static_cast<char*>(memory);
  for (int64_t at = 0; at < bytes; at += 4)
    std::memcpy(to + at, &kGarbage[(turn + at / 4) % 2], std::min<int64_t>(4, bytes - at));
  VALGRIND_MAKE_MEM_UNDEFINED(memory, bytes);
}

char* thread_scratch(int64_t bytes) {
  thread_local Buffer<char> buffer;
  thread_local int64_t size = 0;
  if (size < bytes) {
    buffer.reset();
    size = 0;
    buffer = allocate<char>(bytes);
    size = bytes;
  }
  return buffer.get();
}

std::atomic<CallMemory::Block*> CallMemory::kept_{nullptr};

CallMemory::CallMemory(int64_t bytes) : block_(kept_.exchange(nullptr)) {
  if (block_ && block_->bytes >= bytes) {
    if (poisoned()) poison(block_->memory.get(), bytes);
    return;
  }
  delete block_;
  block_ = new Block{allocate<char>(bytes), bytes};
}

CallMemory::~CallMemory() {
  if (block_->bytes <= kMostKept) block_ = kept_.exchange(block_);
  delete block_;
}

int thread_count(double work, int64_t tasks) {
  // OpenMP's threads do not survive a fork: GNU's implementation would wait for them forever.
  const int64_t most = getpid() == kLoader ? omp_get_max_threads() : 1;
  const int64_t worth = 1 + static_cast<int64_t>(std::min(work / kWorthAThread, 1e6));
  return static_cast<int>(std::max<int64_t>(1, std::min({most, worth, tasks})));
}

}  // namespace flash_attention
