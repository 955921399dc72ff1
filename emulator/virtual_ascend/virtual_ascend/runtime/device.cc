#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

extern char **environ;

namespace virtual_ascend {
namespace {

constexpr uint64_t kPage = 64 << 10;
constexpr int kFresh = 0xFF;  // NaN in every float type, -1 in integers

struct Header {
  uint32_t request, blocks;
  uint64_t id, size;
};
struct Answer {
  int64_t code;
  uint64_t size;
};

uint64_t RoundUp(uint64_t size) { return (std::max<uint64_t>(size, 1) + kPage - 1) / kPage * kPage; }

[[noreturn]] void Die(const char *what) {
  fprintf(stderr, "virtual-ascend: %s: %s\n", what, strerror(errno));
  abort();
}

std::mutex errors_lock;
std::string errors;

}  // namespace

Status Fail(Status code, const std::string &text) {
  std::lock_guard<std::mutex> guard(errors_lock);
  errors += "virtual-ascend: " + text + "\n";
  return code;
}

std::string TakeErrors() {
  std::lock_guard<std::mutex> guard(errors_lock);
  std::string taken;
  taken.swap(errors);
  return taken;
}

Device &Device::Instance() {
  static Device *device = new Device;  // never destroyed: MindSpore frees memory while the process ends
  return *device;
}

Device::Device() {
  const char *bytes = getenv("VIRTUAL_ASCEND_MEMORY");
  size_ = bytes ? strtoull(bytes, nullptr, 10) / kPage * kPage : 32ull << 30;
  pages_ = size_ / kPage;
  file_ = static_cast<int>(syscall(SYS_memfd_create, "virtual_ascend", 0));
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(size_ + pages_))) Die("memory of the card");
  void *reserved = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void *mapped = mmap(nullptr, size_ + pages_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (reserved == MAP_FAILED || mapped == MAP_FAILED) Die("memory of the card");
  addresses_ = static_cast<uint8_t *>(reserved);
  contents_ = static_cast<uint8_t *>(mapped);
  touched_ = contents_ + size_;
}

// ------------------------------------------------------------------------------------------------------------ memory
void *Device::Allocate(uint64_t size) {
  std::lock_guard<std::mutex> guard(blocks_lock_);
  uint64_t start = kPage;  // the first gap that is large enough, with a page of nobody on both sides
  for (const auto &[offset, bytes] : blocks_) {
    if (start + RoundUp(size) + kPage <= offset) break;
    start = offset + RoundUp(bytes) + kPage;
  }
  if (start + RoundUp(size) + kPage > size_) {
    uint64_t used = 0;
    for (const auto &block : blocks_) used += block.second;
    const std::string text = "out of memory: " + std::to_string(size) + " bytes asked for, " + std::to_string(used) +
                             " of " + std::to_string(size_) + " in use";
    fprintf(stderr, "virtual-ascend: %s\n", text.c_str());  // MindSpore raises, and does not ask for the reason
    Fail(kNoMemory, text);
    return nullptr;
  }
  blocks_[start] = size;
  return addresses_ + start;
}

Status Device::Free(const void *address) {
  std::lock_guard<std::mutex> talking(conversation_);
  std::lock_guard<std::mutex> guard(blocks_lock_);
  const uint64_t offset = Owns(address) ? static_cast<const uint8_t *>(address) - addresses_ : kNowhere;
  auto block = blocks_.find(offset);
  if (block == blocks_.end()) return Fail(kBadArgument, "free of an address where no block begins");
  const uint64_t bytes = RoundUp(block->second);
  blocks_.erase(block);
  memset(touched_ + offset / kPage, 0, bytes / kPage);
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return kSuccess;
}

uint64_t Device::free_bytes() {
  std::lock_guard<std::mutex> guard(blocks_lock_);
  uint64_t used = 2 * kPage;
  for (const auto &block : blocks_) used += RoundUp(block.second) + kPage;
  return size_ - std::min(used, size_);
}

bool Device::Owns(const void *pointer) const {
  auto byte = static_cast<const uint8_t *>(pointer);
  return byte >= addresses_ && byte < addresses_ + size_;
}

uint64_t Device::Room(uint64_t offset) {
  std::lock_guard<std::mutex> guard(blocks_lock_);
  auto next = blocks_.upper_bound(offset);
  if (next == blocks_.begin()) return 0;
  const auto &[start, bytes] = *std::prev(next);
  return offset < start + bytes ? start + bytes - offset : 0;
}

Address Device::Locate(const void *pointer) {
  if (!Owns(pointer)) return {kNowhere, 0};
  const uint64_t offset = static_cast<const uint8_t *>(pointer) - addresses_;
  return {offset, Room(offset)};
}

std::string Device::Places(const void *pointers, size_t count) {
  std::string places;
  for (size_t i = 0; i < count; ++i) {
    const void *pointer;
    memcpy(&pointer, static_cast<const char *>(pointers) + i * sizeof pointer, sizeof pointer);
    const Address address = Locate(pointer);
    places.append(reinterpret_cast<const char *>(&address), sizeof address);
  }
  return places;
}

void Device::Touch(uint64_t offset, uint64_t size) {
  if (!size) return;
  for (uint64_t page = offset / kPage; page <= (offset + size - 1) / kPage; ++page) {
    if (touched_[page]) continue;
    memset(contents_ + page * kPage, kFresh, kPage);
    touched_[page] = 1;
  }
}

// Returns the place at which this library reaches `size` bytes. Bytes of the card must lie in one block, else the
// result is null. Bytes of the host stay where they are.
uint8_t *Device::View(const void *pointer, uint64_t size, const char *what) {
  if (!Owns(pointer)) return static_cast<uint8_t *>(const_cast<void *>(pointer));
  const Address place = Locate(pointer);
  if (place.room < size) {
    Fail(kBadArgument, std::string(what) + " of " + std::to_string(size) + " bytes at " + std::to_string(place.offset) +
                         ": the block has " + std::to_string(place.room) + " there");
    return nullptr;
  }
  Touch(place.offset, size);
  return contents_ + place.offset;
}

Status Device::Copy(void *to, uint64_t room, const void *from, uint64_t size) {
  if (size > room) {
    return Fail(kBadArgument, "copy of " + std::to_string(size) + " bytes to a place of " + std::to_string(room));
  }
  if (!size) return kSuccess;
  std::lock_guard<std::mutex> talking(conversation_);
  const uint8_t *source = View(from, size, "copy from the card");
  uint8_t *target = View(to, size, "copy to the card");
  if (!source || !target) return kBadArgument;
  memmove(target, source, size);
  return kSuccess;
}

Status Device::Fill(void *to, uint64_t room, int value, uint64_t size) {
  if (size > room) {
    return Fail(kBadArgument, "memset of " + std::to_string(size) + " bytes to a place of " + std::to_string(room));
  }
  if (!size) return kSuccess;
  std::lock_guard<std::mutex> talking(conversation_);
  uint8_t *target = View(to, size, "memset");
  if (!target) return kBadArgument;
  memset(target, value, size);
  return kSuccess;
}

// ----------------------------------------------------------------------------------------------------------- process
void Device::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) Die("socket of the device process");
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  const char *python = getenv("VIRTUAL_ASCEND_PYTHON");
  const char *path = getenv("VIRTUAL_ASCEND_PYTHONPATH");
  if (!python || !path) {
    fprintf(stderr, "virtual-ascend: start the program with `virtual-ascend -- python PROGRAM`\n");
    abort();
  }
  std::vector<std::string> kept;
  for (char **one = environ; *one; ++one) {
    const std::string variable = *one;
    bool dropped = false;
    for (const char *name : {"PYTHONPATH=", "LD_PRELOAD=", "LD_LIBRARY_PATH="}) dropped |= !variable.rfind(name, 0);
    if (!dropped) kept.push_back(variable);
  }
  kept.push_back(std::string("PYTHONPATH=") + path);
  kept.push_back("VIRTUAL_ASCEND_KERNEL_SECONDS=" + std::to_string(kernel_seconds));
  std::vector<char *> variables;
  for (auto &variable : kept) variables.push_back(&variable[0]);
  variables.push_back(nullptr);
  std::string words[] = {python, "-m", "virtual_ascend.device", std::to_string(ends[1]), std::to_string(file_),
                         std::to_string(size_), std::to_string(pages_)};
  std::vector<char *> arguments;
  for (auto &word : words) arguments.push_back(&word[0]);
  arguments.push_back(nullptr);
  if (posix_spawnp(&process_, python, nullptr, nullptr, arguments.data(), variables.data())) Die("device process");
  close(ends[1]);
  socket_ = ends[0];
  // A fork of the program, such as a worker of a dataset, neither talks in its place nor keeps the device process.
  pthread_atfork(nullptr, nullptr, [] { Instance().Leave(); });
}

void Device::Leave() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
  lost_ = true;
}

bool Device::Exchange(bool send, void *data, uint64_t size) {
  auto bytes = static_cast<uint8_t *>(data);
  while (size) {
    const ssize_t done = send ? ::send(socket_, bytes, size, MSG_NOSIGNAL) : recv(socket_, bytes, size, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes += done;
    size -= done;
  }
  return true;
}

Status Device::Ask(Request request, uint32_t blocks, uint64_t id, const void *data, uint64_t size,
                   std::string *answered) {
  // Asked before the lock too, which a thread may have held that was not forked.
  const std::string gone = "the device process is gone, or this process was forked and has no card";
  if (lost_) return Fail(kDeviceLost, gone);
  std::lock_guard<std::mutex> talking(conversation_);
  if (lost_) return Fail(kDeviceLost, gone);
  if (process_ < 0) Start();
  Header header{static_cast<uint32_t>(request), blocks, id, size};
  Answer answer{kSuccess, 0};
  std::string text;
  bool there = Exchange(true, &header, sizeof header) && Exchange(true, const_cast<void *>(data), size) &&
               Exchange(false, &answer, sizeof answer);
  if (there) {
    text.resize(answer.size);
    there = Exchange(false, &text[0], answer.size);
  }
  if (!there) {
    lost_ = true;
    return Fail(kDeviceLost, "the device process has ended: it was killed, or this computer is short of memory");
  }
  const auto code = static_cast<Status>(answer.code);
  if (answered) *answered = text;
  if (code == kSuccess || code == kQueueEmpty || code == kQueueFull) return code;  // nothing is wrong
  return Fail(code, text);
}

}  // namespace virtual_ascend
