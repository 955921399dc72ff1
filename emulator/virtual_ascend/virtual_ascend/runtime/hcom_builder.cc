// How collectives come into sunk graphs. MindSpore describes each as a node of the graph engine (GE), has HCCL's builder
// make a task of it, whose contents only HCCL reads, and later gives this task to HCCL's store to put it into a stream.
// Classes that MindSpore constructs itself have the sizes of those that its plugin was compiled with.
#include <any>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "collectives.h"

using virtual_ascend::Cards;
using virtual_ascend::Collective;
using virtual_ascend::Fail;
using virtual_ascend::Group;
using virtual_ascend::kBadArgument;

extern "C" [[noreturn]] void virtual_ascend_missing(const char *name);

namespace ge {
using Options = std::map<std::string, std::string>;
enum Format : int;
enum DataType : int;
extern const std::string HCOM_ATTR_GROUP, HCOM_ATTR_SR_TAG, HCOM_ATTR_SRC_RANK, HCOM_ATTR_DEST_RANK;

// ---------------------------------------------------------------------------------------------------- nodes of graphs
class AttrHolder {
 public:
  virtual ~AttrHolder() = default;
  std::map<std::string, std::any> attributes;

 private:
  char rest_[24];
};
static_assert(sizeof(AttrHolder) == 80);

class GeShape {
 public:
  explicit GeShape(std::vector<int64_t> sizes);
  ~GeShape();
};
GeShape::GeShape(std::vector<int64_t>) {}
GeShape::~GeShape() {}

// What collectives work on comes with the task, so shapes and dtypes of the node are not needed.
class GeTensorDesc {
 public:
  GeTensorDesc(const GeShape &shape, Format format, DataType type);
  ~GeTensorDesc();
};
GeTensorDesc::GeTensorDesc(const GeShape &, Format, DataType) {}
GeTensorDesc::~GeTensorDesc() {}

class OpDesc : public std::enable_shared_from_this<OpDesc>, public AttrHolder {
 public:
  OpDesc(const std::string &name, const std::string &type);
  std::string GetType() const;
  uint32_t AddInputDesc(const GeTensorDesc &description);
  uint32_t AddOutputDesc(const GeTensorDesc &description);
  std::vector<int64_t> GetWorkspaceBytes() const;

 private:
  std::string type_;
  char rest_[8];
};
static_assert(sizeof(OpDesc) == 112);
OpDesc::OpDesc(const std::string &, const std::string &type) : type_(type) {}
std::string OpDesc::GetType() const { return type_; }
uint32_t OpDesc::AddInputDesc(const GeTensorDesc &) { return 0; }
uint32_t OpDesc::AddOutputDesc(const GeTensorDesc &) { return 0; }
std::vector<int64_t> OpDesc::GetWorkspaceBytes() const { return {0}; }

class Node {
 public:
  explicit Node(std::shared_ptr<OpDesc> description) : description_(std::move(description)) {}
  std::shared_ptr<OpDesc> GetOpDesc() const;

 private:
  std::shared_ptr<OpDesc> description_;
};
std::shared_ptr<OpDesc> Node::GetOpDesc() const { return description_; }

class ComputeGraph : public std::enable_shared_from_this<ComputeGraph>, public AttrHolder {
 public:
  explicit ComputeGraph(const std::string &name);
  std::shared_ptr<Node> AddNode(std::shared_ptr<OpDesc> description);

 private:
  char rest_[16];
};
static_assert(sizeof(ComputeGraph) == 112);
ComputeGraph::ComputeGraph(const std::string &) {}
std::shared_ptr<Node> ComputeGraph::AddNode(std::shared_ptr<OpDesc> description) {
  return std::make_shared<Node>(std::move(description));
}

class AttrUtils {
 public:
  class AttrHolderAdapter {
   public:
    AttrHolder *holder;
  };
  class ConstAttrHolderAdapter {
   public:
    const AttrHolder *holder;
  };
  static bool SetInt(AttrHolderAdapter &&holder, const std::string &name, const int64_t &value);
  static bool SetStr(AttrHolderAdapter &&holder, const std::string &name, const std::string &value);
  static bool SetListInt(AttrHolderAdapter &&holder, const std::string &name, const std::vector<int64_t> &value);
  static bool SetDataType(AttrHolderAdapter &&holder, const std::string &name, const DataType &value);
  static bool GetInt(ConstAttrHolderAdapter &&holder, const std::string &name, int64_t &value);
};
template <class Value>
static bool Put(AttrHolder *holder, const std::string &name, const Value &value) {
  holder->attributes[name] = value;
  return true;
}
template <class Value>
static bool Take(const AttrHolder *holder, const std::string &name, Value *value) {
  auto found = holder->attributes.find(name);
  const auto kept = found == holder->attributes.end() ? nullptr : std::any_cast<Value>(&found->second);
  if (kept) *value = *kept;
  return kept;
}
bool AttrUtils::SetInt(AttrHolderAdapter &&to, const std::string &name, const int64_t &value) {
  return Put(to.holder, name, value);
}
bool AttrUtils::SetStr(AttrHolderAdapter &&to, const std::string &name, const std::string &value) {
  return Put(to.holder, name, value);
}
bool AttrUtils::SetListInt(AttrHolderAdapter &&to, const std::string &name, const std::vector<int64_t> &value) {
  return Put(to.holder, name, value);
}
bool AttrUtils::SetDataType(AttrHolderAdapter &&to, const std::string &name, const DataType &value) {
  return Put(to.holder, name, value);
}
bool AttrUtils::GetInt(ConstAttrHolderAdapter &&from, const std::string &name, int64_t &value) {
  return Take(from.holder, name, &value);
}

class Buffer {
 public:
  Buffer();
  ~Buffer();
  char rest[16];
};
Buffer::Buffer() {}
Buffer::~Buffer() {}
}  // namespace ge

// --------------------------------------------------------------------------------------------------------------- tasks
namespace domi {
// A message of protocol buffers, of which MindSpore reads one field.
class TaskDef {
 public:
  explicit TaskDef(const std::string &contents) : private_def_(new std::string(contents)) {}
  TaskDef(const TaskDef &) = delete;
  TaskDef(TaskDef &&other) noexcept : private_def_(other.private_def_) { other.private_def_ = nullptr; }
  ~TaskDef();

 private:
  char before_[16];
  std::string *private_def_;
  char rest_[208];
};
static_assert(sizeof(TaskDef) == 232);
TaskDef::~TaskDef() { delete private_def_; }
}  // namespace domi

namespace ge {
struct RunContext;
struct OpInfo;
enum class CheckSupportFlag : int;

// What HCCL's builder hands to HCCL's store through MindSpore.
struct Contents {
  std::string group;
  int64_t source = 0, destination = 0, tag = 0;
  std::vector<int64_t> lists[4];

  explicit Contents(const OpDesc &node) {
    Take(&node, HCOM_ATTR_GROUP, &group);
    Take(&node, HCOM_ATTR_SRC_RANK, &source);
    Take(&node, HCOM_ATTR_DEST_RANK, &destination);
    Take(&node, HCOM_ATTR_SR_TAG, &tag);
    const char *const names[] = {"send_counts", "send_displacements", "recv_counts", "recv_displacements"};
    for (size_t i = 0; i < 4; ++i) Take(&node, names[i], &lists[i]);
  }
  explicit Contents(const std::string &text) {
    std::istringstream from(text);
    size_t size;
    from >> source >> destination >> tag;
    for (auto &list : lists) {
      from >> size;
      list.resize(size);
      for (auto &number : list) from >> number;
    }
    from.ignore();
    std::getline(from, group);
  }
  std::string Text() const {
    std::ostringstream to;
    to << source << ' ' << destination << ' ' << tag;
    for (const auto &list : lists) {
      to << ' ' << list.size();
      for (auto number : list) to << ' ' << number;
    }
    to << '\n' << group;
    return to.str();
  }
};

class OpsKernelBuilder {
 public:
  virtual ~OpsKernelBuilder() = default;
  virtual uint32_t Initialize(const Options &) { return 0; }
  virtual uint32_t Finalize() { return 0; }
  virtual uint32_t CalcOpRunningParam(Node &node) {
    Put<int64_t>(node.GetOpDesc().get(), "used_stream_num", 0);  // streams beside the one of the task
    return 0;
  }
  virtual uint32_t GenerateTask(const Node &node, RunContext &, std::vector<domi::TaskDef> &tasks) {
    tasks.emplace_back(Contents(*node.GetOpDesc()).Text());
    return 0;
  }
};

class OpsKernelBuilderRegistry {
 public:
  static OpsKernelBuilderRegistry &GetInstance();
  const std::map<std::string, std::shared_ptr<OpsKernelBuilder>> &GetAll() const;

 private:
  std::map<std::string, std::shared_ptr<OpsKernelBuilder>> builders_{
    {"ops_kernel_info_hccl", std::make_shared<OpsKernelBuilder>()}};
};
OpsKernelBuilderRegistry &OpsKernelBuilderRegistry::GetInstance() {
  static OpsKernelBuilderRegistry registry;
  return registry;
}
const std::map<std::string, std::shared_ptr<OpsKernelBuilder>> &OpsKernelBuilderRegistry::GetAll() const {
  return builders_;
}

struct HcclInfo {
  std::string input_name, type;
  void *input, *output, *workspace;
  int32_t count, dtype, reduction;
  int64_t root;
};

struct TaskInfo {
  uint32_t id;
  uint16_t type;
  uint32_t stream_id;
  void *stream, *event, *contents;
  uint32_t contents_size;
  void *store;
  std::vector<HcclInfo> calls;
};

// MindSpore calls the functions that have a body, by their place among all.
class OpsKernelInfoStore {
 public:
  virtual ~OpsKernelInfoStore() = default;
  virtual uint32_t Initialize(const Options &) { return 0; }
  virtual uint32_t Finalize() { return 0; }
  virtual uint32_t CreateSession() { virtual_ascend_missing("OpsKernelInfoStore::CreateSession"); }
  virtual uint32_t DestroySession() { virtual_ascend_missing("OpsKernelInfoStore::DestroySession"); }
  virtual void GetAllOpsKernelInfo() { virtual_ascend_missing("OpsKernelInfoStore::GetAllOpsKernelInfo"); }
  virtual bool CheckSupported() { virtual_ascend_missing("OpsKernelInfoStore::CheckSupported"); }
  virtual bool CheckAccuracySupported() { virtual_ascend_missing("OpsKernelInfoStore::CheckAccuracySupported"); }
  virtual void OpsFlagCheck() { virtual_ascend_missing("OpsKernelInfoStore::opsFlagCheck"); }
  virtual uint32_t CompileOp() { virtual_ascend_missing("OpsKernelInfoStore::CompileOp"); }
  virtual uint32_t CompileOpRun() { virtual_ascend_missing("OpsKernelInfoStore::CompileOpRun"); }
  virtual uint32_t LoadTask(TaskInfo &task);
  virtual bool CheckSupportedNode() { virtual_ascend_missing("OpsKernelInfoStore::CheckSupported"); }
  virtual bool CheckAccuracySupportedNode() { virtual_ascend_missing("OpsKernelInfoStore::CheckAccuracySupported"); }
  virtual uint32_t SetCutSupportedInfo() { virtual_ascend_missing("OpsKernelInfoStore::SetCutSupportedInfo"); }
  virtual uint32_t UnloadTask(TaskInfo &) { return 0; }
};

uint32_t OpsKernelInfoStore::LoadTask(TaskInfo &task) {
  const HcclInfo &info = *task.calls.data();
  const Contents contents(std::string(static_cast<const char *>(task.contents), task.contents_size));
  Group *group = Cards::Instance().Find(contents.group);
  if (!group) return kBadArgument;
  Collective call{info.type, info.input, info.output, static_cast<uint64_t>(info.count), info.dtype, info.reduction};
  call.tag = contents.tag;
  call.peer = static_cast<uint32_t>(info.type == "HcomSend"      ? contents.destination
                                    : info.type == "HcomReceive" ? contents.source
                                                                 : info.root);
  std::vector<uint64_t> *lists[] = {&call.send_counts, &call.send_offsets, &call.receive_counts, &call.receive_offsets};
  for (size_t i = 0; i < 4; ++i) lists[i]->assign(contents.lists[i].begin(), contents.lists[i].end());
  return Cards::Instance().Add(group, call, task.stream);
}
}  // namespace ge

extern "C" {

uint32_t Initialize(const ge::Options &) { return Cards::Instance().world() ? 0 : kBadArgument; }
uint32_t Finalize() { return 0; }
void GetOpsKernelInfoStores(std::map<std::string, std::shared_ptr<ge::OpsKernelInfoStore>> &stores) {
  stores["ops_kernel_info_hccl"] = std::make_shared<ge::OpsKernelInfoStore>();
}

}  // extern "C"
