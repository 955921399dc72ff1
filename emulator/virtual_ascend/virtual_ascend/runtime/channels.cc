// Channels between host and card. Of those that the card would fill (Print, summaries) nothing comes.
#include <condition_variable>
#include <mutex>

#include "status.h"

using virtual_ascend::kQueueEmpty;
using virtual_ascend::kSuccess;
using virtual_ascend::Status;

namespace {

struct Channel {
  std::mutex lock;
  std::condition_variable changed;
  bool stopped = false;
};

}  // namespace

extern "C" {

void *acltdtCreateChannel(uint32_t, const char *) { return new Channel; }
void *acltdtCreateChannelWithCapacity(uint32_t, const char *, size_t) { return new Channel; }
Status acltdtStopChannel(void *channel) {
  auto stopped = static_cast<Channel *>(channel);
  {
    std::lock_guard<std::mutex> guard(stopped->lock);
    stopped->stopped = true;
  }
  stopped->changed.notify_all();
  return kSuccess;
}
// Its receiver may still be on the way out.
Status acltdtDestroyChannel(void *) { return kSuccess; }
// MindSpore's receivers wait without a limit, and end when the queue is empty.
Status acltdtReceiveTensor(void *channel, void *, int32_t) {
  auto waiting = static_cast<Channel *>(channel);
  std::unique_lock<std::mutex> guard(waiting->lock);
  waiting->changed.wait(guard, [waiting] { return waiting->stopped; });
  return kQueueEmpty;
}
void *acltdtCreateDataset() { return new char; }
Status acltdtDestroyDataset(void *dataset) {
  delete static_cast<char *>(dataset);
  return kSuccess;
}

}  // extern "C"
