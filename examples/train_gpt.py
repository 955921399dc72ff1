#!/usr/bin/env python
"""Trains a byte-level GPT with FlashAttention on the source files of the Python standard library.

    python examples/train_gpt.py                      # native CPU kernel
    python examples/train_gpt.py --backend math       # attention composed of MindSpore operators
    python examples/train_gpt.py --backend emulator --seq 128 --layers 1 --heads 1 --batch 1 --steps 2

Writes loss.csv, loss.png, sample.txt and summary.json to --out. Losses are nats per byte.
"""

import argparse
import csv
import json
import resource
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import mindspore as ms
import numpy as np
from flash_attention.nn.layer.flash_attention import FlashAttention
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal
from tqdm import tqdm

VOCABULARY = 256
MASK_TILE = 128


def standard_library(limit: int = 16 << 20) -> np.ndarray:
    """Bytes of the standard library's modules in a fixed order, at most `limit` of them."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    skip = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    text = bytearray()
    for path in sorted(folder.rglob("*.py")):
        if not skip.intersection(path.relative_to(folder).parts):
            text += path.read_bytes()
        if len(text) >= limit:
            break
    return np.frombuffer(bytes(text[:limit]), np.uint8)


def batches(text: np.ndarray, batch: int, seq: int, seed: int) -> Iterator[np.ndarray]:
    """Random crops, int32 of shape (batch, seq + 1): inputs and, one byte later, targets."""
    generator = np.random.default_rng(seed)
    while True:
        starts = generator.integers(0, len(text) - seq, batch)
        yield np.stack([text[start : start + seq + 1] for start in starts]).astype(np.int32)


class Attention(nn.Cell):
    """Causal self-attention of shape (batch, seq, width)."""

    def __init__(self, heads: int, head_dim: int, dropout: float, backend: str):
        super().__init__()
        width = heads * head_dim
        self.query = nn.Dense(width, width, weight_init=Normal(0.02))
        self.key = nn.Dense(width, width, weight_init=Normal(0.02))
        self.value = nn.Dense(width, width, weight_init=Normal(0.02))
        self.out = nn.Dense(width, width, weight_init=Normal(0.02))
        self.attention = FlashAttention(head_dim, dropout_rate=dropout, backend=backend, alibi=True, input_layout="BSH")

    def construct(self, x, mask):
        return self.out(self.attention(self.query(x), self.key(x), self.value(x), mask))


class Block(nn.Cell):
    def __init__(self, heads: int, head_dim: int, dropout: float, backend: str):
        super().__init__()
        width = heads * head_dim
        self.norm1 = nn.LayerNorm((width,))
        self.norm2 = nn.LayerNorm((width,))
        self.attention = Attention(heads, head_dim, dropout, backend)
        self.up = nn.Dense(width, 4 * width, weight_init=Normal(0.02))
        self.down = nn.Dense(4 * width, width, weight_init=Normal(0.02))

    def construct(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.down(ops.silu(self.up(self.norm2(x))))


class GPT(nn.Cell):
    """Tokens int32 (batch, seq) -> logits float32 (batch, seq, 256)."""

    def __init__(self, layers: int, heads: int, head_dim: int, dropout: float, backend: str):
        super().__init__()
        width = heads * head_dim
        self.token = nn.Embedding(VOCABULARY, width, embedding_table=Normal(0.02))
        self.blocks = nn.CellList([Block(heads, head_dim, dropout, backend) for _ in range(layers)])
        self.norm = nn.LayerNorm((width,))
        self.head = nn.Dense(width, VOCABULARY, has_bias=False, weight_init=Normal(0.02))
        # The compact causal mask: ones above the diagonal of one tile mean causal for the whole sequence.
        self.mask = Tensor(np.triu(np.ones((1, MASK_TILE, MASK_TILE), np.float16), 1))

    def construct(self, tokens):
        x = self.token(tokens)  # positions enter through ALiBi
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


class Loss(nn.Cell):
    def __init__(self, model: GPT):
        super().__init__()
        self.model = model

    def construct(self, tokens, targets):
        logits = self.model(tokens)
        return ops.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


class TrainStep(nn.TrainOneStepCell):
    """One optimizer step with the gradient's norm clipped to 1."""

    def construct(self, tokens, targets):
        loss = self.network(tokens, targets)
        gradients = self.grad(self.network, self.weights)(tokens, targets, ops.ones_like(loss))
        gradients = ops.clip_by_global_norm(gradients, 1.0)
        return ops.depend(loss, self.optimizer(gradients))


def learning_rates(peak: float, steps: int) -> list:
    """Linear warm-up over a tenth of the steps, then a cosine down to a tenth of the peak."""
    warm_up = max(1, steps // 10)
    rise = [peak * (step + 1) / warm_up for step in range(warm_up)]
    fall = np.linspace(0, np.pi, max(1, steps - warm_up))
    return rise + [float(peak * (0.55 + 0.45 * np.cos(x))) for x in fall]


def generate(model: GPT, prompt: bytes, length: int, seq: int, temperature: float, seed: int) -> bytes:
    """Samples `length` bytes after the prompt. The window keeps one shape, so the graph is compiled once."""
    generator = np.random.default_rng(seed)
    text = list(prompt)
    for _ in tqdm(range(length), desc="sample", unit="byte"):
        window = text[-seq:]
        tokens = np.zeros((1, seq), np.int32)
        tokens[0, : len(window)] = window
        logits = model(Tensor(tokens)).asnumpy()[0, len(window) - 1].astype(np.float64) / temperature
        weights = np.exp(logits - logits.max())
        text.append(int(generator.choice(VOCABULARY, p=weights / weights.sum())))
    return bytes(text)


def plot(path: Path, losses: list, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(range(1, len(losses) + 1), losses)
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title=title)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def peak_megabytes() -> float:
    """Largest resident size this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--backend", choices=("cpu", "math", "emulator"), default="cpu", help="attention backend")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout of the attention")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--sample", type=int, default=300, help="bytes to generate at the end")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="folder for the results (default results/<backend>)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    out = arguments.out or Path("results") / arguments.backend
    out.mkdir(parents=True, exist_ok=True)

    ms.set_context(mode=ms.GRAPH_MODE)
    if hasattr(ms, "set_device"):
        ms.set_device("CPU")
    else:
        ms.set_context(device_target="CPU")
    ms.set_seed(arguments.seed)
    np.random.seed(arguments.seed)

    text = standard_library()
    model = GPT(
        arguments.layers, arguments.heads, arguments.head_dim, arguments.dropout, arguments.backend
    )
    parameters = model.trainable_params()
    optimizer = nn.AdamWeightDecay(
        parameters, learning_rates(arguments.learning_rate, arguments.steps), beta2=0.95, weight_decay=0.01
    )
    step = TrainStep(Loss(model), optimizer)
    step.set_train()
    size = sum(parameter.size for parameter in parameters)
    print(
        f"GPT with {size / 1e6:.1f} M parameters, head_dim {arguments.head_dim}, sequence {arguments.seq}, on"
        f" {len(text) / 1e6:.1f} MB of Python source; MindSpore {ms.__version__}, GRAPH mode, CPU;"
        f" attention backend: {arguments.backend}",
        flush=True,
    )

    before = peak_megabytes()
    losses = []
    seconds = []
    source = batches(text, arguments.batch, arguments.seq, arguments.seed)
    bar = tqdm(range(arguments.steps), desc=f"train [{arguments.backend}]", unit="step")
    for _ in bar:
        crop = next(source)
        start = time.perf_counter()
        losses.append(float(step(Tensor(crop[:, :-1]), Tensor(crop[:, 1:])).asnumpy()))
        seconds.append(time.perf_counter() - start)
        bar.set_postfix(loss=f"{losses[-1]:.3f}")

    tokens = arguments.batch * arguments.seq
    summary = {
        "backend": arguments.backend,
        "steps": arguments.steps,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        # The first step compiles the graph.
        "compile_seconds": seconds[0],
        "tokens_per_second": tokens / float(np.median(seconds[1:] or seconds)),
        "peak_megabytes": peak_megabytes(),
        "training_megabytes": peak_megabytes() - before,
    }
    with open(out / "loss.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss", "seconds"])
        writer.writerows(zip(range(1, arguments.steps + 1), losses, seconds))
    plot(out / "loss.png", losses, f"byte-level GPT, attention backend {arguments.backend}")

    if arguments.sample:
        model.set_train(False)
        sample = generate(
            model, arguments.prompt.encode(), arguments.sample, arguments.seq, arguments.temperature, arguments.seed
        )
        (out / "sample.txt").write_bytes(sample)
        print(f"sample:\n{sample.decode(errors='replace')}\n")
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(
        f"{arguments.backend}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, {summary['tokens_per_second']:.0f} tokens/s,"
        f" peak memory {summary['peak_megabytes']:.0f} MB; results in {out}/"
    )


if __name__ == "__main__":
    main()
