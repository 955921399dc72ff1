"""Test model libraries from PyPI that use this package, each in a kept environment."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from emulator.virtual_ascend.tests.card import said
from emulator.virtual_ascend.tests.environments import environment, kept_environment, run
from tests.train.flash_attention.st.support.card_runs import card_run, release_python, verdicts
from tests.train.flash_attention.st.support.wheel_tools import ROOT


class Client(NamedTuple):
    """Hold what pip installs for a library. Packages in `alone` come without their requirements, such as torch."""

    alone: tuple
    whole: tuple
    own_mindspore: bool = False  # otherwise the MindSpore of the running tests


CLIENTS = {
    "mindone": Client(
        ("mindone==0.5.0", "transformers==4.57.1", "mindcv==0.3.0"),
        ("tokenizers<0.23", "huggingface-hub<1.0", "safetensors", "regex", "omegaconf", "trampoline", "numpy<2"),
    ),
    "mindnlp": Client(
        ("mindnlp==0.5.1", "transformers==4.57.1", "accelerate==1.10.1", "peft==0.17.1"),
        (
            "mindspore==2.7.0",
            *("tokenizers<0.23", "huggingface-hub<1.0", "diffusers==0.35.1", "datasets==3.6.0", "pyarrow<20", "ftfy"),
            *("safetensors", "sentencepiece", "regex", "ml-dtypes", "addict", "evaluate", "pyctcdecode", "numpy<2"),
        ),
        own_mindspore=True,
    ),
    "mindformers 1.9.0": Client(("mindformers==1.9.0",), ("numpy<2",)),  # not imported as a whole
    **{
        f"mindformers {version}": Client(
            (f"mindformers=={version}", f"mindpet=={mindpet}"),
            (
                *("tokenizers==0.15.0", "pyarrow==12.0.1", "opencv-python-headless==4.8.1.78", "sentencepiece", "ftfy"),
                *("regex", "pyyaml", "jieba", "rouge-chinese", "nltk", "tiktoken", "numpy<2"),
            ),
        )
        for version, mindpet in (("1.0.2", "1.0.3"), ("1.3.2", "1.0.4"))
    },
}
CALLS = [
    *(("mindone", model) for model in ("llama", "qwen2", "gemma2", "masks", "paged")),
    *(("mindnlp", model) for model in ("llama", "qwen2", "gemma2")),
    *(("mindformers 1.0.2", arguments) for arguments in ("llama graph", "llama pynative", "bloom graph", "gpt2 graph")),
    ("mindformers 1.0.2", "glm2 graph"),
    *(
        ("mindformers 1.3.2", f"serving {model} {mode}")
        for model in ("llama th", "llama bsh", "glm2 bsh")
        for mode in ("pynative static", "graph static", "graph dynamic")
    ),
    *(("mindformers 1.9.0", f"rope {mode}") for mode in ("graph", "pynative")),
    *(("mindformers 1.3.2", arguments) for arguments in ("llama graph", "llama pynative", "bloom graph", "gpt2 graph")),
]


def client_environment(name: str) -> Path:
    """Return the Python of the environment with a library; made at the first call."""
    client = CLIENTS[name]

    def make(folder: Path) -> None:
        pip = environment(folder, share=not client.own_mindspore), "-m", "pip", "install", "-q"
        run(*pip, "--no-deps", *client.alone, cwd=folder)
        run(*pip, *client.whole, cwd=folder)

    return kept_environment(f"client-{name.replace(' ', '-')}", " ".join(client.alone + client.whole), make)


@pytest.mark.clients
@pytest.mark.timeout(3600)  # the first call of a library installs it
@pytest.mark.parametrize("name, arguments", CALLS, ids=[" ".join(call) for call in CALLS])
def test_models_of_a_library_agree_with_their_own_attention(name: str, arguments: str, tmp_path: Path):
    library, kind = name.partition(" ")[0], arguments.partition(" ")[0]
    of_its_own = kind in ("serving", "rope")
    program = f"client_{library}_{kind}.py" if of_its_own else f"client_{library}.py"
    program = Path(__file__).parent / "support" / program
    path = os.pathsep.join(str(ROOT / part) for part in ("train", "."))
    printed = run(client_environment(name), program, *arguments.split()[of_its_own:], cwd=tmp_path, PYTHONPATH=path)
    assert printed.splitlines()[-1] == "ok", printed


@pytest.mark.card
@pytest.mark.clients
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ("graph", "pynative"))
def test_attention_classes_of_mindformers_on_the_virtual_card(tmp_path: Path, mode: str):
    package, classes = tmp_path / "mindformers", ("llama", "multi-head")
    pip = "-m", "pip", "install", "-q", "--no-deps", "--target", package, "mindformers==1.0.2"
    run(release_python("2.0.0"), *pip, cwd=tmp_path)
    assert tuple(verdicts(card_run("2.0.0", tmp_path, "card_mindformers.py", mode, package, *classes))) == classes


@pytest.mark.card
@pytest.mark.clients
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", ["2.6.0"])
@pytest.mark.parametrize("arguments", ("llama th graph", "llama bsh pynative", "glm2 bsh graph"))
def test_mindformers_serves_on_the_virtual_card(card, tmp_path: Path, arguments: str):
    """All attention runs by the TIK operators, the model's own forward by MindSpore's."""
    python, more = client_environment("mindformers 1.3.2"), tmp_path / "more"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=tmp_path).strip()
    pip = "-m", "pip", "install", "-q", "--no-deps", "--target", more, "pyyaml", "click"
    run(release_python("2.6.0"), *pip, cwd=tmp_path)
    words = (*arguments.split(), "static", site, more)
    done = card("client_mindformers_serving.py", *words, FLASH_ATTENTION_BACKEND="tik")
    assert said(done).splitlines()[-1] == "ok"
