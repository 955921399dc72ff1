"""Call the runtime as MindSpore's plugin does, without MindSpore: runtime_calls.py QUESTION. Prints the answer.

Copies stand for kernels: like kernels, they run on the card when their stream reaches them.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

import numpy as np
from virtual_ascend import installation, library

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, HOST_TO_DEVICE_EX = 1, 2, 3, 6
runtime = ctypes.CDLL(str(library.prepare(installation.find()) / "lib64/libruntime.so"))
POINTER, SIZE = ctypes.c_void_p, ctypes.c_uint64
for function, types in {
    "rtMalloc": (POINTER, SIZE, ctypes.c_uint32, ctypes.c_uint16),
    "rtMemcpy": (POINTER, SIZE, POINTER, SIZE, ctypes.c_int),
    "rtMemcpyAsync": (POINTER, SIZE, POINTER, SIZE, ctypes.c_int, POINTER),
    **dict.fromkeys(("rtFree", "rtStreamSynchronize"), (POINTER,)),
    **dict.fromkeys(("rtStreamWaitEvent", "rtEventRecord"), (POINTER, POINTER)),
}.items():
    getattr(runtime, function).argtypes = types
create_channel = runtime.acltdtCreateChannelWithCapacity
create_channel.argtypes, create_channel.restype = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t], ctypes.c_void_p
runtime.acltdtQueryChannelSize.argtypes = [ctypes.c_void_p, ctypes.c_void_p]


def create(function, *arguments):
    """Return the object that a function of the runtime makes."""
    made = ctypes.c_void_p()
    code = getattr(runtime, function)(ctypes.byref(made), *arguments)
    assert code == 0, (function, code)
    return made.value


def allocate(size):
    """Return the address of new memory."""
    return create("rtMalloc", size, 0, 0)


def read(address, count):
    """Return the code and the float32 numbers of the card."""
    array = np.zeros(count, np.float32)
    code = runtime.rtMemcpy(array.ctypes.data, array.nbytes, address, array.nbytes, DEVICE_TO_HOST)
    return code, array


def write(address, values):
    """Return the code of a copy to the card."""
    array = np.array(values, np.float32)
    return runtime.rtMemcpy(address, array.nbytes, array.ctypes.data, array.nbytes, HOST_TO_DEVICE)


def fresh():
    """Read new memory, then memory that was written, freed and comes again."""
    address = allocate(400)
    print("new", np.isnan(read(address, 100)[1]).all())
    write(address, np.arange(100))
    print("written", (read(address, 100)[1] == np.arange(100)).all())
    runtime.rtFree(address)
    print("freed", read(address, 100)[0] != 0)
    again = allocate(400)
    print("again", again == address, np.isnan(read(again, 100)[1]).all())


def bounds():
    """Read behind a block, which is nobody's memory, also if another block follows."""
    first, second = allocate(400), allocate(400)
    print("behind", read(first, 101)[0] != 0, "between", read(first + 400, 1)[0] != 0, second > first)
    print("twice", runtime.rtFree(first) == 0, runtime.rtFree(first) != 0)


def order():
    """Write to one place from two streams, with an event between them or without. Returns the last writer's number."""
    for with_event in (False, True):
        found = []
        for _ in range(20):
            place = allocate(4)
            sources = [allocate(4), allocate(4)]
            streams = [create("rtStreamCreate", 0), create("rtStreamCreate", 0)]
            event = create("rtEventCreate")
            for number, source in enumerate(sources):
                write(source, [number])
            for number in (0, 1):
                if with_event and number == 1:
                    runtime.rtStreamWaitEvent(streams[1], event)
                runtime.rtMemcpyAsync(place, 4, sources[number], 4, DEVICE_TO_DEVICE, streams[number])
                if with_event and number == 0:
                    runtime.rtEventRecord(event, streams[0])
            for stream in streams:
                runtime.rtStreamSynchronize(stream)
            found.append(str(int(read(place, 1)[1][0])))
        print("with event" if with_event else "without", "".join(found))


def lazy():
    """Test that nothing runs before somebody waits. A copy of the EX kind takes its source at once."""
    place, stream = allocate(4), create("rtStreamCreate", 0)
    value = np.array([1], np.float32)
    for kind in (HOST_TO_DEVICE, HOST_TO_DEVICE_EX):
        value[0] = 1
        runtime.rtMemcpyAsync(place, 4, value.ctypes.data, 4, kind, stream)
        before = read(place, 1)[1][0]
        value[0] = 2
        runtime.rtStreamSynchronize(stream)
        print(kind, before, read(place, 1)[1][0])


def stuck():
    """Wait for an event that nobody records."""
    stream = create("rtStreamCreate", 0)
    runtime.rtStreamWaitEvent(stream, create("rtEventCreate"))
    print("stuck", runtime.rtStreamSynchronize(stream))


def waiting():
    """Return the code of a request to the device process."""
    channel = create_channel(0, b"channel", 1)
    return runtime.acltdtQueryChannelSize(channel, ctypes.byref(ctypes.c_size_t()))


def forked():
    """Fork a process, which has no card and does not keep the ended program's."""
    print("program", waiting(), flush=True)
    (device,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    program = os.pipe()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, os.WNOHANG)
        os.close(program[0])
        os._exit(status)
    os.close(program[1])
    os.read(program[0], 1)  # the program has ended
    print("child", waiting())
    for _ in range(100):
        if not Path(f"/proc/{device}/cmdline").exists() or not Path(f"/proc/{device}/cmdline").read_bytes():
            break
        time.sleep(0.1)
    else:
        print("the device process goes on")


if __name__ == "__main__":
    {function.__name__: function for function in (fresh, bounds, order, lazy, stuck, forked)}[sys.argv[1]]()
