// A call of a function of aclnn, see nn_api.cc.
#pragma once

#include <string>
#include <vector>

#include "../runtime/status.h"

namespace virtual_ascend {

class Executor {
 public:
  explicit Executor(const char *name) : name_(name) {}
  void AddTensor(const void *tensor);
  void AddTensors(const void *list);
  void AddScalar(const void *scalar);
  void AddArray(const void *array);
  void AddNumber(double number);
  Status Launch(void *stream) const;

 private:
  void Add(const std::string &item);
  std::string name_, arguments_;
  std::vector<const void *> data_;
};

}  // namespace virtual_ascend
