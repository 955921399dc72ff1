// Streams as queues. Tasks that nothing orders may run in any order: whenever somebody waits, a stream is drawn at
// random among the streams that can go on, and its next task runs. Nothing runs before somebody waits, so a missing
// wait shows too. The seed and the calls of the program decide everything.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "status.h"

namespace virtual_ascend {

// How long a wait lasts in which nothing happens, before it is an error: VIRTUAL_ASCEND_PATIENCE.
std::chrono::seconds Patience();

struct Stream;
struct Model;

// In streams outside models, a wait is for the latest record before it in the order of the program's calls. The tasks
// of a model are all there before it runs. There a wait is for the flag, which a reset takes back.
struct Event {
  uint32_t id = 0;
  bool recorded = false;
  uint64_t calls = 0, done = 0;  // records asked for and executed
  std::chrono::steady_clock::time_point when;
};

// A place in a stream of a model.
struct Label {
  Stream *stream = nullptr;
  size_t at = 0;
};

enum class Kind { kRun, kRecord, kWait, kReset, kActivate, kSwitch, kGoto, kModel, kEnd };

// An entry of a stream. The kind decides which fields count.
struct Task {
  Kind kind = Kind::kRun;
  std::function<Status()> run;             // kRun
  std::function<bool()> ready{};           // kRun: whether it can go on, if other cards decide it
  Event *event = nullptr;                  // kRecord, kWait, kReset
  Stream *stream = nullptr;                // kActivate, kSwitch: the stream that begins
  std::function<bool()> condition{};       // kSwitch
  std::function<const Label *()> label{};  // kGoto: null if there is none
  Model *model = nullptr;                  // kModel
  uint64_t turn = 0;                       // kRecord, kWait outside models: which record
  uint32_t id = 0;
};

// A stream of a model keeps its tasks, and runs them from `position` whenever the model runs and it is active.
struct Stream {
  uint32_t id = 0;
  Model *model = nullptr;
  std::deque<Task> tasks;
  size_t position = 0;
  bool active = false;
  uint32_t task_count = 0;
};

struct Model {
  uint32_t id = 0;
  std::map<Stream *, bool> streams;  // whether it is active from the beginning
  bool running = false;
};

// Where a task failed, for MindSpore's callback.
struct Failure {
  uint32_t task, stream;
  Status code;
};

class Streams {
 public:
  static Streams &Instance();

  Stream *CreateStream();
  void Destroy(Stream *stream);
  Event *CreateEvent();
  void Destroy(Event *event);
  Model *CreateModel();
  void Destroy(Model *model);
  void Bind(Model *model, Stream *stream, bool active);
  void Unbind(Stream *stream);
  void Set(Label *label, Stream *stream);

  // Null is the default stream.
  Status Add(void *handle, Task task);
  Status WaitFor(Stream *stream);
  Status WaitFor(Event *event);

  std::function<void(const Failure &)> on_failure;
  static thread_local uint32_t last_task, last_stream;

 private:
  Streams();
  using Condition = std::function<bool()>;
  Status WaitUntil(const Condition &done, const std::string &what);
  bool Step(std::unique_lock<std::mutex> &lock);
  Task *Next(Stream *stream);
  bool Ready(Stream *stream);
  bool WaitsForCards();
  bool Done(const Model *model) const;
  void Do(Stream *stream, Task &task);
  void Advance(Stream *stream);
  static void Activate(Stream *stream, size_t position);
  std::string Waiting();

  std::mutex lock_;       // of all that follows
  std::mutex executing_;  // held by who runs tasks
  std::condition_variable added_;
  std::map<uint32_t, Stream *> streams_;
  Stream *default_ = nullptr;
  uint32_t stream_ids_ = 0, event_ids_ = 0, model_ids_ = 0;
  std::mt19937 order_;
  Status failed_ = kSuccess;  // once a task has failed, the card does nothing more
};

}  // namespace virtual_ascend
