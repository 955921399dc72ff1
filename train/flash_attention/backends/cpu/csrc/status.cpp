#include "status.h"

namespace flash_attention {

const char* message(int status) {
  switch (status) {
    case kOk: return "success";
    case kBadCount: return "wrong number of tensors";
    case kBadConfig: return "wrong length or version of the configuration tensors";
    case kBadDType: return "a tensor has a dtype that is not allowed for it";
    case kBadShape: return "a tensor has a shape that does not fit the others";
    case kBadPointer: return "a required tensor is absent, or its data is not aligned to its element size";
    case kBadValue: return "a value in the configuration tensors is out of range";
    case kTooLarge: return "a size is beyond 2**40, or a tensor beyond 2**46 elements";
    case kNoMemory: return "out of memory";
    case kNoTarget:
      return "FLASH_ATTENTION_CPU_ISA names an instruction set that is unknown, missing on this processor, or not permitted "
             "to this process by Linux";
    case kInternal: return "internal error";
    case kBadLengths:
      return "cumulative lengths must ascend from 0 to the number of rows, of as many sequences for query, key, prefix and slopes";
    case kBadTable: return "context_lens goes past the blocks of block_tables, or block_tables names a block that is none";
    case kBadSlot: return "slot_mapping names a slot behind the last block";
    case kBadKeepBits:
      return "keep_bits has to hold those of every sequence, (heads, queries, ceil(keys / 8)) bytes, one behind the other";
    case kBadPrefix: return "a prefix is not within 0 and the number of keys";
    default: return "unknown status";
  }
}

}  // namespace flash_attention
