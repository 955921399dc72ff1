// Channels between host and card. Channels that the card would fill (Print, summaries) stay empty. The host sends
// batches of a sunk dataset; the device process keeps them until a GetNext takes them.
#include "channels.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "device.h"
#include "status.h"

namespace virtual_ascend {

Traffic &Traffic::Instance() {
  static auto traffic = new Traffic;
  return *traffic;
}
uint64_t Traffic::count() {
  std::lock_guard<std::mutex> guard(lock_);
  return count_;
}
void Traffic::Note() {
  {
    std::lock_guard<std::mutex> guard(lock_);
    ++count_;
  }
  changed_.notify_all();
}
bool Traffic::WaitFor(uint64_t seen, std::chrono::milliseconds patience) {
  std::unique_lock<std::mutex> guard(lock_);
  return changed_.wait_for(guard, patience, [this, seen] { return count_ != seen; });
}

namespace {

struct Channel {
  std::string name;
  size_t capacity;
  std::mutex lock;
  std::condition_variable changed;
  std::atomic<bool> stopped{false};
};

struct Item {
  int kind, type;
  std::vector<int64_t> shape;
  const void *data;
  size_t size;
};

struct Dataset {
  std::vector<const Item *> items;
};

constexpr int kTensor = 0;  // other kinds say how the data ended
constexpr size_t kDefaultCapacity = 128;

// A line of JSON, then the contents of all tensors.
std::string Message(const Channel &channel, const Dataset &dataset) {
  std::string text = "{\"channel\":\"" + channel.name + "\",\"capacity\":" + std::to_string(channel.capacity);
  std::string described, contents;
  for (const Item *item : dataset.items) {
    if (item->kind != kTensor) continue;
    described += described.empty() ? "" : ",";
    described += "{\"dtype\":" + std::to_string(item->type) + ",\"shape\":[";
    for (size_t i = 0; i < item->shape.size(); ++i) described += (i ? "," : "") + std::to_string(item->shape[i]);
    described += "],\"size\":" + std::to_string(item->size) + "}";
    contents.append(static_cast<const char *>(item->data), item->size);
  }
  return text + ",\"tensors\":[" + described + "]}\n" + contents;
}

}  // namespace

extern "C" {

void *acltdtCreateChannelWithCapacity(uint32_t, const char *name, size_t capacity) {
  auto channel = new Channel;
  channel->name = name;
  channel->capacity = capacity;
  return channel;
}
void *acltdtCreateChannel(uint32_t device, const char *name) {
  return acltdtCreateChannelWithCapacity(device, name, kDefaultCapacity);
}
Status acltdtStopChannel(void *channel) {
  auto stopped = static_cast<Channel *>(channel);
  {
    std::lock_guard<std::mutex> guard(stopped->lock);
    stopped->stopped = true;
  }
  stopped->changed.notify_all();
  Traffic::Instance().Note();
  return kSuccess;
}
// Its receiver may still be on the way out.
Status acltdtDestroyChannel(void *) { return kSuccess; }
// Receivers of MindSpore 2.0 wait without a limit, and end when the queue is empty; later ones ask again and again.
Status acltdtReceiveTensor(void *channel, void *, int32_t milliseconds) {
  auto waiting = static_cast<Channel *>(channel);
  std::unique_lock<std::mutex> guard(waiting->lock);
  const auto stopped = [waiting] { return waiting->stopped.load(); };
  if (milliseconds < 0) {
    waiting->changed.wait(guard, stopped);
  } else {
    waiting->changed.wait_for(guard, std::chrono::milliseconds(milliseconds), stopped);
  }
  return kQueueEmpty;
}
// Waits while the channel is full. A batch that comes after the channel was stopped has no receiver.
Status acltdtSendTensor(void *handle, const Dataset *dataset, int32_t) {
  auto channel = static_cast<Channel *>(handle);
  const std::string message = Message(*channel, *dataset);
  while (!channel->stopped) {
    const uint64_t seen = Traffic::Instance().count();
    const Status code = Device::Instance().Ask(Request::kSend, 0, 0, message.data(), message.size());
    if (code == kSuccess) Traffic::Instance().Note();
    if (code != kQueueFull) return code;
    Traffic::Instance().WaitFor(seen, std::chrono::seconds(1));
  }
  return kSuccess;
}
Item *acltdtCreateDataItem(int kind, const int64_t *sizes, size_t count, int type, void *data, size_t size) {
  auto item = new Item{kind, type, {}, data, size};
  if (count) item->shape.assign(sizes, sizes + count);
  return item;
}
Status acltdtDestroyDataItem(Item *item) { return Delete(item); }
Status acltdtAddDataItem(Dataset *dataset, Item *item) {
  dataset->items.push_back(item);
  return kSuccess;
}
Status acltdtQueryChannelSize(const void *handle, size_t *size) {
  const std::string &name = static_cast<const Channel *>(handle)->name;
  std::string count;
  const Status code = Device::Instance().Ask(Request::kWaiting, 0, 0, name.data(), name.size(), &count);
  if (code == kSuccess) *size = std::stoul(count);
  return code;
}
size_t acltdtGetDatasetSize(const Dataset *dataset) { return dataset->items.size(); }
const Item *acltdtGetDataItem(const Dataset *dataset, size_t index) {
  return index < dataset->items.size() ? dataset->items[index] : nullptr;
}
int acltdtGetDataTypeFromItem(const Item *item) { return item->type; }
int acltdtGetTensorTypeFromItem(const Item *item) { return item->kind; }
void *acltdtGetDataAddrFromItem(const Item *item) { return const_cast<void *>(item->data); }
size_t acltdtGetDataSizeFromItem(const Item *item) { return item->size; }
size_t acltdtGetDimNumFromItem(const Item *item) { return item->shape.size(); }
Status acltdtGetDimsFromItem(const Item *item, int64_t *sizes, size_t room) {
  if (room < item->shape.size()) return Fail(kBadArgument, "acltdtGetDimsFromItem: there is no room for all sizes");
  std::copy(item->shape.begin(), item->shape.end(), sizes);
  return kSuccess;
}
Dataset *acltdtCreateDataset() { return new Dataset; }
Status acltdtDestroyDataset(const Dataset *dataset) { return Delete(dataset); }

}  // extern "C"

}  // namespace virtual_ascend
