"""Questions about an operator before it is compiled."""

from virtual_ascend.compiler.tasks import (
    build_single_op_from_c,
    call_op_func,
    check_op_impl_mode,
    clear_fusion_params,
    op_params_to_json,
    save_op_params,
)

__all__ = [
    "build_single_op_from_c",
    "call_op_func",
    "check_op_impl_mode",
    "clear_fusion_params",
    "op_params_to_json",
    "save_op_params",
]
