// Return codes of the entry points. flash_attention_message() gives their meaning; library.py reads it from there.
#pragma once

namespace flash_attention {

enum Status : int {
  kOk = 0,
  kBadCount = 1,
  kBadConfig = 2,
  kBadDType = 3,
  kBadShape = 4,
  kBadPointer = 5,
  kBadValue = 6,
  kTooLarge = 7,
  kNoMemory = 8,
  kNoTarget = 9,
  kInternal = 10,
  kBadLengths = 11,
  kBadTable = 12,
  kBadSlot = 13,
  kBadKeepBits = 14,
  kBadPrefix = 15,
};

const char* message(int status);

}  // namespace flash_attention
