// Collectives in sunk graphs. MindSpore describes each as a node of the graph engine (GE). HCCL's builder makes a task
// of the node, and only HCCL reads the task's contents. Later MindSpore gives the task to HCCL's store, which puts it
// into a stream. Classes that MindSpore constructs itself have the same sizes as in the compilation of its plugin.
#include <any>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "collectives.h"

using virtual_ascend::Cards;
using virtual_ascend::Collective;
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
  KEPT explicit GeShape(std::vector<int64_t>) {}
  KEPT ~GeShape() {}
};

// The task names the data of a collective, so shapes and dtypes of the node are not needed.
class GeTensorDesc {
 public:
  KEPT GeTensorDesc(const GeShape &, Format, DataType) {}
  KEPT ~GeTensorDesc() {}
};

class OpDesc : public std::enable_shared_from_this<OpDesc>, public AttrHolder {
 public:
  KEPT OpDesc(const std::string &, const std::string &type) : type_(type) {}
  KEPT std::string GetType() const { return type_; }
  KEPT uint32_t AddInputDesc(const GeTensorDesc &) { return 0; }
  KEPT uint32_t AddOutputDesc(const GeTensorDesc &) { return 0; }
  KEPT std::vector<int64_t> GetWorkspaceBytes() const { return {0}; }

 private:
  std::string type_;
  char rest_[8];
};
static_assert(sizeof(OpDesc) == 112);

class Node {
 public:
  explicit Node(std::shared_ptr<OpDesc> description) : description_(std::move(description)) {}
  KEPT std::shared_ptr<OpDesc> GetOpDesc() const { return description_; }

 private:
  std::shared_ptr<OpDesc> description_;
};

class ComputeGraph : public std::enable_shared_from_this<ComputeGraph>, public AttrHolder {
 public:
  KEPT explicit ComputeGraph(const std::string &) {}
  KEPT std::shared_ptr<Node> AddNode(std::shared_ptr<OpDesc> description) {
    return std::make_shared<Node>(std::move(description));
  }

 private:
  char rest_[16];
};
static_assert(sizeof(ComputeGraph) == 112);

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
  KEPT static bool SetInt(AttrHolderAdapter &&to, const std::string &name, const int64_t &value) {
    return Put(to.holder, name, value);
  }
  KEPT static bool SetStr(AttrHolderAdapter &&to, const std::string &name, const std::string &value) {
    return Put(to.holder, name, value);
  }
  KEPT static bool SetListInt(AttrHolderAdapter &&to, const std::string &name, const std::vector<int64_t> &value) {
    return Put(to.holder, name, value);
  }
  KEPT static bool SetDataType(AttrHolderAdapter &&to, const std::string &name, const DataType &value) {
    return Put(to.holder, name, value);
  }
  KEPT static bool GetInt(ConstAttrHolderAdapter &&from, const std::string &name, int64_t &value) {
    return Take(from.holder, name, &value);
  }
};

class Buffer {
 public:
  KEPT Buffer() {}
  KEPT ~Buffer() {}
  char rest[16];
};
}  // namespace ge

// --------------------------------------------------------------------------------------------------------------- tasks
namespace domi {
// A message of protocol buffers, of which MindSpore reads one field.
class TaskDef {
 public:
  explicit TaskDef(const std::string &contents) : private_def_(new std::string(contents)) {}
  TaskDef(const TaskDef &) = delete;
  TaskDef(TaskDef &&other) noexcept : private_def_(other.private_def_) { other.private_def_ = nullptr; }
  KEPT ~TaskDef() { delete private_def_; }

 private:
  char before_[16];
  std::string *private_def_;
  char rest_[208];
};
static_assert(sizeof(TaskDef) == 232);
}  // namespace domi

namespace ge {
struct RunContext;
struct OpInfo;
enum class CheckSupportFlag : int;

// Contents that HCCL's builder gives to HCCL's store through MindSpore.
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
    Put<int64_t>(node.GetOpDesc().get(), "used_stream_num", 0);  // streams beside the stream of the task
    return 0;
  }
  virtual uint32_t GenerateTask(const Node &node, RunContext &, std::vector<domi::TaskDef> &tasks) {
    tasks.emplace_back(Contents(*node.GetOpDesc()).Text());
    return 0;
  }
};

class OpsKernelBuilderRegistry {
 public:
  KEPT static OpsKernelBuilderRegistry &GetInstance() {
    static OpsKernelBuilderRegistry registry;
    return registry;
  }
  KEPT const std::map<std::string, std::shared_ptr<OpsKernelBuilder>> &GetAll() const { return builders_; }

 private:
  std::map<std::string, std::shared_ptr<OpsKernelBuilder>> builders_{
    {"ops_kernel_info_hccl", std::make_shared<OpsKernelBuilder>()}};
};

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
