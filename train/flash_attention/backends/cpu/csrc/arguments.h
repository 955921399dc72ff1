// Arguments of the entry points in the calling convention of MindSpore's ops.Custom(func_type="aot"), which ctypes uses too:
// every tensor, inputs then outputs, as pointer, rank, shape and dtype name. Reads and checks them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <stdexcept>
#include <string>

#include "problem.h"
#include "status.h"
#include "subnormals.h"

namespace flash_attention {

constexpr int64_t kMaxSize = int64_t{1} << 40;
constexpr int64_t kMaxElements = int64_t{1} << 46;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kVersion = 10;  // of the configuration tensors

// Checks throw a Status; the entry points return it.
struct Reject {
  int status;
};

inline void require(bool condition, int status) {
  if (!condition) throw Reject{status};
}

// What is wrong with a call in words of its own, which reach the caller in place of a Status.
struct Complaint : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Tensors {
  void** data;
  const int* ranks;
  int64_t* const* shapes;
  const char* const* dtypes;

  bool present(int i) const { return data[i] != nullptr; }
  const int64_t* shape(int i) const { return shapes[i]; }

  bool named(int i, const char* name) const { return std::strcmp(dtypes[i], name) == 0; }
  DType dtype(int i) const {
    if (named(i, "float32")) return DType::kFloat32;
    if (named(i, "float16")) return DType::kFloat16;
    if (named(i, "bfloat16")) return DType::kBFloat16;
    if (named(i, "bool") || named(i, "uint8")) return DType::kByte;
    throw Reject{kBadDType};
  }
  void check_like(int i, int other) const {
    require(present(i), kBadPointer);
    require(dtype(i) == dtype(other), kBadDType);
    require(ranks[i] == ranks[other] && std::equal(shapes[i], shapes[i] + ranks[i], shapes[other]), kBadShape);
    check_aligned(i, size_of(dtype(i)));
  }
  void check_shape(int i, std::initializer_list<int64_t> expected) const {
    require(ranks[i] == static_cast<int>(expected.size()), kBadShape);
    int axis = 0;
    for (int64_t size : expected) require(shapes[i][axis++] == size, kBadShape);
  }
  void check_aligned(int i, int64_t element) const {
    require(data[i] != nullptr && reinterpret_cast<uintptr_t>(data[i]) % element == 0, kBadPointer);
  }
  void check(int i, DType type, std::initializer_list<int64_t> expected) const {
    require(present(i), kBadPointer);
    require(dtype(i) == type, kBadDType);
    check_shape(i, expected);
    check_aligned(i, size_of(type));
  }
};

// Whether all tensors of an entry point are there.
inline void check_count(const Tensors& t, int count, int expected) {
  require(count == expected, kBadCount);
  for (int i = 0; i < count; ++i) require(t.present(i), kBadPointer);
}

// Numbers of a tensor of that dtype, which has the shape.
template <class T>
T* numbers(const Tensors& t, int i, const char* dtype, std::initializer_list<int64_t> expected) {
  require(t.present(i), kBadPointer);
  require(t.named(i, dtype), kBadDType);
  t.check_shape(i, expected);
  t.check_aligned(i, sizeof(T));
  return static_cast<T*>(t.data[i]);
}
inline int32_t* integers(const Tensors& t, int i, std::initializer_list<int64_t> expected) {
  return numbers<int32_t>(t, i, "int32", expected);
}

// An int64 configuration of so many numbers, which begins with the version.
inline const int64_t* config_of(const Tensors& t, int i, int64_t length) {
  const int64_t* config = numbers<int64_t>(t, i, "int64", {length});
  require(config[0] == kVersion, kBadConfig);
  return config;
}

inline int64_t checked_product(const int64_t* sizes, int count) {
  int64_t product = 1;
  for (int axis = 0; axis < count; ++axis) {
    require(sizes[axis] >= 1, kBadShape);
    require(sizes[axis] <= kMaxSize && product <= kMaxElements / sizes[axis], kTooLarge);
    product *= sizes[axis];
  }
  return product;
}

inline int64_t in_range(int64_t value, int64_t low, int64_t high) {
  require(value >= low && value <= high, kBadValue);
  return value;
}

// What an entry point gives for run(), which may throw; a Complaint goes on.
template <class Run>
int answer(const Run& run) {
  const KeepSubnormals keep;
  try {
    return run();
  } catch (const Reject& reject) {
    return reject.status;
  } catch (const Complaint&) {
    throw;
  } catch (...) {
    return kInternal;
  }
}

// Fills floating numbers with NaN, or with 0.
inline void fill(DType dtype, bool with_nan, int64_t count, void* data) {
  const uint32_t nan = dtype == DType::kFloat32 ? 0x7FC00000 : dtype == DType::kFloat16 ? 0x7E00 : 0x7FC0;
  const uint32_t bits = with_nan ? nan : 0;
  const int64_t size = size_of(dtype);
  for (int64_t i = 0; i < count; ++i) std::memcpy(static_cast<char*>(data) + size * i, &bits, size);
}

inline int64_t elements(const Tensors& t, int i) {
  return std::accumulate(t.shape(i), t.shape(i) + t.ranks[i], int64_t{1}, std::multiplies<int64_t>());
}

// Fills tensors from `first` on.
inline void fill(const Tensors& t, bool with_nan, int first, int count) {
  for (int i = first; i < count; ++i) fill(t.dtype(i), with_nan, elements(t, i), t.data[i]);
}

// MindSpore shows the text of an exception, but of a return code only its number.
inline int or_throw(const char* function, int status) {
  if (status != kOk) throw std::runtime_error(std::string(function) + ": " + message(status));
  return status;
}

// Numbers in tensors that are not allowed give NaN in all results, which begin with tensor `first`: MindSpore hands an
// exception to whatever waits next, and the results would read as zeros.
inline int or_nan(const char* function, int status, const Tensors& t, int first, int count) {
  const bool numbers = status == kBadLengths || status == kBadTable || status == kBadPrefix;
  if (!numbers) return or_throw(function, status);
  fill(t, true, first, count);
  return kOk;
}

}  // namespace flash_attention

// Functions that return vectors have C names for MindSpore, which is C++.
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wreturn-type-c-linkage"
#define FA_PARAMETERS int count, void **data, int *ranks, int64_t **shapes, const char **dtypes, void *, void *
#define FA_TENSORS (flash_attention::Tensors{data, ranks, shapes, dtypes})
