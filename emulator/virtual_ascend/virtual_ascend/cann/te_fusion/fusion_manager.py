"""Questions about an operator before it is compiled. Nothing is tuned, so nothing is kept."""

from virtual_ascend.compiler.tasks import call_op_func


def check_op_impl_mode(_module, _function):
    """Return whether an operator has modes of precision. No built-in operator here has."""
    return False


def save_op_params(_name, _kind, _parameters):
    pass


def op_params_to_json(_name):
    return "{}"


def clear_fusion_params():
    pass


def build_single_op_from_c(*_):
    raise NotImplementedError("the virtual Ascend tunes no operators: leave auto_tune_mode as it is")


__all__ = [
    "build_single_op_from_c",
    "call_op_func",
    "check_op_impl_mode",
    "clear_fusion_params",
    "op_params_to_json",
    "save_op_params",
]
