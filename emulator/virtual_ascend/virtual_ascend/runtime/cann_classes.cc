// C++ classes of CANN: the manager of error texts and the description of the platform. Sizes and layouts are our own
// if only this library looks inside.
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
// ../ge has the objects of the engine, which the plugin constructs while it is loaded.
namespace ge {
class OppSoManager {
 public:
  KEPT static OppSoManager &GetInstance() {
    static OppSoManager manager;
    return manager;
  }
  KEPT void LoadOppPackage() {}
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
