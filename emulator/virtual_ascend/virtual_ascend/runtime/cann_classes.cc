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
  static ErrorManager &GetInstance();
  int Init();
  std::string GetErrorMessage();
  std::string GetWarningMessage();
  void GenWorkStreamIdDefault();
  error_message::Context &GetErrorManagerContext();
  void SetErrorContext(error_message::Context context);
  int ReportErrMessage(std::string code, const std::map<std::string, std::string> &arguments);
};

ErrorManager &ErrorManager::GetInstance() {
  static ErrorManager manager;
  return manager;
}
int ErrorManager::Init() { return 0; }
std::string ErrorManager::GetErrorMessage() { return virtual_ascend::TakeErrors(); }
std::string ErrorManager::GetWarningMessage() { return {}; }
void ErrorManager::GenWorkStreamIdDefault() {}
error_message::Context &ErrorManager::GetErrorManagerContext() {
  static thread_local error_message::Context context;
  return context;
}
void ErrorManager::SetErrorContext(error_message::Context) {}
int ErrorManager::ReportErrMessage(std::string code, const std::map<std::string, std::string> &arguments) {
  for (const auto &[name, value] : arguments) code += " " + name + "=" + value;
  virtual_ascend::Fail(0, code);
  return 0;
}

// ---------------------------------------------------------------------------------------------------------- platform
namespace fe {
struct tag_platform_info;
struct tag_optional_info;
class PlatFormInfos {
 public:
  void SetCoreNumByCoreType(const std::string &type);
};
class OptionalInfos {
 public:
  void SetSocVersion(std::string version);
};
class PlatformInfoManager {
 public:
  static PlatformInfoManager &Instance();
  uint32_t InitializePlatformInfo();
  uint32_t Finalize();
  uint32_t GetPlatformInfo(std::string soc, tag_platform_info &platform, tag_optional_info &optional);
  uint32_t GetPlatformInfoWithOutSocVersion(tag_platform_info &platform, tag_optional_info &optional);
  uint32_t GetPlatformInfos(std::string soc, PlatFormInfos &platform, OptionalInfos &optional);
  void SetOptionalCompilationInfo(tag_optional_info &info);
  void SetOptionalCompilationInfo(OptionalInfos &info);
};
void PlatFormInfos::SetCoreNumByCoreType(const std::string &) {}
void OptionalInfos::SetSocVersion(std::string) {}
PlatformInfoManager &PlatformInfoManager::Instance() {
  static PlatformInfoManager manager;
  return manager;
}
uint32_t PlatformInfoManager::InitializePlatformInfo() { return 0; }
uint32_t PlatformInfoManager::Finalize() { return 0; }
// The descriptions stay as the caller made them: MindSpore 2.0 hands them on to CANN and reads nothing in them.
uint32_t PlatformInfoManager::GetPlatformInfo(std::string, tag_platform_info &, tag_optional_info &) { return 0; }
uint32_t PlatformInfoManager::GetPlatformInfoWithOutSocVersion(tag_platform_info &, tag_optional_info &) { return 0; }
uint32_t PlatformInfoManager::GetPlatformInfos(std::string, PlatFormInfos &, OptionalInfos &) { return 0; }
void PlatformInfoManager::SetOptionalCompilationInfo(tag_optional_info &) {}
void PlatformInfoManager::SetOptionalCompilationInfo(OptionalInfos &) {}
}  // namespace fe

// ------------------------------------------------------------------------------------------------------ graph engine
namespace ge {
using string = std::string;
constexpr uint32_t kFound = 0, kFailed = 0xFFFFFFFF;
enum Format : int;
enum DataType : int;

class AscendString {
 public:
  AscendString(const char *text);
  const char *GetString() const;
  std::shared_ptr<std::string> text;
};
AscendString::AscendString(const char *given) : text(given ? std::make_shared<std::string>(given) : nullptr) {}
const char *AscendString::GetString() const { return text ? text->c_str() : ""; }

class OppSoManager {
 public:
  static OppSoManager &GetInstance();
  void LoadOppPackage();
};
OppSoManager &OppSoManager::GetInstance() {
  static OppSoManager manager;
  return manager;
}
void OppSoManager::LoadOppPackage() {}

class Shape {
 public:
  Shape();
  explicit Shape(const std::vector<int64_t> &sizes);
  std::shared_ptr<void> contents;
};
Shape::Shape() {}
Shape::Shape(const std::vector<int64_t> &) {}

class TensorDesc {
 public:
  TensorDesc(Shape shape, Format format, DataType type);
  TensorDesc(const TensorDesc &other);
  TensorDesc(TensorDesc &&other);
  std::shared_ptr<void> contents;
};
TensorDesc::TensorDesc(Shape, Format, DataType) {}
TensorDesc::TensorDesc(const TensorDesc &other) : contents(other.contents) {}
TensorDesc::TensorDesc(TensorDesc &&other) : contents(std::move(other.contents)) {}

class Tensor {
 public:
  Tensor();
  explicit Tensor(const TensorDesc &description);
  Tensor(const TensorDesc &description, const uint8_t *data, size_t size);
  std::shared_ptr<void> contents;
};
Tensor::Tensor() {}
Tensor::Tensor(const TensorDesc &) {}
Tensor::Tensor(const TensorDesc &, const uint8_t *, size_t) {}

struct OperatorContents {
  std::string name, type;
  std::map<std::string, std::any> attributes;
};

// What is registered of an operator here serves graphs of GE, which MindSpore 2.0 does not make by default. Attributes are
// kept: MindSpore puts them into an operator and takes them out again to translate their names.
class Operator {
 public:
  explicit Operator(const char *type);
  Operator(const char *name, const char *type);
  Operator(const AscendString &name, const AscendString &type);
  explicit Operator(const string &type);
  Operator(const string &name, const string &type);
  virtual ~Operator() = default;
  string GetOpType() const;
  string GetName() const;
  void InputRegister(const char *, const char *);
  void OptionalInputRegister(const char *, const char *);
  void OutputRegister(const char *, const char *);
  void DynamicInputRegister(const char *, const unsigned int, const char *, bool);
  void DynamicOutputRegister(const char *, const unsigned int, const char *, bool);
  void RequiredAttrRegister(const char *);
  void AttrRegister(const char *, bool);
  void AttrRegister(const char *, int64_t);
  void AttrRegister(const char *, float);
  void AttrRegister(const char *, const AscendString &);
  void AttrRegister(const char *, const Tensor &);
  void AttrRegister(const char *, const DataType &);
  void AttrRegister(const char *, const std::vector<int64_t> &);
  void AttrRegister(const char *, const std::vector<float> &);
  void AttrRegister(const char *, const std::vector<AscendString> &);
  void SubgraphRegister(const char *, bool);
  void SubgraphCountRegister(const char *, uint32_t);
  Operator &SetAttr(const char *name, bool value);
  Operator &SetAttr(const char *name, int64_t value);
  Operator &SetAttr(const char *name, float value);
  Operator &SetAttr(const char *name, const Tensor &value);
  Operator &SetAttr(const char *name, const DataType &value);
  Operator &SetAttr(const char *name, const std::vector<DataType> &value);
  Operator &SetAttr(const char *name, const std::vector<int32_t> &value);
  Operator &SetAttr(const char *name, const std::vector<int64_t> &value);
  Operator &SetAttr(const char *name, const std::vector<float> &value);
  Operator &SetAttr(const char *name, const std::vector<std::vector<int64_t>> &value);
  Operator &SetAttr(const string &name, const string &value);
  Operator &SetAttr(const string &name, const std::vector<string> &value);
  uint32_t GetAttr(const char *name, bool &value) const;
  uint32_t GetAttr(const char *name, int64_t &value) const;
  uint32_t GetAttr(const char *name, float &value) const;
  uint32_t GetAttr(const char *name, Tensor &value) const;
  uint32_t GetAttr(const char *name, DataType &value) const;
  uint32_t GetAttr(const char *name, std::vector<int32_t> &value) const;
  uint32_t GetAttr(const char *name, std::vector<int64_t> &value) const;
  uint32_t GetAttr(const char *name, std::vector<float> &value) const;
  uint32_t GetAttr(const char *name, std::vector<std::vector<int64_t>> &value) const;
  uint32_t GetAttr(const string &name, string &value) const;
  uint32_t GetAttr(const string &name, std::vector<string> &value) const;

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
Operator::Operator(const char *type) : contents_(new OperatorContents{type, type, {}}) {}
Operator::Operator(const char *name, const char *type) : contents_(new OperatorContents{name, type, {}}) {}
Operator::Operator(const AscendString &name, const AscendString &type)
    : contents_(new OperatorContents{name.GetString(), type.GetString(), {}}) {}
Operator::Operator(const string &type) : contents_(new OperatorContents{type, type, {}}) {}
Operator::Operator(const string &name, const string &type) : contents_(new OperatorContents{name, type, {}}) {}
string Operator::GetOpType() const { return contents_->type; }
string Operator::GetName() const { return contents_->name; }
Operator &Operator::SetAttr(const char *name, bool value) { return Put(name, value); }
Operator &Operator::SetAttr(const char *name, int64_t value) { return Put(name, value); }
Operator &Operator::SetAttr(const char *name, float value) { return Put(name, value); }
Operator &Operator::SetAttr(const char *name, const Tensor &value) { return Put(name, value); }
Operator &Operator::SetAttr(const char *name, const DataType &value) { return Put(name, value); }
Operator &Operator::SetAttr(const char *name, const std::vector<DataType> &value) { return Put(name, value); }
Operator &Operator::SetAttr(const char *name, const std::vector<int32_t> &value) { return Put(name, value); }
Operator &Operator::SetAttr(const char *name, const std::vector<int64_t> &value) { return Put(name, value); }
Operator &Operator::SetAttr(const char *name, const std::vector<float> &value) { return Put(name, value); }
Operator &Operator::SetAttr(const char *name, const std::vector<std::vector<int64_t>> &value) { return Put(name, value); }
Operator &Operator::SetAttr(const string &name, const string &value) { return Put(name.c_str(), value); }
Operator &Operator::SetAttr(const string &name, const std::vector<string> &value) { return Put(name.c_str(), value); }
uint32_t Operator::GetAttr(const char *name, bool &value) const { return Take(name, &value); }
uint32_t Operator::GetAttr(const char *name, int64_t &value) const { return Take(name, &value); }
uint32_t Operator::GetAttr(const char *name, float &value) const { return Take(name, &value); }
uint32_t Operator::GetAttr(const char *name, Tensor &value) const { return Take(name, &value); }
uint32_t Operator::GetAttr(const char *name, DataType &value) const { return Take(name, &value); }
uint32_t Operator::GetAttr(const char *name, std::vector<int32_t> &value) const { return Take(name, &value); }
uint32_t Operator::GetAttr(const char *name, std::vector<int64_t> &value) const { return Take(name, &value); }
uint32_t Operator::GetAttr(const char *name, std::vector<float> &value) const { return Take(name, &value); }
uint32_t Operator::GetAttr(const char *name, std::vector<std::vector<int64_t>> &value) const { return Take(name, &value); }
uint32_t Operator::GetAttr(const string &name, string &value) const { return Take(name.c_str(), &value); }
uint32_t Operator::GetAttr(const string &name, std::vector<string> &value) const { return Take(name.c_str(), &value); }
void Operator::InputRegister(const char *, const char *) {}
void Operator::OptionalInputRegister(const char *, const char *) {}
void Operator::OutputRegister(const char *, const char *) {}
void Operator::DynamicInputRegister(const char *, const unsigned int, const char *, bool) {}
void Operator::DynamicOutputRegister(const char *, const unsigned int, const char *, bool) {}
void Operator::RequiredAttrRegister(const char *) {}
void Operator::AttrRegister(const char *, bool) {}
void Operator::AttrRegister(const char *, int64_t) {}
void Operator::AttrRegister(const char *, float) {}
void Operator::AttrRegister(const char *, const AscendString &) {}
void Operator::AttrRegister(const char *, const Tensor &) {}
void Operator::AttrRegister(const char *, const DataType &) {}
void Operator::AttrRegister(const char *, const std::vector<int64_t> &) {}
void Operator::AttrRegister(const char *, const std::vector<float> &) {}
void Operator::AttrRegister(const char *, const std::vector<AscendString> &) {}
void Operator::SubgraphRegister(const char *, bool) {}
void Operator::SubgraphCountRegister(const char *, uint32_t) {}

class OperatorCreatorRegister {
 public:
  OperatorCreatorRegister(const char *type, const std::function<Operator(const AscendString &)> &creator);
};
OperatorCreatorRegister::OperatorCreatorRegister(const char *,
                                                 const std::function<Operator(const AscendString &)> &) {}

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
