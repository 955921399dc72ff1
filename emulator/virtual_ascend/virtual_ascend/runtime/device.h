// The card: its memory, and the process that runs kernels on it (device/__main__.py).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "status.h"

namespace virtual_ascend {

// An argument of a kernel: where it lies in the card's memory, and the bytes from there to the end of its block.
// A pointer into no block has room 0; one that is no address of the card at all has offset kNowhere.
struct Address {
  uint64_t offset;
  uint64_t room;
};
constexpr uint64_t kNowhere = ~0ull;

// Requests to the device process; device/__main__.py has the same numbers.
enum class Request : uint32_t { kRegister = 1, kLaunch = 2, kAicpu = 3, kOperator = 4, kSend = 5, kWaiting = 6, kGive = 7, kTake = 8,
                                 kGraph = 9, kRunGraph = 10, kNn = 11, kGoOn = 12 };

// Memory that the program sees as addresses it cannot touch: like on a card, only copies and kernels reach it.
// A page holds NaN until something is written to it, and again after its block was freed; between two blocks lies a page
// that belongs to nobody.
class Device {
 public:
  static Device &Instance();

  void *Allocate(uint64_t size);  // nullptr if no room is left
  Status Free(const void *address);
  uint64_t total() const { return size_; }
  uint64_t free_bytes();

  Address Locate(const void *pointer);
  // Places of `count` tensors, as the device process reads them. `pointers` holds their addresses one behind the other.
  std::string Places(const void *pointers, size_t count);
  bool Owns(const void *pointer) const;
  // Either side may be memory of the host.
  Status Copy(void *to, uint64_t room, const void *from, uint64_t size);
  Status Fill(void *to, uint64_t room, int value, uint64_t size);

  // Of a request that succeeds, the text that is answered goes to `answered`.
  Status Ask(Request request, uint32_t blocks, uint64_t id, const void *data, uint64_t size,
             std::string *answered = nullptr);

  // How long a kernel may run, 0: for ever. Counts from when the device process starts.
  std::atomic<uint32_t> kernel_seconds{1900};

 private:
  Device();
  void Start();
  void Leave();  // in a process that was forked
  bool Exchange(bool send, void *data, uint64_t size);
  uint64_t Room(uint64_t offset);
  uint8_t *View(const void *pointer, uint64_t size, const char *what);
  void Touch(uint64_t offset, uint64_t size);

  std::mutex conversation_;  // one request or copy at a time
  std::mutex blocks_lock_;
  uint64_t size_ = 0, pages_ = 0;
  uint8_t *addresses_ = nullptr;  // what the program gets; reading it is a segmentation fault
  uint8_t *contents_ = nullptr;   // the same bytes, for this library
  uint8_t *touched_ = nullptr;    // a byte for each page, shared with the device process
  int file_ = -1, socket_ = -1;
  pid_t process_ = -1;
  std::atomic<bool> lost_{false};
  std::map<uint64_t, uint64_t> blocks_;  // offset: bytes asked for
};

}  // namespace virtual_ascend
