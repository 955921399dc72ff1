#include "collectives.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <sstream>

#include "device.h"
#include "streams.h"

namespace virtual_ascend {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds that a card waits for the others: the variable is HCCL's, whose own default is half an hour.
int64_t SecondsForCards() {
  const char *seconds = getenv("HCCL_EXEC_TIMEOUT");
  return seconds ? atol(seconds) : 300;
}

bool Exists(const std::string &path) { return !access(path.c_str(), F_OK); }

std::string Hex(uint64_t number) {
  std::ostringstream text;
  text << std::hex << number;
  return text.str();
}

template <class Number>
std::string List(const std::vector<Number> &numbers) {
  std::string text = "[";
  for (const auto number : numbers) text += (text.size() > 1 ? "," : "") + std::to_string(number);
  return text + "]";
}

// One execution of a call: which files it needs, and until when it waits for them.
struct Exchange {
  std::shared_ptr<Group> group;
  Collective call;
  std::string mine;    // the file that this card writes; empty if it only receives
  std::string former;  // the file of the call before, which everybody has read when this call is complete
  std::vector<std::pair<uint32_t, std::string>> needed;  // files of others and who writes them
  bool taken = false;                                    // a message is complete when its receiver has removed it
  int64_t graph = -1;  // the number of the graph of GE between two nodes of which the tensors are, if any
  Clock::time_point deadline;

  bool Complete() const {
    if (taken) return !Exists(mine);
    return std::all_of(needed.begin(), needed.end(), [](const auto &one) { return Exists(one.second); });
  }
  // Who is waited for and will not come, and why; empty while there is hope.
  std::string Hopeless() const {
    for (const auto &[card, path] : needed) {
      if (taken ? !Exists(mine) : Exists(path)) continue;
      const std::string ended = Cards::Instance().Ended(card);
      if (!ended.empty()) return "card " + std::to_string(card) + " has ended: " + ended;
      if (Clock::now() > deadline) {
        return "waited " + std::to_string(SecondsForCards()) + " seconds (HCCL_EXEC_TIMEOUT) for card " +
               std::to_string(card) + ", which did not call it";
      }
    }
    return {};
  }
  std::string Shown() const {
    return call.kind + " of " + std::to_string(call.count) + " elements in group " + group->name + " on card " +
           std::to_string(Cards::Instance().rank());
  }
  // For the device process: the addresses, then what to do as JSON.
  Status Ask(Request request) const {
    const void *tensors[] = {call.input, call.output};
    std::string message = graph >= 0 ? "" : Device::Instance().Places(tensors, 2);
    message += "{\"kind\":\"" + call.kind + "\",\"count\":" + std::to_string(call.count) +
               ",\"dtype\":" + std::to_string(call.dtype) + ",\"reduction\":" + std::to_string(call.reduction) +
               ",\"peer\":" + std::to_string(call.peer) + ",\"rank\":" + std::to_string(group->rank) +
               ",\"members\":" + List(group->members) + ",\"send_counts\":" + List(call.send_counts) +
               ",\"send_offsets\":" + List(call.send_offsets) + ",\"receive_counts\":" + List(call.receive_counts) +
               ",\"receive_offsets\":" + List(call.receive_offsets) + ",\"file\":\"" + mine + "\",\"files\":[";
    for (size_t i = 0; i < needed.size(); ++i) message += (i ? ",\"" : "\"") + needed[i].second + "\"";
    message += "]}";
    return Device::Instance().Ask(request, graph < 0 ? 2 : 0, std::max<int64_t>(graph, 0), message.data(), message.size());
  }
};

// Names the files of this execution, and writes what this card gives.
Status Begin(Exchange *exchange) {
  const Collective &call = exchange->call;
  Group &group = *exchange->group;
  const auto &cards = Cards::Instance();
  const bool sends = call.kind == "HcomSend", receives = call.kind == "HcomReceive";
  exchange->needed.clear();
  exchange->mine.clear();
  exchange->former.clear();
  exchange->taken = sends;
  exchange->deadline = Clock::now() + std::chrono::seconds(SecondsForCards());
  if (sends || receives) {
    const uint32_t from = sends ? group.rank : call.peer, to = sends ? call.peer : group.rank;
    const std::string pair = std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(call.tag);
    const std::string path = cards.Place(group.prefix + "-" + pair + "-" + std::to_string(++group.messages[pair]));
    if (sends) exchange->mine = path;
    exchange->needed.emplace_back(group.members[call.peer], path);
    return sends ? exchange->Ask(Request::kGive) : kSuccess;
  }
  auto name = [&](uint64_t number, uint32_t card) {
    return cards.Place(group.prefix + "-" + std::to_string(number) + "-" + std::to_string(card));
  };
  const uint64_t number = ++group.calls;
  for (uint32_t card : group.members) exchange->needed.emplace_back(card, name(number, card));
  exchange->mine = name(number, cards.rank());
  exchange->former = name(number - 1, cards.rank());
  return exchange->Ask(Request::kGive);
}

Status Finish(const Exchange &exchange) {
  if (!exchange.Complete()) return Fail(kStuck, exchange.Shown() + ": " + exchange.Hopeless());
  if (exchange.taken) return kSuccess;
  const Status code = exchange.Ask(Request::kTake);
  unlink((exchange.mine.empty() ? exchange.needed[0].second : exchange.former).c_str());
  return code;
}

Status Prepare(Group *group, const Collective &call, Exchange *exchange) {
  exchange->group = group->shared_from_this();
  exchange->call = call;
  if (call.peer < group->members.size()) return kSuccess;
  return Fail(kBadArgument, exchange->Shown() + ": rank " + std::to_string(call.peer) + " of a group of " +
                              std::to_string(group->members.size()));
}

}  // namespace

Cards &Cards::Instance() {
  static auto cards = new Cards;
  return *cards;
}

Cards::Cards() {
  const char *folder = getenv("VIRTUAL_ASCEND_EXCHANGE");
  if (!folder) return;
  folder_ = folder;
  rank_ = strtoul(getenv("VIRTUAL_ASCEND_CARD"), nullptr, 10);
  size_ = strtoul(getenv("VIRTUAL_ASCEND_CARDS"), nullptr, 10);
  std::vector<uint32_t> all;
  for (uint32_t card = 0; card < size_; ++card) all.push_back(card);
  Create("hccl_world_group", all);
}

Group *Cards::Find(const std::string &name) {
  std::lock_guard<std::mutex> guard(lock_);
  auto found = groups_.find(name);
  if (found != groups_.end()) return found->second.get();
  const std::string alone = "this program runs alone: start it with `virtual-ascend --cards N -- python PROGRAM`";
  Fail(kBadArgument, several() ? "there is no group " + name : alone);
  return nullptr;
}

Status Cards::Create(const std::string &name, const std::vector<uint32_t> &members) {
  auto mine = std::find(members.begin(), members.end(), rank_);
  if (mine == members.end()) return Fail(kBadArgument, "group " + name + " without the card that creates it");
  for (uint32_t card : members) {
    if (card < size_) continue;
    return Fail(kBadArgument, "group " + name + " with card " + std::to_string(card) + " of " + std::to_string(size_));
  }
  std::lock_guard<std::mutex> guard(lock_);
  if (groups_.count(name)) return Fail(kBadArgument, "there is a group " + name + " already");
  auto group = std::make_shared<Group>();
  group->name = name;
  group->prefix = Hex(std::hash<std::string>()(name)) + "." + std::to_string(++created_[name]);
  group->members = members;
  group->rank = static_cast<uint32_t>(mine - members.begin());
  groups_[name] = std::move(group);
  return kSuccess;
}

Status Cards::Destroy(const std::string &name) {
  std::lock_guard<std::mutex> guard(lock_);
  return groups_.erase(name) ? kSuccess : Fail(kBadArgument, "there is no group " + name);
}

std::string Cards::Ended(uint32_t card) const {
  std::ifstream file(Place("ended-" + std::to_string(card)));
  std::string reason;
  std::getline(file, reason);
  return reason;
}

Status Cards::Add(Group *group, const Collective &call, void *stream) {
  auto exchange = std::make_shared<Exchange>();
  if (Prepare(group, call, exchange.get())) return kBadArgument;
  auto begin = [exchange] { return Begin(exchange.get()); };
  auto ready = [exchange] { return exchange->Complete() || !exchange->Hopeless().empty(); };
  auto finish = [exchange] { return Finish(*exchange); };
  const Status code = Streams::Instance().Add(stream, {Kind::kRun, begin});
  return code ? code : Streams::Instance().Add(stream, {Kind::kRun, finish, ready});
}

Status Cards::AddGraph(uint32_t number, const Run &run, void *stream) {
  auto exchange = std::make_shared<Exchange>();  // of the collective that the graph is at, if it has a group
  auto step = [this, exchange, number, run] {
    const bool on = exchange->group != nullptr;
    if (on) {
      if (const Status code = Finish(*exchange)) return code;
      exchange->group = nullptr;
    }
    std::string answer, name;
    if (const Status code = run(on, &answer)) return code;
    if (answer.empty()) return kSuccess;
    std::istringstream words(answer);
    Collective call;
    words >> call.kind >> call.count >> call.dtype >> call.reduction >> call.peer >> call.tag;
    for (auto *list : {&call.send_counts, &call.send_offsets, &call.receive_counts, &call.receive_offsets}) {
      size_t size;
      words >> size;
      list->resize(size);
      for (auto &one : *list) words >> one;
    }
    std::getline(words >> std::ws, name);
    Group *group = Find(name);
    if (!group || Prepare(group, call, exchange.get())) return kBadArgument;
    exchange->graph = number;
    const Status code = Begin(exchange.get());
    return code ? code : kAgain;
  };
  auto ready = [exchange] { return !exchange->group || exchange->Complete() || !exchange->Hopeless().empty(); };
  return Streams::Instance().Add(stream, {Kind::kRun, step, ready});
}

}  // namespace virtual_ascend
