// Several cards: this process is one of them, and exchanges tensors with the others through files in a folder that
// virtual-ascend has made for all (VIRTUAL_ASCEND_EXCHANGE, in memory if the system has such a place).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "status.h"

namespace virtual_ascend {

// Cards that call collectives together, in the same order.
struct Group : std::enable_shared_from_this<Group> {
  std::string name;
  std::string prefix;             // of its files
  std::vector<uint32_t> members;  // cards, as the whole job counts them
  uint32_t rank = 0;              // which of them this one is
  uint64_t calls = 0;
  std::map<std::string, uint64_t> messages;  // sent or received so far, by sender, receiver and tag
};

// One call. The kind decides which fields count.
struct Collective {
  std::string kind;  // HCCL's name of the operation: HcomAllReduce, ...
  const void *input = nullptr;
  void *output = nullptr;
  uint64_t count = 0;  // HCCL's: elements that a card gives, or gets in ReduceScatter and Receive
  int dtype = 0, reduction = 0;
  uint32_t peer = 0;  // root, sender or receiver: a rank of the group
  int64_t tag = 0;
  // HcomAllToAllV, in elements
  std::vector<uint64_t> send_counts = {}, send_offsets = {}, receive_counts = {}, receive_offsets = {};
};

class Cards {
 public:
  static Cards &Instance();

  bool several() const { return !folder_.empty(); }  // whether virtual-ascend was started with --cards
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }
  Group *world() { return Find("hccl_world_group"); }
  Group *Find(const std::string &name);  // null: there is none, which is kept as an error
  Status Create(const std::string &name, const std::vector<uint32_t> &members);
  Status Destroy(const std::string &name);

  // Puts the call into a stream; the streams go on while it waits for the other cards.
  Status Add(Group *group, const Collective &call, void *stream);
  // Puts a graph of GE into a stream. `run` begins it or goes on with it, and answers with a collective that the graph is
  // at (device/graph_collectives.py), or at the graph's end with nothing.
  using Run = std::function<Status(bool on, std::string *answer)>;
  Status AddGraph(uint32_t number, const Run &run, void *stream);

  // A card that has ended left a file with the reason; empty if it goes on.
  std::string Ended(uint32_t card) const;
  std::string Place(const std::string &name) const { return folder_ + "/" + name; }

 private:
  Cards();
  std::string folder_;
  uint32_t rank_ = 0, size_ = 1;
  std::mutex lock_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
  std::map<std::string, unsigned> created_;  // how often there has been a group of this name
};

}  // namespace virtual_ascend
