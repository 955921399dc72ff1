// Runs calls of the kernel's entry points that arrive on standard input, in a process of its own: under sanitizers, or
// built for another processor. Every tensor is allocated with exactly its size. The format is that of remote.py.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

extern "C" {
int flash_attention_forward(int, void**, int*, int64_t**, const char**, void*, void*);
int flash_attention_backward(int, void**, int*, int64_t**, const char**, void*, void*);
int flash_attention_backward_bias(int, void**, int*, int64_t**, const char**, void*, void*);
int flash_attention_backward_sinks(int, void**, int*, int64_t**, const char**, void*, void*);
int flash_attention_backward_bias_sinks(int, void**, int*, int64_t**, const char**, void*, void*);
const char* flash_attention_message(int);
const char* flash_attention_isa(int);
}

static void read_exactly(void* to, size_t bytes) {
  if (bytes && std::fread(to, 1, bytes, stdin) != bytes) std::exit(2);
}

static void write_all(const void* from, size_t bytes) {
  if (bytes && std::fwrite(from, 1, bytes, stdout) != bytes) std::exit(2);
}

static std::string read_text() {
  int32_t size = 0;
  read_exactly(&size, sizeof(size));
  std::string text(size, '\0');
  read_exactly(&text[0], size);
  return text;
}

static void write_text(const char* text) {
  const int32_t size = text ? static_cast<int32_t>(std::strlen(text)) : -1;
  write_all(&size, sizeof(size));
  write_all(text, size > 0 ? size : 0);
}

struct Tensor {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t bytes = -1;  // -1 = absent
  void* data = nullptr;
};

int main() {
  int32_t count = 0;
  while (std::fread(&count, sizeof(count), 1, stdin) == 1) {
    const std::string function = read_text();
    if (function == "flash_attention_isa") {
      write_text(flash_attention_isa(count));
      std::fflush(stdout);
      continue;
    }
    if (function == "flash_attention_message") {
      write_text(flash_attention_message(count));
      std::fflush(stdout);
      continue;
    }
    const std::string isa = read_text();
    setenv("FLASH_ATTENTION_CPU_ISA", isa.c_str(), 1);
    int32_t inputs = 0;
    read_exactly(&inputs, sizeof(inputs));
    std::vector<Tensor> tensors(count);
    for (int i = 0; i < count; ++i) {
      Tensor& t = tensors[i];
      t.dtype = read_text();
      int32_t rank = 0;
      read_exactly(&rank, sizeof(rank));
      t.shape.resize(rank);
      read_exactly(t.shape.data(), rank * sizeof(int64_t));
      read_exactly(&t.bytes, sizeof(t.bytes));
      if (t.bytes < 0) continue;
      t.data = std::malloc(t.bytes);
      std::memset(t.data, 0xA5, t.bytes);
      if (i < inputs) read_exactly(t.data, t.bytes);
    }
    std::vector<void*> data;
    std::vector<int> ranks;
    std::vector<int64_t*> shapes;
    std::vector<const char*> dtypes;
    for (Tensor& t : tensors) {
      data.push_back(t.data);
      ranks.push_back(static_cast<int>(t.shape.size()));
      shapes.push_back(t.shape.data());
      dtypes.push_back(t.dtype.c_str());
    }
    const auto entry = function == "flash_attention_forward"          ? flash_attention_forward
                       : function == "flash_attention_backward"       ? flash_attention_backward
                       : function == "flash_attention_backward_bias"  ? flash_attention_backward_bias
                       : function == "flash_attention_backward_sinks" ? flash_attention_backward_sinks
                                                                      : flash_attention_backward_bias_sinks;
    const int32_t status = entry(count, data.data(), ranks.data(), shapes.data(), dtypes.data(), nullptr, nullptr);
    write_all(&status, sizeof(status));
    for (int i = 0; i < count; ++i) {
      if (i >= inputs) write_all(tensors[i].data, tensors[i].bytes);
      std::free(tensors[i].data);
    }
    std::fflush(stdout);
  }
  return 0;
}
