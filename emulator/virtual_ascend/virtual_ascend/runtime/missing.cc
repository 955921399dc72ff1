// Ends the program when MindSpore calls a function of CANN that has no stand-in.
#include <cxxabi.h>
#include <stdio.h>
#include <stdlib.h>

extern "C" [[noreturn]] void virtual_ascend_missing(const char *name) {
  int status = 0;
  const char *readable = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  fprintf(stderr, "virtual-ascend: MindSpore called %s of CANN, which has no stand-in\n", readable ? readable : name);
  fflush(stderr);
  abort();
}
