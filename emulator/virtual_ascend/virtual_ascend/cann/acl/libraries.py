"""The C functions that programs call beside pyACL: libraries of a few lines, which call this module.

``libacl_op_compiler.so`` has ``aclopCompile``, and ``libruntime.so`` what registers and launches kernels.
"""

import ctypes
import subprocess
import tempfile

from virtual_ascend import elf
from virtual_ascend.operator_call import load as load_kernel

import acl
from acl import rt

_INTERRUPTED = -1
_SOURCE = """
#include <csignal>
#define FUNCTION(name, parameters, arguments)                   \\
  static int(*name##_callback) parameters;                      \\
  extern "C" void name##_by(int(*other) parameters) { name##_callback = other; } \\
  extern "C" int name parameters {                              \\
    const int code = name##_callback arguments;                 \\
    if (code == -1) raise(SIGINT);                              \\
    return code;                                                \\
  }
"""
_COMPILE = """
typedef const void *const *Handles;
FUNCTION(aclopCompile,
         (const char *type, int inputs, Handles input, int outputs, Handles output, const void *attributes, int engine,
          int flag, const char *path),
         (type, inputs, input, outputs, output, attributes, engine, flag, path))
"""
_LAUNCH = """
FUNCTION(rtDevBinaryRegister, (const void *binary, void **handle), (binary, handle))
FUNCTION(rtDevBinaryUnRegister, (void *handle), (handle))
FUNCTION(rtFunctionRegister, (void *handle, const void *stub, const char *name, const void *function, unsigned mode),
         (handle, stub, name, function, mode))
FUNCTION(rtKernelLaunch,
         (const void *stub, unsigned blocks, void *arguments, unsigned size, void *memory, void *stream),
         (stub, blocks, arguments, size, memory, stream))
"""
_MAGIC = 0x43554245
_POINTER, _HANDLES = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
_TEXT, _INT, _UNSIGNED = ctypes.c_char_p, ctypes.c_int, ctypes.c_uint
_objects: dict[int, tuple[int, list[str]]] = {}  # number of the kernel, and functions, by handle
_stubs: dict[int, int] = {}  # number of the kernel by the address that stands for its function
_callbacks: list = []  # Python keeps what C calls


class _Binary(ctypes.Structure):
    _fields_ = [("magic", _UNSIGNED), ("version", _UNSIGNED), ("data", _POINTER), ("length", ctypes.c_uint64)]


def _compile(op_type, inputs, input_desc, outputs, output_desc, attr, _engine, _flag, _path):
    from acl import op

    return op.compile_it(op_type.decode(), input_desc[:inputs], output_desc[:outputs], attr)


def _register_binary(binary, handle):
    given = ctypes.cast(binary, ctypes.POINTER(_Binary)).contents
    contents = ctypes.string_at(given.data, given.length)
    if given.magic != _MAGIC:
        return acl.fail(acl.INVALID_PARAMETER, f"rtDevBinaryRegister: magic {given.magic:#x}, allowed is {_MAGIC:#x}")
    number = rt.card().register(load_kernel(contents))
    _objects[number] = number, elf.functions(contents)
    handle[0] = number
    return acl.SUCCESS


def _unregister(handle):
    return acl.SUCCESS if _objects.pop(handle, None) else acl.fail(acl.INVALID_PARAMETER, f"no binary {handle}")


def _register_function(handle, stub, _name, function, _mode):
    number, functions = _objects[handle]
    wanted = ctypes.cast(function, _TEXT).value.decode()
    if wanted not in functions:
        return acl.fail(acl.INVALID_PARAMETER, f"rtFunctionRegister: got {wanted}, the object has {functions}")
    _stubs[stub] = number
    return acl.SUCCESS


def _launch(stub, blocks, arguments, size, _memory, _stream):
    addresses = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_uint64))[: size // 8]
    code, text = rt.card().launch(_stubs[stub], blocks, addresses)
    return acl.fail(code, text) if code else acl.SUCCESS


_LIBRARIES: dict[str, tuple[str, dict]] = {
    "libacl_op_compiler.so": (
        _COMPILE,
        {"aclopCompile": (_compile, _TEXT, _INT, _HANDLES, _INT, _HANDLES, _POINTER, _INT, _INT, _TEXT)},
    ),
    "libruntime.so": (
        _LAUNCH,
        {
            "rtDevBinaryRegister": (_register_binary, _POINTER, _HANDLES),
            "rtDevBinaryUnRegister": (_unregister, _POINTER),
            "rtFunctionRegister": (_register_function, _POINTER, _POINTER, _TEXT, _POINTER, _UNSIGNED),
            "rtKernelLaunch": (_launch, _POINTER, _UNSIGNED, _POINTER, _UNSIGNED, _POINTER, _POINTER),
        },
    ),
}


def _answer(function):
    """Return a function for C. ctypes would lose Ctrl-C: the program has to get it when the call returns."""

    def call(*arguments):
        try:
            return function(*arguments)
        except KeyboardInterrupt:
            return _INTERRUPTED

    return call


def load() -> None:
    """Load the libraries, which programs then find by their names."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (source, functions) in _LIBRARIES.items():
            command = ["g++", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-x", "c++", "-", "-o", f"{folder}/{name}"]
            subprocess.run(command, input=_SOURCE + source, text=True, check=True)
            library = ctypes.CDLL(f"{folder}/{name}", mode=ctypes.RTLD_GLOBAL)
            for label, (function, *types) in functions.items():
                callback = ctypes.CFUNCTYPE(_INT, *types)(_answer(function))
                getattr(library, f"{label}_by")(callback)
                _callbacks.append(callback)
