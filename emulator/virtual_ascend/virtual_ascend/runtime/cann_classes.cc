// C++ classes of CANN: the manager of error texts, the description of the platform, and of the graph engine (GE) what the
// plugin constructs while it is loaded. Sizes and layouts are ours wherever only this library looks inside.
#include <sys/syscall.h>
#include <unistd.h>

#include <any>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "status.h"

using virtual_ascend::Status;

namespace error_message {
struct Context {
  uint64_t work_stream_id = 0;
  std::string first_stage, second_stage, log_header;
};
}  // namespace error_message

class ErrorManager {
 public:
  KEPT static ErrorManager &GetInstance() {
    static ErrorManager manager;
    return manager;
  }
  KEPT int Init() { return 0; }
  KEPT std::string GetErrorMessage() { return virtual_ascend::TakeErrors(); }
  KEPT std::string GetWarningMessage() { return {}; }
  KEPT void GenWorkStreamIdDefault() {}
  KEPT error_message::Context &GetErrorManagerContext() {
    static thread_local error_message::Context context;
    return context;
  }
  KEPT void SetErrorContext(error_message::Context) {}
  KEPT int ReportErrMessage(std::string code, const std::map<std::string, std::string> &arguments) {
    for (const auto &[name, value] : arguments) code += " " + name + "=" + value;
    virtual_ascend::Fail(0, code);
    return 0;
  }
};

// ---------------------------------------------------------------------------------------------------------- platform
namespace fe {
struct tag_platform_info;
struct tag_optional_info;
class PlatFormInfos {
 public:
  KEPT void SetCoreNumByCoreType(const std::string &) {}
};
class OptionalInfos {
 public:
  KEPT void SetSocVersion(std::string) {}
};
class PlatformInfoManager {
 public:
  KEPT static PlatformInfoManager &Instance() {
    static PlatformInfoManager manager;
    return manager;
  }
  KEPT uint32_t InitializePlatformInfo() { return 0; }
  KEPT uint32_t Finalize() { return 0; }
  // The descriptions stay as the caller made them: MindSpore 2.0 hands them on to CANN and reads nothing in them.
  KEPT uint32_t GetPlatformInfo(std::string, tag_platform_info &, tag_optional_info &) { return 0; }
  KEPT uint32_t GetPlatformInfoWithOutSocVersion(tag_platform_info &, tag_optional_info &) { return 0; }
  KEPT uint32_t GetPlatformInfos(std::string, PlatFormInfos &, OptionalInfos &) { return 0; }
  KEPT void SetOptionalCompilationInfo(tag_optional_info &) {}
  KEPT void SetOptionalCompilationInfo(OptionalInfos &) {}
};
}  // namespace fe

// ------------------------------------------------------------------------------------------------------ graph engine
namespace ge {
using string = std::string;
constexpr uint32_t kFound = 0, kFailed = 0xFFFFFFFF;
enum Format : int;
enum DataType : int;

class AscendString {
 public:
  KEPT AscendString(const char *given) : text(given ? std::make_shared<std::string>(given) : nullptr) {}
  KEPT const char *GetString() const { return text ? text->c_str() : ""; }
  std::shared_ptr<std::string> text;
};

class OppSoManager {
 public:
  KEPT static OppSoManager &GetInstance() {
    static OppSoManager manager;
    return manager;
  }
  KEPT void LoadOppPackage() {}
};

class Shape {
 public:
  KEPT Shape() {}
  KEPT explicit Shape(const std::vector<int64_t> &) {}
  std::shared_ptr<void> contents;
};

class TensorDesc {
 public:
  KEPT TensorDesc(Shape, Format, DataType) {}
  KEPT TensorDesc(const TensorDesc &other) : contents(other.contents) {}
  KEPT TensorDesc(TensorDesc &&other) : contents(std::move(other.contents)) {}
  std::shared_ptr<void> contents;
};

class Tensor {
 public:
  KEPT Tensor() {}
  KEPT explicit Tensor(const TensorDesc &) {}
  KEPT Tensor(const TensorDesc &, const uint8_t *, size_t) {}
  std::shared_ptr<void> contents;
};

struct OperatorContents {
  std::string name, type;
  std::map<std::string, std::any> attributes;
};

// What is registered of an operator here serves graphs of GE, which MindSpore 2.0 does not make by default. Attributes are
// kept: MindSpore puts them into an operator and takes them out again to translate their names.
class Operator {
 public:
  KEPT explicit Operator(const char *type) : Operator(type, type) {}
  KEPT Operator(const char *name, const char *type) : contents_(new OperatorContents{name, type, {}}) {}
  KEPT Operator(const AscendString &name, const AscendString &type) : Operator(name.GetString(), type.GetString()) {}
  KEPT explicit Operator(const string &type) : Operator(type, type) {}
  KEPT Operator(const string &name, const string &type) : contents_(new OperatorContents{name, type, {}}) {}
  virtual ~Operator() = default;
  KEPT string GetOpType() const { return contents_->type; }
  KEPT string GetName() const { return contents_->name; }
  KEPT void InputRegister(const char *, const char *) {}
  KEPT void OptionalInputRegister(const char *, const char *) {}
  KEPT void OutputRegister(const char *, const char *) {}
  KEPT void DynamicInputRegister(const char *, const unsigned int, const char *, bool) {}
  KEPT void DynamicOutputRegister(const char *, const unsigned int, const char *, bool) {}
  KEPT void RequiredAttrRegister(const char *) {}
  KEPT void AttrRegister(const char *, bool) {}
  KEPT void AttrRegister(const char *, int64_t) {}
  KEPT void AttrRegister(const char *, float) {}
  KEPT void AttrRegister(const char *, const AscendString &) {}
  KEPT void AttrRegister(const char *, const Tensor &) {}
  KEPT void AttrRegister(const char *, const DataType &) {}
  KEPT void AttrRegister(const char *, const std::vector<int64_t> &) {}
  KEPT void AttrRegister(const char *, const std::vector<float> &) {}
  KEPT void AttrRegister(const char *, const std::vector<AscendString> &) {}
  KEPT void SubgraphRegister(const char *, bool) {}
  KEPT void SubgraphCountRegister(const char *, uint32_t) {}
  KEPT Operator &SetAttr(const char *name, bool value) { return Put(name, value); }
  KEPT Operator &SetAttr(const char *name, int64_t value) { return Put(name, value); }
  KEPT Operator &SetAttr(const char *name, float value) { return Put(name, value); }
  KEPT Operator &SetAttr(const char *name, const Tensor &value) { return Put(name, value); }
  KEPT Operator &SetAttr(const char *name, const DataType &value) { return Put(name, value); }
  KEPT Operator &SetAttr(const char *name, const std::vector<DataType> &value) { return Put(name, value); }
  KEPT Operator &SetAttr(const char *name, const std::vector<int32_t> &value) { return Put(name, value); }
  KEPT Operator &SetAttr(const char *name, const std::vector<int64_t> &value) { return Put(name, value); }
  KEPT Operator &SetAttr(const char *name, const std::vector<float> &value) { return Put(name, value); }
  KEPT Operator &SetAttr(const char *name, const std::vector<std::vector<int64_t>> &value) { return Put(name, value); }
  KEPT Operator &SetAttr(const string &name, const string &value) { return Put(name.c_str(), value); }
  KEPT Operator &SetAttr(const string &name, const std::vector<string> &value) { return Put(name.c_str(), value); }
  KEPT uint32_t GetAttr(const char *name, bool &value) const { return Take(name, &value); }
  KEPT uint32_t GetAttr(const char *name, int64_t &value) const { return Take(name, &value); }
  KEPT uint32_t GetAttr(const char *name, float &value) const { return Take(name, &value); }
  KEPT uint32_t GetAttr(const char *name, Tensor &value) const { return Take(name, &value); }
  KEPT uint32_t GetAttr(const char *name, DataType &value) const { return Take(name, &value); }
  KEPT uint32_t GetAttr(const char *name, std::vector<int32_t> &value) const { return Take(name, &value); }
  KEPT uint32_t GetAttr(const char *name, std::vector<int64_t> &value) const { return Take(name, &value); }
  KEPT uint32_t GetAttr(const char *name, std::vector<float> &value) const { return Take(name, &value); }
  KEPT uint32_t GetAttr(const char *name, std::vector<std::vector<int64_t>> &value) const { return Take(name, &value); }
  KEPT uint32_t GetAttr(const string &name, string &value) const { return Take(name.c_str(), &value); }
  KEPT uint32_t GetAttr(const string &name, std::vector<string> &value) const { return Take(name.c_str(), &value); }

 private:
  template <class Value>
  Operator &Put(const char *name, const Value &value) {
    contents_->attributes[name] = value;
    return *this;
  }
  template <class Value>
  uint32_t Take(const char *name, Value *value) const {
    auto found = contents_->attributes.find(name);
    const Value *kept = found == contents_->attributes.end() ? nullptr : std::any_cast<Value>(&found->second);
    if (!kept) return kFailed;
    *value = *kept;
    return kFound;
  }
  std::shared_ptr<OperatorContents> contents_;
};

class OperatorCreatorRegister {
 public:
  KEPT OperatorCreatorRegister(const char *, const std::function<Operator(const AscendString &)> &) {}
};

extern const std::string HCOM_ATTR_GROUP, HCOM_ATTR_SHAPE, HCOM_ATTR_SR_TAG, HCOM_ATTR_SRC_RANK, HCOM_ATTR_DATA_TYPE,
  HCOM_ATTR_DEST_RANK, HCOM_ATTR_RANK_SIZE, ATOMIC_ATTR_OUTPUT_INDEX;
const std::string HCOM_ATTR_GROUP = "group";
const std::string HCOM_ATTR_SHAPE = "shape";
const std::string HCOM_ATTR_SR_TAG = "sr_tag";
const std::string HCOM_ATTR_SRC_RANK = "src_rank";
const std::string HCOM_ATTR_DATA_TYPE = "dtype";
const std::string HCOM_ATTR_DEST_RANK = "dest_rank";
const std::string HCOM_ATTR_RANK_SIZE = "rank_size";
const std::string ATOMIC_ATTR_OUTPUT_INDEX = "atomic_output_index";
}  // namespace ge

namespace gelc {
// Which optional features CANN is licensed for: none.
uint32_t GetOptInfo(uint32_t, const std::string &, std::map<std::string, std::string> &);
uint32_t GetOptInfo(uint32_t, const std::string &, std::map<std::string, std::string> &) { return 0; }
}  // namespace gelc

// --------------------------------------------------------------------------------------------------------------- log
extern "C" {
int DlogReportInitialize() { return 0; }
int DlogReportFinalize() { return 0; }
int mmGetTid() { return static_cast<int>(syscall(SYS_gettid)); }
}
