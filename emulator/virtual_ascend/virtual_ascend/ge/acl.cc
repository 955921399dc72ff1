// AscendCL as MindSpore from 2.3 on calls it, except for the functions in runtime/runtime_api.cc.
#include <stdlib.h>
#include <string.h>

#include <chrono>
#include <string>
#include <thread>

#include "../runtime/collectives.h"
#include "../runtime/device.h"
#include "../runtime/operators_api.h"
#include "../runtime/streams.h"

namespace virtual_ascend {
namespace {

Status Put(void *stream, Kind kind, void *event) {
  Task task;
  task.kind = kind;
  task.event = static_cast<Event *>(event);
  return Streams::Instance().Add(stream, std::move(task));
}

}  // namespace

extern "C" {

const char *aclGetRecentErrMsg() {
  static thread_local std::string text;
  text = TakeErrors();
  return text.c_str();
}

// ------------------------------------------------------------------------------------------------- device and memory
Status aclrtGetDeviceCount(uint32_t *count) { return Give(count, Cards::Instance().size()); }
Status aclrtGetDevice(int32_t *device) { return Give(device, Cards::Instance().rank()); }
Status rtCtxGetCurrent(void **current);
Status aclrtGetCurrentContext(void **current) { return rtCtxGetCurrent(current); }
Status aclrtGetMemInfo(int, size_t *free_bytes, size_t *total) {
  *total = Device::Instance().total();
  *free_bytes = Device::Instance().free_bytes();
  return kSuccess;
}
Status aclrtMemsetAsync(void *to, size_t room, int32_t value, size_t size, void *stream) {
  return Streams::Instance().Add(
    stream, {Kind::kRun, [=] { return Device::Instance().Fill(to, room, value, size); }});
}

// ------------------------------------------------------------------------------------------------- streams and events
Status aclrtCreateStreamWithConfig(void **stream, uint32_t, uint32_t) {
  return Give(stream, Streams::Instance().CreateStream());
}
Status aclrtDestroyStream(void *stream);
Status aclrtDestroyStreamForce(void *stream) { return aclrtDestroyStream(stream); }
Status aclrtSynchronizeStreamWithTimeout(void *stream, int32_t) {
  return Streams::Instance().WaitFor(static_cast<Stream *>(stream));
}
Status aclrtStreamQuery(void *stream, int32_t *status) {
  constexpr int kComplete = 0;
  *status = kComplete;
  return Streams::Instance().WaitFor(static_cast<Stream *>(stream));
}
Status aclrtStreamWaitEvent(void *stream, void *event) { return Put(stream, Kind::kWait, event); }
Status aclrtCreateEventExWithFlag(void **event, uint32_t) { return Give(event, Streams::Instance().CreateEvent()); }
Status aclrtCreateEventWithFlag(void **event, uint32_t flag) { return aclrtCreateEventExWithFlag(event, flag); }
Status aclrtCreateEvent(void **event) { return aclrtCreateEventExWithFlag(event, 0); }
Status aclrtDestroyEvent(void *event) {
  Streams::Instance().Destroy(static_cast<Event *>(event));
  return kSuccess;
}
Status aclrtRecordEvent(void *event, void *stream) { return Put(stream, Kind::kRecord, event); }
Status aclrtResetEvent(void *event, void *stream) { return Put(stream, Kind::kReset, event); }
Status aclrtSynchronizeEvent(void *event) { return Streams::Instance().WaitFor(static_cast<Event *>(event)); }
Status aclrtQueryEventStatus(void *event, int32_t *status) {
  constexpr int kComplete = 1;
  *status = kComplete;
  return Streams::Instance().WaitFor(static_cast<Event *>(event));
}
Status aclrtEventElapsedTime(float *milliseconds, void *start, void *end) {
  const auto took = static_cast<Event *>(end)->when - static_cast<Event *>(start)->when;
  return Give(milliseconds, std::chrono::duration<float, std::milli>(took).count());
}
Status aclrtLaunchCallback(void (*callback)(void *), void *data, int, void *stream) {
  auto run = [callback, data] {
    callback(data);
    return kSuccess;
  };
  return Streams::Instance().Add(stream, {Kind::kRun, run});
}

// Callbacks run as tasks of their stream; the threads that wait for them have nothing to do.
Status aclrtSubscribeReport(uint64_t, void *) { return kSuccess; }
Status aclrtProcessReport(int32_t) {
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return kSuccess;
}

Status aclSetTensorConst(Description *description, void *data, size_t size) {
  description->constant.assign(static_cast<const char *>(data), size);
  return kSuccess;
}

// The program's allocator for further memory of operators by name. They need none here.
void *aclrtAllocatorCreateDesc() { return new char; }

// MindSpore's op_timeout, in seconds; 0: none.
Status aclrtSetOpExecuteTimeOut(uint32_t seconds) {
  Device::Instance().kernel_seconds = seconds;
  return kSuccess;
}

// ------------------------------------------------------------------------------------------------------ without effect
#define VIRTUAL_ASCEND_NOTHING(name) \
  Status name() { return kSuccess; }
VIRTUAL_ASCEND_NOTHING(aclrtSetExceptionInfoCallback)
VIRTUAL_ASCEND_NOTHING(aclrtSetDeviceSatMode)
VIRTUAL_ASCEND_NOTHING(aclrtSetStreamFailureMode)
VIRTUAL_ASCEND_NOTHING(aclrtCtxSetSysParamOpt)
VIRTUAL_ASCEND_NOTHING(HcclSetConfig)
VIRTUAL_ASCEND_NOTHING(aclrtAllocatorDestroyDesc)
VIRTUAL_ASCEND_NOTHING(aclrtAllocatorRegister)
VIRTUAL_ASCEND_NOTHING(aclrtAllocatorSetAllocAdviseFuncToDesc)
VIRTUAL_ASCEND_NOTHING(aclrtAllocatorSetAllocFuncToDesc)
VIRTUAL_ASCEND_NOTHING(aclrtAllocatorSetFreeFuncToDesc)
VIRTUAL_ASCEND_NOTHING(aclrtAllocatorSetGetAddrFromBlockFuncToDesc)
VIRTUAL_ASCEND_NOTHING(aclrtAllocatorSetObjToDesc)
VIRTUAL_ASCEND_NOTHING(aclrtAllocatorUnregister)
VIRTUAL_ASCEND_NOTHING(aclmdlInitDump)
VIRTUAL_ASCEND_NOTHING(aclmdlFinalizeDump)
#undef VIRTUAL_ASCEND_NOTHING

}  // extern "C"

}  // namespace virtual_ascend
