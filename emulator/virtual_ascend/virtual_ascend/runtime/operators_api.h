// The description of a tensor of an operator by name.
#pragma once

#include <stdint.h>

#include <string>
#include <vector>

namespace virtual_ascend {

struct Description {
  int type, format, stored_format;
  std::vector<int64_t> shape, stored_shape;
  bool on_host = false;
  std::string constant;  // the bytes of a constant
};

}  // namespace virtual_ascend
