// Codes that CANN's functions return, and the texts that MindSpore puts into its exceptions beside them.
#pragma once

#include <cstdint>
#include <string>

// Before a function in a class: it is in the library, even if nothing here calls it.
#define KEPT [[gnu::used]]

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
// Of a task in a stream, which is not done yet: it runs again as soon as it is ready.
constexpr Status kAgain = -1;

// The answer of a function that has its results in memory of the caller.
template <class To, class Value>
Status Give(To *to, Value value) {
  *to = static_cast<To>(value);
  return kSuccess;
}

template <class Object>
Status Delete(const Object *object) {
  delete object;
  return kSuccess;
}

// Gives `code` back after `text` was kept for ErrorManager::GetErrorMessage.
Status Fail(Status code, const std::string &text);

// Returns the texts that were kept since the last call.
std::string TakeErrors();

}  // namespace virtual_ascend
