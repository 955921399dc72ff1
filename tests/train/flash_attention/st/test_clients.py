"""Model libraries that use this package, from PyPI, each in an environment of its own that is kept."""

import os
from pathlib import Path

import pytest

from tests.train.flash_attention.st.wheel_tools import ROOT, environment, run

PROGRAM = Path(__file__).parent / "client_mindone.py"
MINDONE = ("mindone==0.5.0", "transformers==4.57.1", "mindcv==0.3.0", "tokenizers<0.23", "huggingface-hub<1.0")
NEEDS = (*("safetensors", "regex", "filelock", "fsspec", "requests", "pyyaml", "tqdm", "omegaconf", "trampoline"),)


@pytest.fixture(scope="module")
def mindone() -> Path:
    """Python of the environment with mindone 0.5.0, which sees this one's MindSpore; made at the first call."""
    beside = Path(os.environ.get("FLASH_ATTENTION_VENV", Path.home() / ".cache/flash-attention/venv")).parent
    folder = beside / "client-mindone-0.5.0"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        python = environment(folder)
        run(python, "-m", "pip", "install", "-q", "--no-deps", *MINDONE, cwd=folder)
        run(python, "-m", "pip", "install", "-q", *NEEDS, cwd=folder)
        (folder / "complete").touch()
    return python


@pytest.mark.clients
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "arguments", ["compare llama", "compare qwen2", "compare gemma2", "generate llama", "generate qwen2", "masks"]
)
def test_models_of_mindone_agree_with_their_eager_attention(mindone: Path, arguments: str, tmp_path: Path):
    path = os.pathsep.join(str(ROOT / part) for part in ("train", "."))
    printed = run(mindone, PROGRAM, *arguments.split(), cwd=tmp_path, PYTHONPATH=path)
    assert printed.splitlines()[-1] == "ok", printed
