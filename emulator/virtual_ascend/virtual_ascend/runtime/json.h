// Pieces of JSON, in which the device process is told what to do.
#pragma once

#include <stdio.h>

#include <cstdint>
#include <string>

namespace virtual_ascend {

inline std::string Quoted(const std::string &text) {
  std::string quoted = "\"";
  char code[8];
  for (const unsigned char byte : text) {
    if (byte == '"' || byte == '\\') quoted += '\\';
    if (byte < ' ' || byte > '~') {
      snprintf(code, sizeof code, "\\u%04x", byte);
      quoted += code;
    } else {
      quoted += static_cast<char>(byte);
    }
  }
  return quoted + '"';
}

inline std::string Text(int64_t value) { return std::to_string(value); }
inline std::string Text(uint8_t value) { return value ? "true" : "false"; }
inline std::string Text(const char *value) { return Quoted(value); }
inline std::string Text(const std::string &value) { return Quoted(value); }
inline std::string Text(float value) {
  char text[32];
  snprintf(text, sizeof text, "%.9g", value);
  return text;
}

template <class Values>
std::string List(const Values &values, size_t count) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) text += (i ? "," : "") + Text(values[i]);
  return text + "]";
}

}  // namespace virtual_ascend
