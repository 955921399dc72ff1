// The runtime's C functions, rt*. Their types come from graphengine's headers, as far as MindSpore's calls need them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "channels.h"
#include "collectives.h"
#include "device.h"
#include "streams.h"

namespace virtual_ascend {
namespace {

// ----------------------------------------------------------------------------------------------------------- kernels
struct DevBinary {
  uint32_t magic, version;
  const void *data;
  uint64_t length;
};

struct ArgsEx {
  void *args;
  void *host_inputs;
  uint32_t size;
};

std::mutex functions_lock;
std::map<const void *, uint64_t> functions;  // number of the binary that each stands in
std::map<std::string, const void *> stubs;
uint64_t binaries = 0;

// A list of arguments. One in the program's memory is taken when the kernel is launched; one on the card, as models have
// them, when it runs.
class Arguments {
 public:
  Arguments(const void *list, uint32_t size) : bytes_(size, 0), list_(Device::Instance().Owns(list) ? list : nullptr) {
    if (!list_) memcpy(&bytes_[0], list, size);
  }
  Status Read(std::string *bytes) const {
    *bytes = bytes_;
    return list_ ? Device::Instance().Copy(&(*bytes)[0], bytes->size(), list_, bytes->size()) : kSuccess;
  }

 private:
  std::string bytes_;
  const void *list_;
};

Status Launch(const void *stub, uint32_t blocks, const void *args, uint32_t size, void *stream) {
  uint64_t binary;
  {
    std::lock_guard<std::mutex> guard(functions_lock);
    auto found = functions.find(stub);
    if (found == functions.end()) return Fail(kBadArgument, "launch of a kernel that was not registered");
    binary = found->second;
  }
  auto run = [binary, blocks, arguments = Arguments(args, size)] {
    std::string bytes;
    const Status code = arguments.Read(&bytes);
    if (code) return code;
    const std::string places = Device::Instance().Places(bytes.data(), bytes.size() / sizeof(void *));
    return Device::Instance().Ask(Request::kLaunch, blocks, binary, places.data(), places.size());
  };
  return Streams::Instance().Add(stream, {Kind::kRun, run});
}

// Arguments of an AI CPU kernel: this head, the addresses, the length of a node definition, the definition. The
// extension, on the card, would hold shapes that the definition leaves open.
struct __attribute__((packed)) AicpuHead {
  uint32_t length, address_count, extension_length;
  uint64_t extension_address;
};

Status RunAicpu(const std::string &bytes) {
  AicpuHead head{};
  uint32_t length = 0;
  if (bytes.size() >= sizeof head) memcpy(&head, bytes.data(), sizeof head);
  const size_t definition = sizeof head + head.address_count * sizeof(void *) + sizeof length;
  if (definition <= bytes.size()) memcpy(&length, bytes.data() + definition - sizeof length, sizeof length);
  if (!length || definition + length > bytes.size()) {
    return Fail(kBadArgument, "arguments of an AI CPU kernel have another form than those of MindSpore 2.0.0");
  }
  const std::string places = Device::Instance().Places(bytes.data() + sizeof head, head.address_count);
  const std::string message = places + bytes.substr(definition, length);
  auto &traffic = Traffic::Instance();
  for (;;) {
    const uint64_t seen = traffic.count();
    std::string missing;
    const Status code =
      Device::Instance().Ask(Request::kAicpu, head.address_count, 0, message.data(), message.size(), &missing);
    if (code == kSuccess) traffic.Note();
    if (code != kQueueEmpty) return code;
    if (!traffic.WaitFor(seen, Patience())) {
      return Fail(kStuck, "a GetNext waits for data, and none came in " + std::to_string(Patience().count()) +
                           " seconds (--patience): " + missing);
    }
  }
}

Status LaunchAicpu(const char *name, const void *args, uint32_t size, void *stream) {
  // MindSpore sends the library with its own kernels for the AI CPU; the device process has them as NumPy.
  if (name && !strcmp(name, "batchLoadsoFrombuf")) return kSuccess;
  auto run = [arguments = Arguments(args, size)] {
    std::string bytes;
    const Status code = arguments.Read(&bytes);
    return code ? code : RunAicpu(bytes);
  };
  return Streams::Instance().Add(stream, {Kind::kRun, run});
}

// A number that a kernel left on the card, read when a task needs it.
template <class Number>
Number Read(const void *address) {
  Number value{};
  Device::Instance().Copy(&value, sizeof value, address, sizeof value);
  return value;
}

bool Compare(int condition, int64_t left, int64_t right) {
  switch (condition) {
    case 0:
      return left == right;
    case 1:
      return left != right;
    case 2:
      return left > right;
    case 3:
      return left >= right;
    case 4:
      return left < right;
    default:
      return left <= right;
  }
}

struct ExceptionInfo {
  uint32_t task, stream, thread, device, code, more[16];
};
using FailCallback = void (*)(ExceptionInfo *);

thread_local void *context = nullptr;

Status Put(void *stream, Kind kind, void *event = nullptr, void *other = nullptr) {
  Task task;
  task.kind = kind;
  task.event = static_cast<Event *>(event);
  task.stream = static_cast<Stream *>(other);
  return Streams::Instance().Add(stream, std::move(task));
}

}  // namespace

extern "C" {

// ------------------------------------------------------------------------------------------------- device and context
Status rtGetSocVersion(char *version, uint32_t size) {
  const char *soc = getenv("VIRTUAL_ASCEND_SOC");
  snprintf(version, size, "%s", soc ? soc : "Ascend910A");
  return kSuccess;
}
Status rtGetIsHeterogenous(int32_t *answer) { return Give(answer, 0); }
Status rtGetDeviceCount(int32_t *count) { return Give(count, Cards::Instance().size()); }
Status rtGetDevice(int32_t *device) { return Give(device, Cards::Instance().rank()); }
// A process has one card. If there are several, it has the card with the number of its rank.
Status rtSetDevice(int32_t device) {
  const auto &cards = Cards::Instance();
  if (!cards.several() || device == static_cast<int32_t>(cards.rank())) return kSuccess;
  return Fail(kBadArgument, "card " + std::to_string(cards.rank()) + " is asked to be device " + std::to_string(device));
}
Status rtDeviceReset(int32_t) { return kSuccess; }
Status rtGetDeviceInfo(uint32_t, int32_t module, int32_t info, int64_t *value) {
  constexpr int32_t kAiCore = 4, kCoreCount = 3;
  if (module != kAiCore || info != kCoreCount) {
    return Fail(kBadArgument, "rtGetDeviceInfo: module " + std::to_string(module) + ", info " + std::to_string(info));
  }
  const char *cores = getenv("VIRTUAL_ASCEND_CORES");
  return Give(value, cores ? atol(cores) : 32);
}
// No feature that is asked for here is one of the first 910.
// MindSpore asks whether kernels of the AI CPU may block their stream; without that it launches them like others.
Status rtGetDeviceCapability(int32_t, int32_t feature, int32_t, int32_t *value) {
  constexpr int kBlocking = 1, kNotSupported = 3;
  return Give(value, feature == kBlocking ? kNotSupported : 0);
}
Status rtGetRtCapability(int32_t, int32_t, int64_t *value) { return Give(value, 0); }
Status rtGetMaxStreamAndTask(uint32_t, uint32_t *streams, uint32_t *tasks) {
  *streams = *tasks = 1024;
  return kSuccess;
}
Status rtRegTaskFailCallbackByModule(const char *, FailCallback callback) {
  Streams::Instance().on_failure = [callback](const Failure &failure) {
    ExceptionInfo info{failure.task, failure.stream, 0, 0, static_cast<uint32_t>(failure.code), {}};
    if (callback) callback(&info);
  };
  return kSuccess;
}
Status rtCtxCreate(void **created, uint32_t, int32_t) { return Give(created, new char); }
Status rtCtxSetCurrent(void *current) {
  context = current;
  return kSuccess;
}
Status rtCtxGetCurrent(void **current) {
  static char primary;
  return Give(current, context ? context : &primary);
}

// ------------------------------------------------------------------------------------------------------------ memory
Status rtMemGetInfoEx(int, size_t *free_bytes, size_t *total) {
  *total = Device::Instance().total();
  *free_bytes = Device::Instance().free_bytes();
  return kSuccess;
}
Status rtMalloc(void **address, uint64_t size, uint32_t, uint16_t) {
  *address = Device::Instance().Allocate(size);
  return *address ? kSuccess : kNoMemory;
}
Status rtFree(void *address) { return Device::Instance().Free(address); }
Status rtMemcpy(void *to, uint64_t room, const void *from, uint64_t size, int) {
  return Device::Instance().Copy(to, room, from, size);
}
Status rtMemcpyAsync(void *to, uint64_t room, const void *from, uint64_t size, int kind, void *stream) {
  constexpr int kHostToDeviceEx = 6;  // the program may change its memory as soon as the call returns
  Task task;
  if (kind == kHostToDeviceEx) {
    const std::string contents(static_cast<const char *>(from), size);
    task.run = [=] { return Device::Instance().Copy(to, room, contents.data(), size); };
  } else {
    task.run = [=] { return Device::Instance().Copy(to, room, from, size); };
  }
  return Streams::Instance().Add(stream, std::move(task));
}
Status rtMemset(void *to, uint64_t room, uint32_t value, uint64_t size) {
  return Device::Instance().Fill(to, room, static_cast<int>(value), size);
}

// -------------------------------------------------------------------------------------------------- streams and events
Status rtStreamCreateWithFlags(void **stream, int32_t, uint32_t) {
  return Give(stream, Streams::Instance().CreateStream());
}
Status rtStreamCreate(void **stream, int32_t priority) { return rtStreamCreateWithFlags(stream, priority, 0); }
Status rtStreamDestroy(void *stream) {
  Streams::Instance().WaitFor(static_cast<Stream *>(stream));  // a failure was and will be reported when somebody waits
  Streams::Instance().Destroy(static_cast<Stream *>(stream));
  return kSuccess;
}
Status rtStreamSynchronize(void *stream) { return Streams::Instance().WaitFor(static_cast<Stream *>(stream)); }
Status rtEventCreateWithFlag(void **event, uint32_t) { return Give(event, Streams::Instance().CreateEvent()); }
Status rtEventCreate(void **event) { return rtEventCreateWithFlag(event, 0); }
Status rtEventDestroy(void *event) {
  Streams::Instance().Destroy(static_cast<Event *>(event));
  return kSuccess;
}
Status rtGetEventID(void *event, uint32_t *id) { return Give(id, static_cast<Event *>(event)->id); }
Status rtEventSynchronize(void *event) { return Streams::Instance().WaitFor(static_cast<Event *>(event)); }
Status rtEventElapsedTime(float *milliseconds, void *start, void *end) {
  const auto took = static_cast<Event *>(end)->when - static_cast<Event *>(start)->when;
  return Give(milliseconds, std::chrono::duration<float, std::milli>(took).count());
}
Status rtEventRecord(void *event, void *stream) { return Put(stream, Kind::kRecord, event); }
Status rtEventReset(void *event, void *stream) { return Put(stream, Kind::kReset, event); }
Status rtStreamWaitEvent(void *stream, void *event) { return Put(stream, Kind::kWait, event); }
Status rtGetTaskIdAndStreamID(uint32_t *task, uint32_t *stream) {
  *task = Streams::last_task;
  *stream = Streams::last_stream;
  return kSuccess;
}
// Marks for a profiler that is not there.
Status rtProfilerTrace(uint64_t, bool, uint32_t, void *) { return kSuccess; }
Status rtProfilerTraceEx(uint64_t, uint64_t, uint16_t, void *) { return kSuccess; }

// ------------------------------------------------------------------------------------------------------------ models
Status rtModelCreate(void **model, uint32_t) { return Give(model, Streams::Instance().CreateModel()); }
Status rtModelDestroy(void *model) {
  Streams::Instance().Destroy(static_cast<Model *>(model));
  return kSuccess;
}
Status rtModelBindStream(void *model, void *stream, uint32_t flag) {
  constexpr uint32_t kHead = 0;
  Streams::Instance().Bind(static_cast<Model *>(model), static_cast<Stream *>(stream), flag == kHead);
  return kSuccess;
}
Status rtModelUnbindStream(void *, void *stream) {
  Streams::Instance().Unbind(static_cast<Stream *>(stream));
  return kSuccess;
}
Status rtModelLoadComplete(void *) { return kSuccess; }
Status rtModelExecute(void *model, void *stream, uint32_t) {
  Task task;
  task.kind = Kind::kModel;
  task.model = static_cast<Model *>(model);
  return Streams::Instance().Add(stream, std::move(task));
}
Status rtModelGetId(void *model, uint32_t *id) { return Give(id, static_cast<Model *>(model)->id); }
Status rtModelGetTaskId(void *, uint32_t *task, uint32_t *stream) { return rtGetTaskIdAndStreamID(task, stream); }
Status rtEndGraphEx(void *, void *stream, uint32_t) { return Put(stream, Kind::kEnd); }
Status rtStreamActive(void *other, void *stream) { return Put(stream, Kind::kActivate, nullptr, other); }
Status rtStreamSwitchEx(void *left, int condition, void *right, void *other, void *stream, int is_64_bits) {
  Task task;
  task.kind = Kind::kSwitch;
  task.stream = static_cast<Stream *>(other);
  task.condition = [=] {
    if (is_64_bits) return Compare(condition, Read<int64_t>(left), Read<int64_t>(right));
    return Compare(condition, Read<int32_t>(left), Read<int32_t>(right));
  };
  return Streams::Instance().Add(stream, std::move(task));
}
Status rtLabelCreateExV2(void **label, void *, void *stream) {
  auto created = new Label;
  created->stream = static_cast<Stream *>(stream);
  *label = created;
  return kSuccess;
}
Status rtLabelDestroy(void *label) { return Delete(static_cast<Label *>(label)); }
Status rtLabelSet(void *label, void *stream) {
  Streams::Instance().Set(static_cast<Label *>(label), static_cast<Stream *>(stream));
  return kSuccess;
}
Status rtLabelListCpy(void **labels, uint32_t count, void *to, uint32_t room) {
  return Device::Instance().Copy(to, room, labels, count * sizeof(void *));
}
Status rtLabelSwitchByIndex(void *index, uint32_t count, void *labels, void *stream) {
  Task task;
  task.kind = Kind::kGoto;
  task.label = [=] {
    const uint32_t wanted = std::min(Read<uint32_t>(index), count - 1);
    return Read<const Label *>(static_cast<const uint8_t *>(labels) + wanted * sizeof(void *));
  };
  return Streams::Instance().Add(stream, std::move(task));
}

// ----------------------------------------------------------------------------------------------------------- kernels
Status rtDevBinaryRegister(const DevBinary *binary, void **handle) {
  uint64_t number;
  {
    std::lock_guard<std::mutex> guard(functions_lock);
    number = ++binaries;
  }
  *handle = reinterpret_cast<void *>(number);
  return Device::Instance().Ask(Request::kRegister, 0, number, binary->data, binary->length);
}
Status rtRegisterAllKernel(const DevBinary *binary, void **handle) { return rtDevBinaryRegister(binary, handle); }
Status rtDevBinaryUnRegister(void *) { return kSuccess; }
Status rtFunctionRegister(void *binary, const void *stub, const char *name, const void *, uint32_t) {
  std::lock_guard<std::mutex> guard(functions_lock);
  functions[stub] = reinterpret_cast<uint64_t>(binary);
  stubs[name] = stub;
  return kSuccess;
}
// Asked before a kernel is registered too; not to have it is no error then.
Status rtGetFunctionByName(const char *name, void **stub) {
  std::lock_guard<std::mutex> guard(functions_lock);
  auto found = stubs.find(name);
  if (found == stubs.end()) return kBadArgument;
  *stub = const_cast<void *>(found->second);
  return kSuccess;
}
Status rtKernelLaunch(const void *stub, uint32_t blocks, void *args, uint32_t size, void *, void *stream) {
  return Launch(stub, blocks, args, size, stream);
}
Status rtKernelLaunchWithFlag(const void *stub, uint32_t blocks, ArgsEx *args, void *, void *stream, uint32_t) {
  return Launch(stub, blocks, args->args, args->size, stream);
}
Status rtCpuKernelLaunch(const void *, const void *name, uint32_t, const void *args, uint32_t size, void *,
                         void *stream) {
  return LaunchAicpu(static_cast<const char *>(name), args, size, stream);
}
Status rtCpuKernelLaunchWithFlag(const void *, const void *name, uint32_t, const ArgsEx *args, void *, void *stream,
                                 uint32_t) {
  return LaunchAicpu(static_cast<const char *>(name), args->args, args->size, stream);
}

// ------------------------------------------------------------------------------------------ the same as AscendCL, acl*
const char *aclrtGetSocName() {
  const char *soc = getenv("VIRTUAL_ASCEND_SOC");
  return soc ? soc : "Ascend910A";
}
Status aclInit(const char *) { return kSuccess; }
Status aclFinalize() { return kSuccess; }
Status aclrtSetDevice(int32_t device) { return rtSetDevice(device); }
Status aclrtResetDevice(int32_t device) { return rtDeviceReset(device); }
// MindSpore's op_timeout, in seconds; 0: none.
Status aclrtSetOpWaitTimeout(uint32_t seconds) {
  Device::Instance().kernel_seconds = seconds;
  return kSuccess;
}
Status aclrtCreateContext(void **created, int32_t device) { return rtCtxCreate(created, 0, device); }
Status aclrtDestroyContext(void *created) { return Delete(static_cast<char *>(created)); }
Status aclrtSetCurrentContext(void *current) { return rtCtxSetCurrent(current); }
Status aclrtGetRunMode(int *mode) {
  constexpr int kHost = 1;
  return Give(mode, kHost);
}
Status aclrtMalloc(void **address, size_t size, int) { return rtMalloc(address, size, 0, 0); }
Status aclrtFree(void *address) { return rtFree(address); }
Status aclrtMallocHost(void **address, size_t size) {
  *address = malloc(size);
  return *address ? kSuccess : kNoMemory;
}
Status aclrtFreeHost(void *address) {
  free(address);
  return kSuccess;
}
Status aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) {
  return rtMemcpy(to, room, from, size, kind);
}
Status aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, void *stream) {
  return rtMemcpyAsync(to, room, from, size, kind, stream);
}
Status aclrtMemset(void *to, size_t room, int32_t value, size_t size) {
  return Device::Instance().Fill(to, room, value, size);
}
Status aclrtDestroyStream(void *stream) { return rtStreamDestroy(stream); }
Status aclrtSynchronizeStream(void *stream) { return rtStreamSynchronize(stream); }

}  // extern "C"

}  // namespace virtual_ascend
