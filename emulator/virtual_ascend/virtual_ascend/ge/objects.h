// The objects of the graph engine (GE) that MindSpore's plugin builds graphs of: a stand-in for graphengine's and metadef's
// public headers, as far as the plugin calls it. Every class holds one shared pointer, as theirs do, and an Operator has
// one virtual function; what lies behind the pointers is ours. Names and types of functions are theirs.
#pragma once

#include <any>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../runtime/status.h"

namespace ge {

using string = std::string;
using graphStatus = uint32_t;
using Status = uint32_t;
constexpr uint32_t kOk = 0, kFailed = 0xFFFFFFFF;
enum Format : int {};
enum DataType : int {};
enum Placement : int {};
constexpr int kNd = 2;

class AscendString {
 public:
  KEPT AscendString(const char *given) : text_(given ? std::make_shared<string>(given) : nullptr) {}
  KEPT const char *GetString() const { return text_ ? text_->c_str() : ""; }
  KEPT bool operator<(const AscendString &other) const { return strcmp(GetString(), other.GetString()) < 0; }

 private:
  std::shared_ptr<string> text_;
};

class Shape {
 public:
  KEPT Shape() : sizes(std::make_shared<std::vector<int64_t>>()) {}
  KEPT explicit Shape(const std::vector<int64_t> &given) : sizes(std::make_shared<std::vector<int64_t>>(given)) {}
  KEPT size_t GetDimNum() const { return sizes->size(); }
  KEPT int64_t GetDim(size_t axis) const { return axis < sizes->size() ? (*sizes)[axis] : 0; }
  KEPT graphStatus SetDim(size_t axis, int64_t size) {
    if (axis >= sizes->size()) return kFailed;
    (*sizes)[axis] = size;
    return kOk;
  }
  KEPT std::vector<int64_t> GetDims() const { return *sizes; }
  std::shared_ptr<std::vector<int64_t>> sizes;
};

struct Description {
  std::vector<int64_t> shape, origin;
  int format = kNd, dtype = 0, placement = 0;
};
class TensorDesc {
 public:
  KEPT TensorDesc() : d(std::make_shared<Description>()) {}
  KEPT TensorDesc(Shape shape, Format format, DataType type) : TensorDesc() {
    *d = {*shape.sizes, {}, format, type, 0};
  }
  explicit TensorDesc(const Description &given) : d(std::make_shared<Description>(given)) {}
  KEPT TensorDesc(const TensorDesc &other) : d(std::make_shared<Description>(*other.d)) {}
  KEPT TensorDesc(TensorDesc &&other) : TensorDesc(static_cast<const TensorDesc &>(other)) {}
  TensorDesc &operator=(const TensorDesc &other) {
    *d = *other.d;
    return *this;
  }
  KEPT Shape GetShape() const { return Shape(d->shape); }
  KEPT void SetShape(const Shape &shape) { d->shape = *shape.sizes; }
  KEPT Shape GetOriginShape() const { return Shape(d->origin); }
  KEPT void SetOriginShape(const Shape &shape) { d->origin = *shape.sizes; }
  KEPT Format GetFormat() const { return Format(d->format); }
  KEPT void SetFormat(Format format) { d->format = format; }
  KEPT void SetOriginFormat(Format) {}
  KEPT DataType GetDataType() const { return DataType(d->dtype); }
  KEPT void SetDataType(DataType type) { d->dtype = type; }
  KEPT Placement GetPlacement() const { return Placement(d->placement); }
  KEPT void SetPlacement(Placement placement) { d->placement = placement; }
  KEPT void SetRealDimCnt(int64_t) {}
  std::shared_ptr<Description> d;
};

// Contents that are the tensor's own, or that somebody gave together with a function that frees them.
struct TensorContents {
  using Deleter = std::function<void(uint8_t *)>;
  ~TensorContents() { Drop(); }
  void Drop() {
    if (given && free) free(given);
    given = nullptr;
    free = nullptr;
  }
  uint8_t *data() { return given ? given : own.empty() ? nullptr : own.data(); }
  TensorDesc description;
  std::vector<uint8_t> own;
  uint8_t *given = nullptr;
  size_t size = 0;
  Deleter free;
};
class Tensor {
 public:
  KEPT Tensor() : t(std::make_shared<TensorContents>()) {}
  KEPT explicit Tensor(const TensorDesc &description) : Tensor() { t->description = description; }
  KEPT Tensor(const TensorDesc &description, const uint8_t *data, size_t size) : Tensor(description) {
    SetData(data, size);
  }
  KEPT TensorDesc GetTensorDesc() const { return t->description; }
  KEPT graphStatus SetTensorDesc(const TensorDesc &description) {
    t->description = description;
    return kOk;
  }
  KEPT uint8_t *GetData() { return t->data(); }
  KEPT size_t GetSize() const { return t->size; }
  KEPT graphStatus SetData(const uint8_t *data, size_t size) {
    t->Drop();
    t->own.assign(data, data + size);
    t->size = size;
    return kOk;
  }
  KEPT graphStatus SetData(const string &text) {
    return SetData(reinterpret_cast<const uint8_t *>(text.data()), text.size());
  }
  KEPT graphStatus SetData(const std::vector<string> &) { return kFailed; }
  KEPT graphStatus SetData(uint8_t *data, size_t size, const TensorContents::Deleter &free) {
    t->Drop();
    t->given = data;
    t->size = size;
    t->free = free;
    return kOk;
  }
  KEPT std::unique_ptr<uint8_t[], TensorContents::Deleter> ResetData() {
    if (t->given) {
      auto given = t->given;
      t->given = nullptr;
      return {given, std::move(t->free)};
    }
    auto copy = new uint8_t[t->size + 1];
    if (t->size) memcpy(copy, t->data(), t->size);
    return {copy, [](uint8_t *data) { delete[] data; }};
  }
  std::shared_ptr<TensorContents> t;
};

class TensorType {
 public:
  KEPT TensorType(const std::initializer_list<DataType> &) {}
  std::shared_ptr<void> nothing;
};
class Promote {
 public:
  KEPT Promote(const std::initializer_list<const char *> &) {}
  std::shared_ptr<void> nothing;
};

class Graph;
struct Operation;
struct Link {
  std::shared_ptr<Operation> from;
  size_t output;
};
// The node behind an Operator. Ports are expanded: the second of a dynamic input x is x1.
struct Operation {
  string name, type;
  std::vector<string> inputs, outputs, required;
  std::map<string, uint32_t> counts;  // of dynamic ports
  std::map<string, Link> links;
  std::map<string, Description> in, out;
  std::vector<std::shared_ptr<Operation>> before;  // control edges
  std::map<string, std::any> attributes;
  std::map<string, std::function<Graph()>> subgraphs;  // by name, with the number of those of one name
};

class Operator;
Link LinkTo(const Operator &from, const string &port);  // an empty name is the first port

class Operator {
 public:
  KEPT explicit Operator(const char *type) : Operator(string(type), string(type)) {}
  KEPT explicit Operator(const string &type) : Operator(type, type) {}
  KEPT Operator(const char *name, const char *type) : Operator(string(name), string(type)) {}
  KEPT Operator(const AscendString &name, const AscendString &type) : Operator(name.GetString(), type.GetString()) {}
  KEPT Operator(const string &name, const string &type) : node(std::make_shared<Operation>()) {
    node->name = name;
    node->type = type;
  }
  Operator() = default;
  virtual ~Operator() = default;

  KEPT string GetName() const { return node ? node->name : ""; }
  KEPT graphStatus GetName(AscendString &name) const { return Say(GetName(), &name); }
  KEPT string GetOpType() const { return node ? node->type : ""; }
  KEPT graphStatus GetOpType(AscendString &type) const { return Say(GetOpType(), &type); }

  // ------------------------------------------------------------------------------------------------------- prototypes
#define VIRTUAL_ASCEND_PORT(Register, ports)                                     \
  KEPT void Register(const char *name) { node->ports.push_back(name); }        \
  KEPT void Register(const string &name) { node->ports.push_back(name); }      \
  KEPT void Register(const char *name, const char *) { node->ports.push_back(name); }
  VIRTUAL_ASCEND_PORT(InputRegister, inputs)
  VIRTUAL_ASCEND_PORT(OptionalInputRegister, inputs)
  VIRTUAL_ASCEND_PORT(OutputRegister, outputs)
#undef VIRTUAL_ASCEND_PORT
  KEPT void DynamicInputRegister(const char *name, unsigned count, bool) { Expand(name, count, &node->inputs); }
  KEPT void DynamicInputRegister(const char *name, unsigned count, const char *, bool) {
    Expand(name, count, &node->inputs);
  }
  KEPT void DynamicInputRegisterByIndex(const char *name, unsigned count, size_t at) {
    Expand(name, count, &node->inputs, at);
  }
  KEPT void DynamicOutputRegister(const char *name, unsigned count, bool) { Expand(name, count, &node->outputs); }
  KEPT void DynamicOutputRegister(const char *name, unsigned count, const char *, bool) {
    Expand(name, count, &node->outputs);
  }
  KEPT void RequiredAttrRegister(const char *name) { node->required.push_back(name); }
  KEPT void RequiredAttrRegister(const string &name) { node->required.push_back(name); }
  KEPT void RequiredAttrWithTypeRegister(const char *name, const char *) { node->required.push_back(name); }
  KEPT void DataTypeRegister(const char *, const TensorType &) {}
  KEPT void DataTypeRegister(const char *, const Promote &) {}
  KEPT void InferFuncRegister(const std::function<graphStatus(Operator &)> &) {}
  KEPT void SubgraphRegister(const char *, bool) {}
  KEPT void SubgraphCountRegister(const char *, uint32_t) {}
  KEPT void SetSubgraphBuilder(const char *name, uint32_t index, const std::function<Graph()> &builder) {
    node->subgraphs[name + std::to_string(index)] = builder;
  }

  // ------------------------------------------------------------------------------------------------------- attributes
#define VIRTUAL_ASCEND_VALUE(Type)                                                                    \
  KEPT void AttrRegister(const char *name, Type value) { node->attributes.emplace(name, Plain(value)); } \
  KEPT Operator &SetAttr(const char *name, Type value) { return Set(name, Plain(value)); }
#define VIRTUAL_ASCEND_ATTRIBUTE(Type) \
  VIRTUAL_ASCEND_VALUE(const Type &)   \
  KEPT graphStatus GetAttr(const char *name, Type &value) const { return Get(name, &value); }
  VIRTUAL_ASCEND_VALUE(bool)
  VIRTUAL_ASCEND_VALUE(int64_t)
  VIRTUAL_ASCEND_VALUE(float)
  VIRTUAL_ASCEND_VALUE(const AscendString &)
  VIRTUAL_ASCEND_VALUE(const std::vector<AscendString> &)
  VIRTUAL_ASCEND_ATTRIBUTE(Tensor)
  VIRTUAL_ASCEND_ATTRIBUTE(DataType)
  VIRTUAL_ASCEND_ATTRIBUTE(std::vector<DataType>)
  VIRTUAL_ASCEND_ATTRIBUTE(std::vector<int64_t>)
  VIRTUAL_ASCEND_ATTRIBUTE(std::vector<float>)
  VIRTUAL_ASCEND_ATTRIBUTE(std::vector<std::vector<int64_t>>)
#undef VIRTUAL_ASCEND_ATTRIBUTE
#undef VIRTUAL_ASCEND_VALUE
  KEPT Operator &SetAttr(const char *name, int32_t value) { return Set(name, int64_t{value}); }
  KEPT Operator &SetAttr(const char *name, uint32_t value) { return Set(name, int64_t{value}); }
  KEPT Operator &SetAttr(const char *name, const char *value) { return Set(name, string(value ? value : "")); }
  KEPT Operator &SetAttr(const char *name, const std::vector<int32_t> &value) { return Set(name, Plain(value)); }
  KEPT Operator &SetAttr(const string &name, bool value) { return Set(name, value); }
  KEPT Operator &SetAttr(const string &name, int32_t value) { return Set(name, int64_t{value}); }
  KEPT Operator &SetAttr(const string &name, int64_t value) { return Set(name, value); }
  KEPT Operator &SetAttr(const string &name, float value) { return Set(name, value); }
  KEPT Operator &SetAttr(const string &name, const string &value) { return Set(name, value); }
  KEPT Operator &SetAttr(const string &name, const std::vector<bool> &value) { return Set(name, value); }
  KEPT Operator &SetAttr(const string &name, const std::vector<int32_t> &value) { return Set(name, Plain(value)); }
  KEPT Operator &SetAttr(const string &name, const std::vector<int64_t> &value) { return Set(name, value); }
  KEPT Operator &SetAttr(const string &name, const std::vector<float> &value) { return Set(name, value); }
  KEPT Operator &SetAttr(const string &name, const std::vector<string> &value) { return Set(name, value); }
  KEPT graphStatus GetAttr(const char *name, bool &value) const { return Get(name, &value); }
  KEPT graphStatus GetAttr(const char *name, int64_t &value) const { return Get(name, &value); }
  KEPT graphStatus GetAttr(const char *name, float &value) const { return Get(name, &value); }
  KEPT graphStatus GetAttr(const char *name, int32_t &value) const {
    int64_t wide = 0;
    const graphStatus found = Get(name, &wide);
    value = static_cast<int32_t>(wide);
    return found;
  }
  KEPT graphStatus GetAttr(const char *name, std::vector<int32_t> &value) const {
    std::vector<int64_t> wide;
    const graphStatus found = Get(name, &wide);
    value.assign(wide.begin(), wide.end());
    return found;
  }
  KEPT graphStatus GetAttr(const string &name, string &value) const { return Get(name, &value); }
  KEPT graphStatus GetAttr(const string &name, std::vector<string> &value) const { return Get(name, &value); }

  // -------------------------------------------------------------------------------------------- descriptions and edges
  KEPT graphStatus UpdateInputDesc(const char *name, const TensorDesc &given) {
    node->in[name] = *given.d;
    return kOk;
  }
  KEPT graphStatus UpdateInputDesc(const string &name, const TensorDesc &given) {
    return UpdateInputDesc(name.c_str(), given);
  }
  KEPT graphStatus UpdateOutputDesc(const char *name, const TensorDesc &given) {
    node->out[name] = *given.d;
    return kOk;
  }
  KEPT graphStatus UpdateOutputDesc(const string &name, const TensorDesc &given) {
    return UpdateOutputDesc(name.c_str(), given);
  }
  KEPT graphStatus UpdateDynamicOutputDesc(const char *name, uint32_t index, const TensorDesc &given) {
    return UpdateOutputDesc(name + std::to_string(index), given);
  }
  KEPT TensorDesc GetInputDescByName(const char *name) const { return TensorDesc(node->in[name]); }
  KEPT TensorDesc GetOutputDescByName(const char *name) const { return TensorDesc(node->out[name]); }
  KEPT TensorDesc GetOutputDesc(const string &name) const { return TensorDesc(node->out[name]); }
  KEPT TensorDesc GetOutputDesc(uint32_t index) const {
    return index < node->outputs.size() ? GetOutputDesc(node->outputs[index]) : TensorDesc();
  }
  KEPT int GetDynamicOutputNum(const string &name) const { return static_cast<int>(node->counts[name]); }
  KEPT Operator &AddControlInput(const Operator &other) {
    node->before.push_back(other.node);
    return *this;
  }
  KEPT Operator &SetInput(const char *name, const Operator &from) { return SetInput(string(name), from, ""); }
  KEPT Operator &SetInput(const string &name, const Operator &from) { return SetInput(name, from, ""); }
  KEPT Operator &SetInput(const string &name, const Operator &from, const string &port) {
    node->links[name] = LinkTo(from, port);
    return *this;
  }
  KEPT Operator &SetInput(const char *name, uint32_t index, const Operator &from) {
    return SetInput(name + std::to_string(index), from, "");
  }
  KEPT Operator &SetInput(const char *name, uint32_t index, const Operator &from, const char *port) {
    return SetInput(name + std::to_string(index), from, string(port));
  }
  std::shared_ptr<Operation> node;

 private:
  static graphStatus Say(const string &text, AscendString *to) {
    *to = AscendString(text.c_str());
    return kOk;
  }
  // As attributes are kept: strings as std::string, whole numbers with 64 bits.
  template <class Value>
  static const Value &Plain(const Value &value) {
    return value;
  }
  static string Plain(const AscendString &value) { return value.GetString(); }
  static std::vector<string> Plain(const std::vector<AscendString> &values) {
    std::vector<string> plain;
    for (const auto &value : values) plain.push_back(value.GetString());
    return plain;
  }
  static std::vector<int64_t> Plain(const std::vector<int32_t> &values) { return {values.begin(), values.end()}; }
  template <class Value>
  Operator &Set(const string &name, const Value &value) {
    node->attributes[name] = value;
    return *this;
  }
  template <class Value>
  graphStatus Get(const string &name, Value *value) const {
    const auto found = node->attributes.find(name);
    const auto *held = found == node->attributes.end() ? nullptr : std::any_cast<Value>(&found->second);
    if (!held) return kFailed;
    *value = *held;
    return kOk;
  }
  void Expand(const string &name, uint32_t count, std::vector<string> *ports, size_t at = SIZE_MAX) {
    uint32_t &so_far = node->counts[name];
    for (uint32_t i = 0; i < count; ++i) {
      const size_t place = at == SIZE_MAX ? ports->size() : std::min(at + i, ports->size());
      ports->insert(ports->begin() + static_cast<std::ptrdiff_t>(place), name + std::to_string(so_far++));
    }
  }
};

// Prototypes by type, also the prototypes of prototypes.cc, and the functions that infer shapes.
using Creator = std::function<Operator(const string &name)>;
using Inference = std::function<graphStatus(Operator &)>;
std::map<string, Creator> &Creators();
std::map<string, Inference> &Inferences();

class OperatorCreatorRegister {
 public:
  KEPT OperatorCreatorRegister(const char *type, const std::function<Operator(const AscendString &)> &creator) {
    Creators()[type] = [creator](const string &name) { return creator(AscendString(name.c_str())); };
  }
  KEPT OperatorCreatorRegister(const string &type, const Creator &creator) { Creators()[type] = creator; }
};
class InferShapeFuncRegister {
 public:
  KEPT InferShapeFuncRegister(const char *type, const Inference &inference) { Inferences()[type] = inference; }
  KEPT InferShapeFuncRegister(const string &type, const Inference &inference) { Inferences()[type] = inference; }
};
class OperatorFactory {
 public:
  KEPT static bool IsExistOp(const string &type) { return Creators().count(type) > 0; }
  KEPT static bool IsExistOp(const char *type) { return IsExistOp(string(type)); }
  KEPT static Operator CreateOperator(const string &name, const string &type) {
    const auto creator = Creators().find(type);
    return creator == Creators().end() ? Operator() : creator->second(name);
  }
  KEPT static Operator CreateOperator(const char *name, const char *type) {
    return CreateOperator(string(name), string(type));
  }
};

struct Layout {
  string name;
  std::vector<std::shared_ptr<Operation>> inputs;
  std::vector<Link> outputs;
  // Each node comes after the nodes that it needs.
  std::vector<std::shared_ptr<Operation>> Nodes() const;
};
// A node in its graph, which MindSpore goes through to take superfluous nodes away.
struct Position {
  std::shared_ptr<Operation> node;
  std::shared_ptr<Layout> graph;
};
class GNode {
 public:
  using Other = std::shared_ptr<GNode>;
  KEPT GNode() {}
  KEPT graphStatus GetName(AscendString &name) const {
    name = AscendString(at->node->name.c_str());
    return kOk;
  }
  KEPT graphStatus GetType(AscendString &type) const {
    type = AscendString(at->node->type.c_str());
    return kOk;
  }
  KEPT graphStatus GetAttr(const AscendString &name, bool &value) const {
    Operator op;
    op.node = at->node;
    return op.GetAttr(name.GetString(), value);
  }
  KEPT size_t GetInputsSize() const { return at->node->inputs.size(); }
  KEPT size_t GetOutputsSize() const { return at->node->outputs.size(); }
  KEPT std::pair<Other, int32_t> GetInDataNodesAndPortIndexs(int32_t index) const;
  KEPT std::vector<std::pair<Other, int32_t>> GetOutDataNodesAndPortIndexs(int32_t index) const;
  KEPT std::vector<Other> GetInControlNodes() const;
  KEPT std::vector<Other> GetOutControlNodes() const;
  std::shared_ptr<Position> at;

 private:
  Other In(const std::shared_ptr<Operation> &node) const;
};
class Graph {
 public:
  KEPT explicit Graph(const char *name) : Graph(string(name)) {}
  KEPT explicit Graph(const string &name) : layout(std::make_shared<Layout>()) { layout->name = name; }
  KEPT const string &GetName() const { return layout->name; }
  KEPT void SetNeedIteration(bool) {}
  KEPT Graph &SetInputs(const std::vector<Operator> &operators) {
    layout->inputs.clear();
    for (const auto &one : operators) layout->inputs.push_back(one.node);
    return *this;
  }
  KEPT Graph &SetOutputs(const std::vector<Operator> &operators) {
    layout->outputs.clear();
    for (const auto &one : operators) {
      for (size_t i = 0; i < one.node->outputs.size(); ++i) layout->outputs.push_back({one.node, i});
    }
    return *this;
  }
  KEPT Graph &SetOutputs(const std::vector<std::pair<Operator, string>> &ports) {
    layout->outputs.clear();
    for (const auto &[one, port] : ports) layout->outputs.push_back(LinkTo(one, port));
    return *this;
  }
  KEPT std::vector<GNode> GetDirectNode() const {
    std::vector<GNode> nodes;
    for (const auto &node : layout->Nodes()) {
      nodes.emplace_back();
      nodes.back().at = std::make_shared<Position>(Position{node, layout});
    }
    return nodes;
  }
  KEPT graphStatus RemoveEdge(GNode &from, int32_t output, GNode &to, int32_t input);
  KEPT graphStatus AddDataEdge(GNode &from, int32_t output, GNode &to, int32_t input);
  KEPT graphStatus AddControlEdge(GNode &from, GNode &to) {
    to.at->node->before.push_back(from.at->node);
    return kOk;
  }
  // Without edges it is no longer reached.
  KEPT graphStatus RemoveNode(GNode &) { return kOk; }
  std::shared_ptr<Layout> layout;
};

}  // namespace ge
