#include "streams.h"

#include <stdlib.h>

#include <algorithm>

namespace virtual_ascend {
namespace {

// A program that is this far ahead of the card waits, as on a card; the number is what rtGetMaxStreamAndTask says.
constexpr size_t kMostTasks = 1024;
constexpr auto kPoll = std::chrono::milliseconds(1);  // between two looks at what other cards have done

}  // namespace

std::chrono::seconds Patience() {
  const char *given = getenv("VIRTUAL_ASCEND_PATIENCE");
  return std::chrono::seconds(given ? atol(given) : 60);
}

thread_local uint32_t Streams::last_task = 0, Streams::last_stream = 0;

Streams &Streams::Instance() {
  static Streams *streams = new Streams;
  return *streams;
}

Streams::Streams() {
  const char *seed = getenv("VIRTUAL_ASCEND_SEED");
  order_.seed(seed ? strtoul(seed, nullptr, 10) : 0);
  default_ = CreateStream();
}

Stream *Streams::CreateStream() {
  std::lock_guard<std::mutex> guard(lock_);
  auto stream = new Stream;
  stream->id = stream_ids_++;
  return streams_[stream->id] = stream;
}

void Streams::Destroy(Stream *stream) {
  std::lock_guard<std::mutex> guard(lock_);
  if (stream->model) stream->model->streams.erase(stream);
  streams_.erase(stream->id);
  delete stream;
}

Event *Streams::CreateEvent() {
  std::lock_guard<std::mutex> guard(lock_);
  auto event = new Event;
  event->id = event_ids_++;
  return event;
}

void Streams::Destroy(Event *event) {
  std::lock_guard<std::mutex> guard(lock_);
  for (auto &entry : streams_) {
    for (auto &task : entry.second->tasks) {
      if (task.event == event) return;  // a task still needs it
    }
  }
  delete event;
}

Model *Streams::CreateModel() {
  std::lock_guard<std::mutex> guard(lock_);
  auto model = new Model;
  model->id = model_ids_++;
  return model;
}

void Streams::Destroy(Model *model) {
  std::lock_guard<std::mutex> guard(lock_);
  for (auto &entry : model->streams) entry.first->model = nullptr;
  delete model;
}

void Streams::Bind(Model *model, Stream *stream, bool active) {
  std::lock_guard<std::mutex> guard(lock_);
  model->streams[stream] = active;
  stream->model = model;
}

void Streams::Unbind(Stream *stream) {
  std::lock_guard<std::mutex> guard(lock_);
  if (stream->model) stream->model->streams.erase(stream);
  stream->model = nullptr;
  stream->tasks.clear();
}

void Streams::Set(Label *label, Stream *stream) {
  std::lock_guard<std::mutex> guard(lock_);
  label->stream = stream;
  label->at = stream->tasks.size();
}

Status Streams::Add(void *handle, Task task) {
  auto stream = handle ? static_cast<Stream *>(handle) : default_;
  bool full;
  {
    std::lock_guard<std::mutex> guard(lock_);
    if (failed_) return failed_;
    last_stream = stream->id;
    last_task = task.id = stream->task_count++;
    if (!stream->model && task.kind == Kind::kRecord) task.turn = ++task.event->calls;
    if (!stream->model && task.kind == Kind::kWait) task.turn = task.event->calls;
    stream->tasks.push_back(std::move(task));
    full = !stream->model && stream->tasks.size() >= kMostTasks;
  }
  added_.notify_all();
  return full ? WaitFor(stream) : kSuccess;
}

Status Streams::WaitFor(Stream *stream) {
  if (!stream) stream = default_;
  auto done = [stream] { return stream->model ? !stream->model->running : stream->tasks.empty(); };
  return WaitUntil(done, "stream " + std::to_string(stream->id));
}

Status Streams::WaitFor(Event *event) {
  auto done = [event, turn = event->calls] { return turn ? event->done >= turn : event->recorded; };
  return WaitUntil(done, "event " + std::to_string(event->id));
}

Status Streams::WaitUntil(const Condition &done, const std::string &what) {
  std::lock_guard<std::mutex> executing(executing_);
  std::unique_lock<std::mutex> lock(lock_);
  while (!failed_ && !done()) {
    if (Step(lock)) continue;
    if (WaitsForCards()) {  // which has a time limit of its own
      added_.wait_for(lock, kPoll);
      continue;
    }
    if (added_.wait_for(lock, Patience()) == std::cv_status::timeout && !done() && !Step(lock)) {
      failed_ = Fail(kStuck, "waiting for " + what + ", but nothing can run: " + Waiting());
    }
  }
  return failed_;
}

// Runs one task; false if no stream can go on.
bool Streams::Step(std::unique_lock<std::mutex> &lock) {
  std::vector<Stream *> ready;
  for (auto &entry : streams_) {
    if (Ready(entry.second)) ready.push_back(entry.second);
  }
  if (ready.empty()) return false;
  Stream *stream = ready[order_() % ready.size()];
  Task &task = *Next(stream);
  if (task.kind != Kind::kRun) {
    Do(stream, task);
    return true;
  }
  lock.unlock();  // only who executes takes tasks away, so this one stays where it is
  const Status code = task.run();
  if (code && code != kAgain && on_failure) on_failure({task.id, stream->id, code});
  lock.lock();
  if (code == kAgain) return true;
  failed_ = code;
  Advance(stream);
  return true;
}

// The task that a stream is at, or null.
Task *Streams::Next(Stream *stream) {
  if (!stream->model) return stream->tasks.empty() ? nullptr : &stream->tasks.front();
  const bool going = stream->active && stream->position < stream->tasks.size();
  return going ? &stream->tasks[stream->position] : nullptr;
}

void Streams::Advance(Stream *stream) {
  if (stream->model) {
    ++stream->position;
  } else {
    stream->tasks.pop_front();
  }
}

bool Streams::Ready(Stream *stream) {
  const Task *task = Next(stream);
  if (!task) return false;
  if (task->kind == Kind::kWait) return task->turn ? task->event->done >= task->turn : task->event->recorded;
  if (task->ready) return task->ready();
  return task->kind != Kind::kModel || !task->model->running || Done(task->model);
}

bool Streams::WaitsForCards() {
  return std::any_of(streams_.begin(), streams_.end(), [this](const auto &entry) {
    const Task *task = Next(entry.second);
    return task && task->ready;
  });
}

bool Streams::Done(const Model *model) const {
  return std::none_of(model->streams.begin(), model->streams.end(), [](const auto &entry) {
    return entry.first->active && entry.first->position < entry.first->tasks.size();
  });
}

// Everything but work on data.
void Streams::Do(Stream *stream, Task &task) {
  switch (task.kind) {
    case Kind::kRecord:
      task.event->recorded = true;
      task.event->done = std::max(task.event->done, task.turn);
      task.event->when = std::chrono::steady_clock::now();
      break;
    case Kind::kReset:
      task.event->recorded = false;
      break;
    case Kind::kActivate:
      Activate(task.stream, 0);
      break;
    case Kind::kSwitch:  // nothing behind it runs, the other stream goes on or nobody does
      stream->active = false;
      if (task.condition()) Activate(task.stream, 0);
      return;
    case Kind::kGoto:
      if (const Label *label = task.label()) {
        stream->active = false;
        Activate(label->stream, label->at);
        return;
      }
      break;
    case Kind::kEnd:  // of this stream; the model ends with its last stream, which may be the stream of a collective
      stream->active = false;
      return;
    case Kind::kModel:
      if (!task.model->running) {
        task.model->running = true;
        for (auto &[one, active] : task.model->streams) {
          one->position = 0;
          one->active = active;
        }
        return;  // it is at its end when none of the model's streams goes on
      }
      task.model->running = false;
      break;
    case Kind::kRun:
    case Kind::kWait:
      break;
  }
  Advance(stream);
}

void Streams::Activate(Stream *stream, size_t position) {
  stream->active = true;
  stream->position = position;
}

// Returns, for each stream that has something to do, what it waits for.
std::string Streams::Waiting() {
  std::string text;
  for (auto &[id, stream] : streams_) {
    const Task *task = Next(stream);
    if (!task) continue;
    text += (text.empty() ? "stream " : ", stream ") + std::to_string(id) + " is at task " + std::to_string(task->id);
    if (task->kind == Kind::kWait) text += ", which waits for event " + std::to_string(task->event->id);
    if (task->kind == Kind::kModel) text += ", model " + std::to_string(task->model->id);
  }
  return text.empty() ? "every stream is empty" : text;
}

}  // namespace virtual_ascend
