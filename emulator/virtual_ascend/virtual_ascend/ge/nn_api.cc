// Arguments of the functions of aclnn, which are single operators on tensors. An Executor collects a call's arguments
// as JSON for the device process (device/nn.py). library.py writes the functions themselves.
#include "nn_api.h"

#include <string.h>

#include "../runtime/device.h"
#include "../runtime/json.h"
#include "../runtime/streams.h"

namespace virtual_ascend {
namespace {

struct NnTensor {
  std::vector<int64_t> shape, strides;
  int64_t offset;
  int dtype;
  const void *data;
};
struct NnScalar {
  int dtype;
  uint8_t bytes[16];
};
struct NnArray {
  std::vector<int64_t> values;
};
struct NnList {
  std::vector<const NnTensor *> tensors;
};

}  // namespace

void Executor::Add(const std::string &item) { arguments_ += (arguments_.empty() ? "" : ",") + item; }
void Executor::AddTensor(const void *given) {
  if (!given) return Add("null");
  const auto &one = *static_cast<const NnTensor *>(given);
  Add("{\"dtype\":" + Text(int64_t{one.dtype}) + ",\"offset\":" + Text(one.offset) + ",\"shape\":" +
      List(one.shape, one.shape.size()) + ",\"strides\":" + List(one.strides, one.strides.size()) + "}");
  data_.push_back(one.data);
}
void Executor::AddTensors(const void *given) {
  Executor list("");
  for (const auto *tensor : static_cast<const NnList *>(given)->tensors) list.AddTensor(tensor);
  Add("[" + list.arguments_ + "]");
  data_.insert(data_.end(), list.data_.begin(), list.data_.end());
}
void Executor::AddScalar(const void *given) {
  if (!given) return Add("null");
  const auto &one = *static_cast<const NnScalar *>(given);
  Add("{\"dtype\":" + Text(int64_t{one.dtype}) + ",\"bytes\":" + List(std::vector<int64_t>(one.bytes, one.bytes + 16), 16) +
      "}");
}
void Executor::AddArray(const void *given) {
  if (!given) return Add("null");
  const auto &values = static_cast<const NnArray *>(given)->values;
  Add(List(values, values.size()));
}
void Executor::AddNumber(double number) { Add(std::to_string(number)); }

Status Executor::Launch(void *stream) const {
  const std::string json = "{\"name\":" + Quoted(name_) + ",\"arguments\":[" + arguments_ + "]}";
  auto run = [data = data_, json] {
    const std::string message = Device::Instance().Places(data.data(), data.size()) + json;
    return Device::Instance().Ask(Request::kNn, static_cast<uint32_t>(data.size()), 0, message.data(), message.size());
  };
  return Streams::Instance().Add(stream, {Kind::kRun, run});
}

extern "C" {

size_t aclDataTypeSize(int type);

NnTensor *aclCreateTensor(const int64_t *sizes, uint64_t count, int type, const int64_t *strides, int64_t offset, int,
                          const int64_t *, uint64_t, void *data) {
  return new NnTensor{{sizes, sizes + count}, {strides, strides + count}, offset, type, data};
}
NnScalar *aclCreateScalar(const void *value, int type) {
  auto created = new NnScalar{type, {}};
  memcpy(created->bytes, value, aclDataTypeSize(type));
  return created;
}
NnArray *aclCreateIntArray(const int64_t *values, uint64_t count) { return new NnArray{{values, values + count}}; }
NnArray *aclCreateBoolArray(const bool *values, uint64_t count) { return new NnArray{{values, values + count}}; }
NnList *aclCreateTensorList(const NnTensor *const *tensors, uint64_t count) {
  return new NnList{{tensors, tensors + count}};
}
// AscendCL destroys the tensors of a list with the list. Here they stay, because they are small.
Status aclDestroyTensorList(const NnList *list) { return Delete(list); }
Status aclDestroyTensor(const NnTensor *tensor) { return Delete(tensor); }
Status aclDestroyScalar(const NnScalar *scalar) { return Delete(scalar); }
Status aclDestroyIntArray(const NnArray *array) { return Delete(array); }
Status aclDestroyBoolArray(const NnArray *array) { return Delete(array); }
// An executor serves one call.
Status aclSetAclOpExecutorRepeatable(void *) { return 1; }
Status aclDestroyAclOpExecutor(const Executor *executor) { return Delete(executor); }

}  // extern "C"

}  // namespace virtual_ascend
