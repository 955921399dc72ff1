"""Export to MindIR, and use of the file in another process."""

import pytest
from flash_attention.backends.cpu.build import LIBRARY

pytestmark = pytest.mark.system

EXPORT = """
import mindspore as ms, numpy as np
from flash_attention import BlockMask, FlashAttention
from flash_attention.backends.cpu import library
from pathlib import Path
from mindspore import Tensor, nn

library.LIBRARY = Path({library!r})
ms.set_context(mode=ms.GRAPH_MODE)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = FlashAttention(16, causal=True, backend="cpu", block_mask=BlockMask(np.eye(2, dtype=int)))
        self.second = FlashAttention(16, window_size=(3, 3), alibi=True, backend="cpu")

    def construct(self, x):
        return self.second(self.first(x, x, x), x, x)


x = Tensor(np.random.default_rng(0).standard_normal((1, 2, 150, 16)).astype(np.float32))
network = Net()
np.save("output.npy", network(x).asnumpy())
ms.export(network, x, file_name="network", file_format="MINDIR")
"""

LOAD = """
import mindspore as ms, numpy as np
from mindspore import Tensor, nn

ms.set_context(mode=ms.GRAPH_MODE)
x = Tensor(np.random.default_rng(0).standard_normal((1, 2, 150, 16)).astype(np.float32))
network = nn.GraphCell(ms.load("network.mindir"))
print(np.array_equal(network(x).asnumpy(), np.load("output.npy")))
"""

# The same before and after the model is told of another library.
RELOCATE = """
import runpy, sys

try:
    runpy.run_path("load.py")
except RuntimeError as error:
    print(error)
sys.argv[1:] = ["network.mindir"]
try:
    runpy.run_module("flash_attention.backends.cpu.relocate", run_name="__main__")
except SystemExit as end:
    assert not end.code
runpy.run_path("load.py")
"""


@pytest.fixture(scope="module")
def folder(run_python, tmp_path_factory):
    """Return a folder with an exported model. During the export the library lies in `elsewhere`."""
    folder = tmp_path_factory.mktemp("mindir")
    library = folder / "elsewhere" / LIBRARY.name
    library.parent.mkdir()
    library.write_bytes(LIBRARY.read_bytes())
    # MindSpore compiles no cell whose source is not in a file.
    (folder / "export.py").write_text(EXPORT.format(library=str(library)))
    (folder / "load.py").write_text(LOAD)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_python("export.py")
    return folder


@pytest.fixture
def exported(folder, monkeypatch):
    """Return the library of the exported model. The test runs in the folder of the model and its results."""
    monkeypatch.chdir(folder)
    return folder / "elsewhere" / LIBRARY.name


def test_another_process_runs_an_exported_model(exported, run_python):
    assert run_python("load.py").split()[-1] == "True"


def test_a_model_whose_library_is_gone_runs_after_relocation(exported, run_python):
    exported.unlink()
    before, after = run_python("-c", RELOCATE).split("network.mindir uses /")
    assert "couldn't find the AOT binary file" in before and "True" not in before
    assert after.split()[-1] == "True"


def test_a_model_without_the_kernel_is_refused(run_python, tmp_path):
    from flash_attention.backends.cpu.relocate import relocate

    (tmp_path / "empty.mindir").write_bytes(b"")
    with pytest.raises(ValueError, match="empty.mindir: got a model without operations of the native kernel"):
        relocate(tmp_path / "empty.mindir")
    with pytest.raises(FileNotFoundError, match="library: got .*nowhere.so, which does not exist"):
        relocate(tmp_path / "empty.mindir", tmp_path / "nowhere.so")


TUNE = """
import sys

import mindspore as ms, numpy as np
from flash_attention import BlockMask, FlashAttention
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.GRAPH_MODE)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(16, 16)
        self.attention = FlashAttention(16, causal=True, backend=sys.argv[1])

    def construct(self, x):
        hidden = self.dense(x)
        return self.attention(hidden, hidden, hidden)


x = Tensor(np.random.default_rng(0).standard_normal((1, 2, 150, 16)).astype(np.float32))
network = Net()
ms.export(network, x, file_name="tuned", file_format="MINDIR")


def gradients(network):
    def loss(x):
        return (network(x) ** 2).sum()

    return ops.grad(loss, None, ms.ParameterTuple(network.trainable_params()))(x)


try:
    loaded = gradients(nn.GraphCell(ms.load("tuned.mindir")))
    print(all(np.allclose(a.asnumpy(), b.asnumpy(), atol=1e-4) for a, b in zip(loaded, gradients(network))))
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""


@pytest.mark.parametrize(("backend", "said"), [("math", "True"), ("cpu", "The prim is not a PrimitivePy")])
def test_a_loaded_network_is_trained_with_backend_math_only(backend, said, run_python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tune.py").write_text(TUNE)  # MindSpore looks for the source
    assert run_python("tune.py", backend).splitlines()[-1].startswith(said)
