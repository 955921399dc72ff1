// HCCL's C functions. MindSpore calls the functions of a communicator (Hccl*) in PYNATIVE, and the functions of groups
// by name (Hcom*) in both modes. It looks most of them up by name in libhccl_plugin.so, so all names have to be there.
#include <string>
#include <vector>

#include "collectives.h"

namespace virtual_ascend {
namespace {

constexpr Status kParameterError = 1, kNotFound = 6;

// Returns a code of HCCL. The text of the error is kept for MindSpore's exception.
Status Code(Status status) { return status ? kParameterError : kSuccess; }

Status Put(void *communicator, const Collective &call, void *stream) {
  return Code(Cards::Instance().Add(static_cast<Group *>(communicator), call, stream));
}

// Asks a group that is known by name.
template <class Answer>
Status Of(const char *name, uint32_t *value, Answer answer) {
  const Group *group = Cards::Instance().Find(name);
  if (!group) return kNotFound;
  return Give(value, answer(*group));
}

}  // namespace

extern "C" {

[[noreturn]] void virtual_ascend_missing(const char *name);

// ------------------------------------------------------------------------------------------------------ communicator
Status HcclCommInitClusterInfo(const char *, uint32_t rank, void **communicator) {
  Group *world = Cards::Instance().world();
  if (!world) return kNotFound;
  if (rank != world->rank) {
    return Code(Fail(kBadArgument, "card " + std::to_string(world->rank) + " has RANK_ID " + std::to_string(rank)));
  }
  *communicator = world;
  return kSuccess;
}
Status HcclCommDestroy(void *) { return kSuccess; }
Status HcclGetRankId(void *communicator, uint32_t *rank) {
  return Give(rank, static_cast<Group *>(communicator)->rank);
}
Status HcclGetRankSize(void *communicator, uint32_t *size) {
  return Give(size, static_cast<Group *>(communicator)->members.size());
}
Status HcclAllReduce(void *input, void *output, uint64_t count, int dtype, int reduction, void *communicator,
                     void *stream) {
  return Put(communicator, {"HcomAllReduce", input, output, count, dtype, reduction}, stream);
}
Status HcclBroadcast(void *buffer, uint64_t count, int dtype, uint32_t root, void *communicator, void *stream) {
  return Put(communicator, {"HcomBroadcast", buffer, buffer, count, dtype, 0, root}, stream);
}
Status HcclSend(void *buffer, uint64_t count, int dtype, uint32_t to, void *communicator, void *stream) {
  return Put(communicator, {"HcomSend", buffer, nullptr, count, dtype, 0, to}, stream);
}
Status HcclRecv(void *buffer, uint64_t count, int dtype, uint32_t from, void *communicator, void *stream) {
  return Put(communicator, {"HcomReceive", nullptr, buffer, count, dtype, 0, from}, stream);
}

#define VIRTUAL_ASCEND_MISSING(name) \
  Status name() { virtual_ascend_missing(#name); }
// Communicators without a rank table.
VIRTUAL_ASCEND_MISSING(HcclGetRootInfo)
VIRTUAL_ASCEND_MISSING(HcclCommInitRootInfo)
// MindSpore 2.0 refuses these in PYNATIVE, and later ones have no collectives there.
VIRTUAL_ASCEND_MISSING(HcclAllGather)
VIRTUAL_ASCEND_MISSING(HcclAlltoAllV)
VIRTUAL_ASCEND_MISSING(HcclReduceScatter)

// ------------------------------------------------------------------------------------------------------------ groups
Status HcomCreateGroup(const char *name, uint32_t count, const uint32_t *cards) {
  return Code(Cards::Instance().Create(name, {cards, cards + count}));
}
Status HcomDestroy() { return kSuccess; }
Status HcomDestroyGroup(const char *name) { return Code(Cards::Instance().Destroy(name)); }
Status HcomGetRankId(const char *name, uint32_t *rank) {
  return Of(name, rank, [](const Group &group) { return group.rank; });
}
Status HcomGetRankSize(const char *name, uint32_t *size) {
  return Of(name, size, [](const Group &group) { return group.members.size(); });
}
// All cards stand in one server.
Status HcomGetLocalRankId(const char *name, uint32_t *rank) { return HcomGetRankId(name, rank); }
Status HcomGetLocalRankSize(const char *name, uint32_t *size) { return HcomGetRankSize(name, size); }
Status HcomGetWorldRankFromGroupRank(const char *name, uint32_t rank, uint32_t *card) {
  const Group *group = Cards::Instance().Find(name);
  if (!group) return kNotFound;
  if (rank >= group->members.size()) return kParameterError;
  return Give(card, group->members[rank]);
}
Status HcomGetGroupRankFromWorldRank(uint32_t card, const char *name, uint32_t *rank) {
  const Group *group = Cards::Instance().Find(name);
  if (!group) return kNotFound;
  for (uint32_t i = 0; i < group->members.size(); ++i) {
    if (group->members[i] == card) return Give(rank, i);
  }
  return kParameterError;
}

// Execution outside streams, which MindSpore 2.0 asks for in graphs that are not sunk.
Status HcomExecInitialize() { return kSuccess; }
Status HcomExecFinalize() { return kSuccess; }
VIRTUAL_ASCEND_MISSING(HcomExecEnqueueOperation)
VIRTUAL_ASCEND_MISSING(HcomExecEnqueueAllToAllV)
#undef VIRTUAL_ASCEND_MISSING

}  // extern "C"

}  // namespace virtual_ascend
