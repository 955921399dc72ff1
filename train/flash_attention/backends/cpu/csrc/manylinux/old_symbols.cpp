// What the headers of new compilers use and the libraries of manylinux2014 lack.
#include <new>

// glibc 2.32: nonzero while the process has one thread. Zero is always safe.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;

namespace std {

// GCC 11.
[[noreturn]] __attribute__((visibility("hidden"))) void __throw_bad_array_new_length() { throw bad_alloc(); }

}  // namespace std
