// Whether threads of this process may use the tile instructions of x86-64 (AMX).
#pragma once

namespace flash_attention {

// The processor has amx_tile and amx_bf16, and Linux can keep their registers.
bool tiles_exist();

// Why this process may not use them, null where it may. Linux is asked for the permission once, at the first call: a process
// that never uses tiles never asks.
const char* tiles_missing();

}  // namespace flash_attention
