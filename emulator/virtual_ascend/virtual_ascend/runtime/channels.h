// Traffic between the program's threads that fill channels and the kernels that empty them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace virtual_ascend {

// Counts batches that were sent and kernels that may have taken one. A thread that finds a channel full or empty waits
// for the count to grow.
class Traffic {
 public:
  static Traffic &Instance();
  uint64_t count();
  void Note();
  // False if nothing happened in that time.
  bool WaitFor(uint64_t seen, std::chrono::milliseconds patience);

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
};

}  // namespace virtual_ascend
