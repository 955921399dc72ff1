// Operators by name, aclop*: the way that MindSpore goes in PYNATIVE if it does not compile an operator itself. Each
// request goes to the device process as JSON.
#include "operators_api.h"

#include <stdio.h>
#include <string.h>

#include <string>
#include <vector>

#include "device.h"
#include "json.h"
#include "streams.h"

namespace virtual_ascend {
namespace {

struct Buffer {
  void *data;
  size_t size;
};

struct Attributes {
  std::string json;
};

Status Set(void *attributes, const char *name, const std::string &value) {
  auto &json = static_cast<Attributes *>(attributes)->json;
  json += (json.empty() ? "" : ",") + Quoted(name) + ":" + value;
  return kSuccess;
}

std::string Hex(const void *data, size_t size) {
  std::string text;
  char digits[3];
  for (size_t i = 0; i < size; ++i) {
    snprintf(digits, sizeof digits, "%02x", static_cast<const uint8_t *>(data)[i]);
    text += digits;
  }
  return text;
}

// Tensors of one side. The places of tensors on the card are appended.
std::string Tensors(int count, Description *const *descriptions, Buffer *const *buffers, std::vector<const void *> *data) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) {
    const Description &one = *descriptions[i];
    text += i ? "," : "";
    if (one.type < 0 || !buffers[i]) {  // an optional one that is left out
      text += "null";
      continue;
    }
    text += "{\"dtype\":" + Text(static_cast<int64_t>(one.type)) + ",\"format\":" +
            Text(static_cast<int64_t>(one.stored_format)) + ",\"shape\":" + List(one.stored_shape, one.stored_shape.size()) +
            ",\"ori_shape\":" + List(one.shape, one.shape.size());
    const bool constant = !one.constant.empty();
    if (constant) text += ",\"contents\":\"" + Hex(one.constant.data(), one.constant.size()) + "\"";
    else if (one.on_host) text += ",\"contents\":\"" + Hex(buffers[i]->data, buffers[i]->size) + "\"";
    text += "}";
    data->push_back(constant || one.on_host ? nullptr : buffers[i]->data);
  }
  return text + "]";
}

}  // namespace

extern "C" {

// ------------------------------------------------------------------------------------------------------------ tensors
Description *aclCreateTensorDesc(int type, int count, const int64_t *sizes, int format) {
  auto created = new Description{type, format, format, {}, {}};
  if (count > 0) created->shape.assign(sizes, sizes + count);
  created->stored_shape = created->shape;
  return created;
}
void aclDestroyTensorDesc(const Description *description) { delete description; }
Status aclSetTensorFormat(Description *description, int format) {
  description->stored_format = format;
  return kSuccess;
}
Status aclSetTensorShape(Description *description, int count, const int64_t *sizes) {
  description->stored_shape.assign(sizes, sizes + count);
  return kSuccess;
}
void aclSetTensorDescName(Description *, const char *) {}
Status aclSetTensorPlaceMent(Description *description, int place) {
  constexpr int kHost = 1;
  description->on_host = place == kHost;
  return kSuccess;
}
Buffer *aclCreateDataBuffer(void *data, size_t size) { return new Buffer{data, size}; }
Status aclDestroyDataBuffer(const Buffer *buffer) { return Delete(buffer); }
size_t aclDataTypeSize(int type) {
  constexpr size_t kSizes[] = {
    4, 2, 1, 4, 1, 0,  // float, float16, int8, int32, uint8, -
    2, 2, 4, 8, 8, 8,  // int16, uint16, uint32, int64, uint64, double
    1, 0, 0, 0, 8, 16  // bool, -, -, -, complex64, complex128
  };
  return type >= 0 && type < 18 ? kSizes[type] : 0;
}

// --------------------------------------------------------------------------------------------------------- attributes
void *aclopCreateAttr() { return new Attributes; }
void aclopDestroyAttr(const void *attributes) { delete static_cast<const Attributes *>(attributes); }
Status aclopSetAttrBool(void *attributes, const char *name, uint8_t value) { return Set(attributes, name, Text(value)); }
Status aclopSetAttrInt(void *attributes, const char *name, int64_t value) { return Set(attributes, name, Text(value)); }
Status aclopSetAttrFloat(void *attributes, const char *name, float value) { return Set(attributes, name, Text(value)); }
Status aclopSetAttrString(void *attributes, const char *name, const char *value) {
  return Set(attributes, name, Quoted(value));
}
Status aclopSetAttrDataType(void *attributes, const char *name, int value) {
  return Set(attributes, name, Text(static_cast<int64_t>(value)));
}
Status aclopSetAttrListBool(void *attributes, const char *name, int count, const uint8_t *values) {
  return Set(attributes, name, List(values, count));
}
Status aclopSetAttrListInt(void *attributes, const char *name, int count, const int64_t *values) {
  return Set(attributes, name, List(values, count));
}
Status aclopSetAttrListFloat(void *attributes, const char *name, int count, const float *values) {
  return Set(attributes, name, List(values, count));
}
Status aclopSetAttrListString(void *attributes, const char *name, int count, const char **values) {
  return Set(attributes, name, List(values, count));
}
Status aclopSetAttrListListInt(void *attributes, const char *name, int count, const int *sizes, const int64_t *const *rows) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i ? "," : "") + List(rows[i], sizes[i]);
  return Set(attributes, name, text + "]");
}

// ---------------------------------------------------------------------------------------------------------- execution
// Precision modes and the like; the operators have one implementation.
Status aclSetCompileopt(int, const char *) { return kSuccess; }
Status aclopSetCompileFlag(int) { return kSuccess; }
Status aclopCompileAndExecute(const char *type, int input_count, Description *const inputs[], Buffer *const input_data[],
                              int output_count, Description *const outputs[], Buffer *const output_data[],
                              const void *attributes, int, int, const char *, void *stream) {
  std::vector<const void *> data;
  const std::string given = Tensors(input_count, inputs, input_data, &data);
  const std::string wanted = Tensors(output_count, outputs, output_data, &data);
  const std::string named = attributes ? static_cast<const Attributes *>(attributes)->json : "";
  const std::string json = "{\"type\":" + Quoted(type) + ",\"inputs\":" + given + ",\"outputs\":" + wanted +
                           ",\"attributes\":{" + named + "}}";
  auto run = [data, json] {
    const std::string message = Device::Instance().Places(data.data(), data.size()) + json;
    return Device::Instance().Ask(Request::kOperator, static_cast<uint32_t>(data.size()), 0, message.data(), message.size());
  };
  return Streams::Instance().Add(stream, {Kind::kRun, run});
}
Status aclopCompileAndExecuteV2(const char *type, int input_count, Description *inputs[], Buffer *input_data[],
                                int output_count, Description *outputs[], Buffer *output_data[], void *attributes,
                                int engine, int flag, const char *path, void *stream) {
  return aclopCompileAndExecute(type, input_count, inputs, input_data, output_count, outputs, output_data, attributes,
                                engine, flag, path, stream);
}

}  // extern "C"

}  // namespace virtual_ascend
