// GE's sessions: a graph that MindSpore adds is described to the device process, which runs it (device/graph.py).
#include "objects.h"

#include <dlfcn.h>
#include <stdio.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "../runtime/collectives.h"
#include "../runtime/device.h"
#include "../runtime/json.h"
#include "../runtime/streams.h"

using virtual_ascend::Device;
using virtual_ascend::List;
using virtual_ascend::Quoted;
using virtual_ascend::Request;
using virtual_ascend::Text;

extern "C" size_t aclDataTypeSize(int type);

namespace ge {

namespace {

// A line of JSON about a graph, and behind it the contents of its constants.
class Writer {
 public:
  string Graph(const Layout &graph) {
    const auto nodes = graph.Nodes();
    std::map<const Operation *, size_t> numbers;
    for (size_t i = 0; i < nodes.size(); ++i) numbers[nodes[i].get()] = i;
    auto place = [&](const Link &link) {
      return "[" + std::to_string(numbers[link.from.get()]) + "," + std::to_string(link.output) + "]";
    };
    string text = "{\"name\":" + Quoted(graph.name) + ",\"nodes\":[";
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Operation &node = *nodes[i];
      string inputs, outputs, before, attributes, subgraphs;
      for (const auto &port : node.inputs) {
        const auto link = node.links.find(port);
        const bool linked = link != node.links.end() && link->second.from;
        Append(&inputs, "[" + Quoted(port) + "," + (linked ? place(link->second) : "null") + "]");
      }
      for (const auto &port : node.outputs) {
        const auto found = node.out.find(port);
        Append(&outputs, "[" + Quoted(port) + "," + (found == node.out.end() ? "null" : Tensor(found->second)) + "]");
      }
      for (const auto &other : node.before) Append(&before, std::to_string(numbers[other.get()]));
      for (const auto &[name, value] : node.attributes) Append(&attributes, Quoted(name) + ":" + Value(value));
      for (const auto &[name, builder] : node.subgraphs) {
        Append(&subgraphs, Quoted(name) + ":" + Graph(*builder().layout));
      }
      text += (i ? "," : "") + ("{\"name\":" + Quoted(node.name)) + ",\"type\":" + Quoted(node.type) + ",\"inputs\":[" +
              inputs + "],\"outputs\":[" + outputs + "],\"before\":[" + before + "],\"attributes\":{" + attributes +
              "},\"subgraphs\":{" + subgraphs + "}}";
    }
    string results;
    for (const auto &link : graph.outputs) {
      if (link.from) Append(&results, place(link));
    }
    return text + "],\"results\":[" + results + "]}";
  }
  static string Tensor(const Description &one) {
    return "{\"dtype\":" + Text(int64_t{one.dtype}) + ",\"format\":" + Text(int64_t{one.format}) +
           ",\"shape\":" + List(one.shape, one.shape.size()) + "}";
  }
  string Constant(const Description &description, const uint8_t *data, size_t size) {
    const string place = std::to_string(contents.size());
    contents.append(reinterpret_cast<const char *>(data), size);
    return "{\"tensor\":" + Tensor(description) + ",\"at\":" + place + "}";
  }
  static void Append(string *list, const string &item) { *list += (list->empty() ? "" : ",") + item; }
  string contents;

 private:
  string Value(const std::any &value) {
    if (auto *held = std::any_cast<bool>(&value)) return Text(static_cast<uint8_t>(*held));
    if (auto *held = std::any_cast<int64_t>(&value)) return Text(*held);
    if (auto *held = std::any_cast<float>(&value)) return Text(*held);
    if (auto *held = std::any_cast<string>(&value)) return Text(*held);
    if (auto *held = std::any_cast<DataType>(&value)) return Text(int64_t{*held});
    if (auto *held = std::any_cast<std::vector<int64_t>>(&value)) return List(*held, held->size());
    if (auto *held = std::any_cast<std::vector<float>>(&value)) return List(*held, held->size());
    if (auto *held = std::any_cast<std::vector<string>>(&value)) return List(*held, held->size());
    if (auto *held = std::any_cast<std::vector<bool>>(&value)) {
      const std::vector<uint8_t> bytes(held->begin(), held->end());
      return List(bytes, bytes.size());
    }
    if (auto *held = std::any_cast<std::vector<DataType>>(&value)) {
      const std::vector<int64_t> numbers(held->begin(), held->end());
      return List(numbers, numbers.size());
    }
    if (auto *held = std::any_cast<std::vector<std::vector<int64_t>>>(&value)) {
      string rows;
      for (const auto &row : *held) Append(&rows, List(row, row.size()));
      return "[" + rows + "]";
    }
    if (auto *held = std::any_cast<ge::Tensor>(&value)) {
      return Constant(*held->t->description.d, held->t->data(), held->t->size);
    }
    return "null";
  }
};

virtual_ascend::Status Send(Request request, uint32_t number, const string &places, size_t count, const string &line,
                            const string &contents, string *answer = nullptr) {
  const string message = places + line + "\n" + contents;
  return Device::Instance().Ask(request, static_cast<uint32_t>(count), number, message.data(), message.size(), answer);
}

std::map<uint32_t, std::shared_ptr<Layout>> graphs;

// Types whose prototype came with an operator package, by a library op_proto in it.
std::set<string> from_packages;

void LoadPackages() {
  const char *paths = getenv("ASCEND_CUSTOM_OPP_PATH");
  string rest = paths ? paths : "";
  std::set<string> known;
  for (const auto &[type, creator] : Creators()) known.insert(type);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::filesystem::path folder = std::filesystem::path(rest.substr(0, end)) / "op_proto";
    rest.erase(0, end + 1);
    // MindSpore's own packages count as built in.
    if (folder.string().find("/mindspore/lib/plugin/") != string::npos || !is_directory(folder)) continue;
    for (const auto &file : std::filesystem::recursive_directory_iterator(folder)) {
      if (file.path().extension() != ".so" || file.path().string().find("aarch64") != string::npos) continue;
      if (!dlopen(file.path().c_str(), RTLD_NOW | RTLD_GLOBAL)) fprintf(stderr, "virtual-ascend: %s\n", dlerror());
    }
  }
  for (const auto &[type, creator] : Creators()) {
    if (!known.count(type)) from_packages.insert(type);
  }
}

// Differences between a node and the prototype in its package: ports, required attributes, inferred shapes.
string Differences(const std::shared_ptr<Operation> &node) {
  const auto prototype = Creators()[node->type]("").node;
  string found;
  for (const auto &[side, mine, theirs] : {std::tuple("inputs", node->inputs, prototype->inputs),
                                           std::tuple("outputs", node->outputs, prototype->outputs)}) {
    if (mine != theirs) {
      found += string("; ") + side + " are " + List(mine, mine.size()) + ", of the prototype " +
               List(theirs, theirs.size());
    }
  }
  for (const auto &name : prototype->required) {
    if (!node->attributes.count(name)) found += "; there is no attribute " + name;
  }
  const auto inference = Inferences().find(node->type);
  if (inference == Inferences().end()) return found + "; nothing infers its shapes";
  const auto described = node->out;
  Operator inferred;
  inferred.node = node;
  for (const auto &port : node->outputs) node->out[port] = Description{};
  if (inference->second(inferred) != kOk) found += "; its shapes cannot be inferred";
  for (const auto &[port, one] : described) {
    const Description &other = node->out[port];
    if (one.shape == other.shape && one.dtype == other.dtype) continue;
    found += "; " + port + " is " + Writer::Tensor(one) + ", inferred " + Writer::Tensor(other);
  }
  node->out = described;
  return found;
}

}  // namespace

KEPT Status GEInitialize(const std::map<string, string> &) {
  LoadPackages();
  return kOk;
}
KEPT Status GEFinalize() { return kOk; }

class CompiledGraphSummary {
 public:
  KEPT bool IsStatic() const { return true; }
  KEPT Status GetConstMemorySize(size_t &size) const { return Nothing(&size); }
  KEPT Status GetFeatureMemorySize(size_t &size) const { return Nothing(&size); }
  KEPT Status GetFixedFeatureMemorySize(size_t &size) const { return Nothing(&size); }
  KEPT Status GetRefreshableFeatureMemorySize(size_t &size) const { return Nothing(&size); }
  KEPT Status GetFeatureMemoryBaseRefreshable(bool &answer) const {
    answer = false;
    return kOk;
  }
  KEPT Status GetStreamNum(size_t &count) const { return Nothing(&count); }
  KEPT Status GetEventNum(size_t &count) const { return Nothing(&count); }
  KEPT Status GetOutputShapes(std::vector<Shape> &shapes) const {
    for (const auto &one : *outputs) shapes.push_back(Shape(one.shape));
    return kOk;
  }
  KEPT Status GetOutputDtypes(std::vector<DataType> &types) const {
    for (const auto &one : *outputs) types.push_back(DataType(one.dtype));
    return kOk;
  }
  KEPT Status GetIOIndexesWithSameAddr(std::vector<std::pair<uint32_t, uint32_t>> &) const { return kOk; }
  std::shared_ptr<std::vector<Description>> outputs = std::make_shared<std::vector<Description>>();

 private:
  static Status Nothing(size_t *size) {
    *size = 0;
    return kOk;
  }
};

// Returns MindSpore's description of an output. The output of an Identity has the description of its input.
Description Described(const Link &link) {
  const Operation &node = *link.from;
  const auto described = node.out.find(node.outputs[link.output]);
  if (described != node.out.end()) return described->second;
  const bool same = node.type == "Identity" || node.type == "IdentityN";
  const auto input = same ? node.links.find(node.inputs[link.output]) : node.links.end();
  return input == node.links.end() ? Description{} : Described(input->second);
}

// Memory of the card for a result that comes without: the caller takes it over.
bool Place(const Description &described, Tensor *result) {
  constexpr int kOnDevice = 1;
  size_t size = aclDataTypeSize(described.dtype);
  for (const int64_t extent : described.shape) size *= static_cast<size_t>(extent);
  auto memory = static_cast<uint8_t *>(Device::Instance().Allocate(size));
  if (!memory) return false;
  *result->t->description.d = described;
  result->t->description.d->placement = kOnDevice;
  return result->SetData(memory, size, [](uint8_t *data) { Device::Instance().Free(data); }) == kOk;
}

class Allocator;
class Session {
 public:
  KEPT explicit Session(const std::map<string, string> &) {}
  KEPT ~Session() {}
  KEPT Status AddGraph(uint32_t id, const Graph &graph, const std::map<string, string> &) {
    graphs[id] = graph.layout;
    for (const auto &node : graph.layout->Nodes()) {
      string found;
      if (!Creators().count(node->type)) found = ": the stand-in has no prototype of it (ge/prototypes.cc)";
      if (from_packages.count(node->type)) found = Differences(node);
      if (found.empty()) continue;
      fprintf(stderr, "virtual-ascend: node %s, type %s%s\n", node->name.c_str(), node->type.c_str(), found.c_str());
      virtual_ascend::Fail(virtual_ascend::kBadArgument, "node " + node->name + ", type " + node->type + found);
      return kFailed;
    }
    return kOk;
  }
  KEPT Status RemoveGraph(uint32_t id) {
    graphs.erase(id);
    return kOk;
  }
  KEPT Status CompileGraph(uint32_t id) {
    Writer writer;
    const string line = writer.Graph(*graphs[id]);
    return Send(Request::kGraph, id, "", 0, line, writer.contents) ? kFailed : kOk;
  }
  KEPT std::shared_ptr<CompiledGraphSummary> GetCompiledGraphSummary(uint32_t id) {
    auto summary = std::make_shared<CompiledGraphSummary>();
    for (const auto &link : graphs[id]->outputs) {
      if (link.from) summary->outputs->push_back(Described(link));
    }
    return summary;
  }
  // Tensors that lie on the host go along.
  KEPT Status RunGraphWithStreamAsync(uint32_t id, void *stream, const std::vector<Tensor> &inputs,
                                      std::vector<Tensor> &outputs) {
    Writer writer;
    string given, wanted;
    std::vector<const void *> data;
    for (const auto &one : inputs) {
      const Description &description = *one.t->description.d;
      const uint8_t *contents = one.t->data();
      const bool on_host = contents && !Device::Instance().Owns(contents);
      Writer::Append(&given, on_host ? writer.Constant(description, contents, one.t->size) : Writer::Tensor(description));
      data.push_back(contents);
    }
    const auto described = *GetCompiledGraphSummary(id)->outputs;
    bool placed = false;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].t->data()) {
        if (!Place(described[i], &outputs[i])) return kFailed;
        placed = true;
      }
      Writer::Append(&wanted, Writer::Tensor(*outputs[i].t->description.d));
      data.push_back(outputs[i].t->data());
    }
    const string line = "{\"inputs\":[" + given + "],\"outputs\":[" + wanted + "]}";
    auto run = [id, data, line, contents = writer.contents](bool on, string *answer) {
      if (on) return Send(Request::kGoOn, id, "", 0, "", "", answer);
      const string places = Device::Instance().Places(data.data(), data.size());
      return Send(Request::kRunGraph, id, places, data.size(), line, contents, answer);
    };
    if (virtual_ascend::Cards::Instance().AddGraph(id, run, stream)) return kFailed;
    auto &streams = virtual_ascend::Streams::Instance();
    // Memory that was placed here may be given back before the stream has run.
    return placed && streams.WaitFor(static_cast<virtual_ascend::Stream *>(stream)) ? kFailed : kOk;
  }
  KEPT Status RegisterCallBackFunc(const string &, uint32_t (*const &)(uint32_t, const std::map<string, Tensor> &)) {
    return kOk;
  }
  // The card has memory of its own for the tensors between a graph's nodes.
  KEPT Status SetGraphConstMemoryBase(uint32_t, const void *const, size_t) { return kOk; }
  KEPT Status UpdateGraphFeatureMemoryBase(uint32_t, const void *const, size_t) { return kOk; }
  KEPT Status SetGraphFixedFeatureMemoryBase(uint32_t, const void *const, size_t) { return kOk; }
  KEPT Status UpdateGraphRefreshableFeatureMemoryBase(uint32_t, const void *const, size_t) { return kOk; }
  KEPT Status RegisterExternalAllocator(const void *const, std::shared_ptr<Allocator>) const { return kOk; }
  KEPT Status UnregisterExternalAllocator(const void *const) const { return kOk; }

 private:
  uint64_t number_ = 0;
};

}  // namespace ge
