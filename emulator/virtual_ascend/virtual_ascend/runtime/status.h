// Codes that CANN's functions return, and the texts that MindSpore puts into its exceptions beside them.
#pragma once

#include <cstdint>
#include <string>

namespace virtual_ascend {

using Status = int32_t;

constexpr Status kSuccess = 0;
constexpr Status kBadArgument = 107000;
constexpr Status kNoMemory = 207001;
constexpr Status kQueueEmpty = 207013;
constexpr Status kQueueFull = 207014;
constexpr Status kDeviceLost = 507000;
constexpr Status kStuck = 507011;
constexpr Status kKernelFailed = 507015;

// Gives `code` back after `text` was kept for ErrorManager::GetErrorMessage.
Status Fail(Status code, const std::string &text);

// What was kept since the last call.
std::string TakeErrors();

}  // namespace virtual_ascend
