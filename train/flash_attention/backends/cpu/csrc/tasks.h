// Threads and memory for tasks; garbage in memory for tests.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "status.h"
#include "subnormals.h"

namespace flash_attention {

// Tests set the variable FLASH_ATTENTION_CPU_POISON: scratch, sums and results then hold garbage before each task, so that
// nobody profits from fresh pages, which are zero, or from what an earlier task left.
bool poisoned();

// Signalling NaN and 1e37 by turns, as float32 and as pairs of bfloat16; a place that held one holds the other next time.
// Builds for valgrind (-DFLASH_ATTENTION_MEMCHECK) also tell it that nobody may use them.
void poison(void* memory, int64_t bytes);

struct Free {
  void operator()(void* p) const { std::free(p); }
};

template <class T>
using Buffer = std::unique_ptr<T[], Free>;

template <class T>
Buffer<T> allocate(int64_t count) {
  const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  void* p = std::aligned_alloc(64, bytes == 0 ? 64 : bytes);
  if (p == nullptr) throw std::bad_alloc();
  if (poisoned()) poison(p, bytes);
  return Buffer<T>(static_cast<T*>(p));
}

// At least this much memory of the calling thread, which it keeps between calls: fresh pages cost more than a small
// problem.
char* thread_scratch(int64_t bytes);

// Memory of a call. The process keeps one piece, of at most kMostKept bytes, for the calls to come.
class CallMemory {
 public:
  explicit CallMemory(int64_t bytes);
  ~CallMemory();
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  char* get() const { return block_->memory.get(); }

  static constexpr int64_t kMostKept = 32 << 20;

 private:
  struct Block {
    Buffer<char> memory;
    int64_t bytes;
  };
  static std::atomic<Block*> kept_;
  Block* block_;
};

// How many threads are worth it for `work` multiplications in so many tasks. One in a process forked after the library
// was loaded.
int thread_count(double work, int64_t tasks);

// Calls run(task, scratch, claim) for every task, taken in ascending order by whichever thread is free. claim() is the task
// that the thread goes on with, taken at the first call; `tasks` or more when none is left. False without memory.
template <class Run>
bool run_tasks(int threads, int64_t tasks, int64_t scratch_bytes, std::atomic<bool>& failed, const Run& run) {
  std::atomic<int64_t> next{0};
  const bool dirty = poisoned();
#pragma omp parallel num_threads(threads)
  {
    const KeepSubnormals keep;
    char* scratch = nullptr;
    try {
      scratch = thread_scratch(scratch_bytes);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    const auto take = [&] { return next.fetch_add(1, std::memory_order_relaxed); };
    for (int64_t task = take(); task < tasks && !failed;) {
      int64_t following = -1;
      const auto claim = [&] {
        if (following < 0) following = take();
        return following;
      };
      if (dirty) poison(scratch, scratch_bytes);
      run(task, scratch, claim);
      task = claim();
    }
  }
  return !failed;
}

// What run() gives, or the Status of what it throws.
template <class Run>
int guarded(const Run& run) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (...) {
    return kInternal;
  }
}

}  // namespace flash_attention
