// Whether threads of this process may use the tile instructions of x86-64 (AMX).
#pragma once

namespace flash_attention {

// The processor has amx_tile and amx_bf16, and Linux can keep their registers.
bool tiles_exist();

// Linux lets this process use them. It is asked once, at the first call: a process that never uses tiles never asks.
bool tiles_permitted();

}  // namespace flash_attention
