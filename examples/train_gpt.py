#!/usr/bin/env python
"""Trains a byte-level GPT with FlashAttention on the source files of the Python standard library.

    python examples/train_gpt.py                       # native CPU kernel
    python examples/train_gpt.py --attention composed  # attention written in MindSpore operators, for comparison
    python examples/train_gpt.py --backend emulator --seq 128 --layers 1 --heads 1 --head-dim 64 --steps 3 --sample 0

Writes loss.csv, loss.png, sample.txt and summary.json to --out. Losses are nats per byte.
"""

from __future__ import annotations

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
from flash_attention import FlashAttention
from mindspore import Tensor, nn, ops
from tqdm import tqdm

VOCABULARY = 256
MASK_TILE = 128


def standard_library(limit: int = 16 << 20) -> np.ndarray:
    """Bytes of the standard library's modules in a fixed order, at most `limit` of them."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    skip = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "__pycache__"}
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


class ComposedAttention(nn.Cell):
    """What FlashAttention(alibi=True) with a causal mask computes, written out: the scores stand in memory."""

    def __init__(self, head_dim: int, heads: int, seq: int, dropout: float):
        super().__init__()
        self.shape = (heads, head_dim)
        self.scale = head_dim**-0.5
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()
        self.softmax = ops.Softmax(-1)
        self.dropout = nn.Dropout(p=dropout)
        slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)  # for a power of two
        distance = np.arange(seq)[:, None] - np.arange(seq)[None, :]
        bias = np.where(distance < 0, -np.inf, -slopes[:, None, None] * distance)
        self.bias = Tensor(bias[None].astype(np.float32))

    def construct(self, query, key, value, mask):
        batch, seq, width = query.shape
        query, key, value = self.split(query), self.split(key), self.split(value)
        weights = self.softmax(self.scores(query * self.scale, key) + self.bias[:, :, :seq, :seq])
        weights = self.dropout(weights).astype(value.dtype)
        return self.mix(weights, value).transpose(0, 2, 1, 3).reshape(batch, seq, width)

    def split(self, x):
        return x.reshape(x.shape[:2] + self.shape).transpose(0, 2, 1, 3)


class Block(nn.Cell):
    def __init__(self, heads: int, head_dim: int, attention: nn.Cell, dtype: ms.Type):
        super().__init__()
        self.dtype = dtype
        width = heads * head_dim
        self.norm1 = nn.LayerNorm((width,))
        self.norm2 = nn.LayerNorm((width,))
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(width, width)
        self.value = nn.Dense(width, width)
        self.attention = attention
        self.out = nn.Dense(width, width)
        self.up = nn.Dense(width, 4 * width)
        self.down = nn.Dense(4 * width, width)

    def construct(self, x, mask):
        y = self.norm1(x)
        query, key, value = self.query(y), self.key(y), self.value(y)
        query, key, value = query.astype(self.dtype), key.astype(self.dtype), value.astype(self.dtype)
        x = x + self.out(self.attention(query, key, value, mask).astype(x.dtype))
        return x + self.down(ops.silu(self.up(self.norm2(x))))


class GPT(nn.Cell):
    """Tokens int32 (batch, seq) -> logits float32 (batch, seq, 256). Positions enter through ALiBi.

    `attention` is a backend of FlashAttention, or "composed"; `dtype` is that of its query, key and value.
    """

    def __init__(self, layers: int, heads: int, head_dim: int, seq: int, dropout: float, attention: str, dtype: str):
        super().__init__()
        width = heads * head_dim
        self.token = nn.Embedding(VOCABULARY, width)
        blocks = []
        for _ in range(layers):
            if attention == "composed":
                cell = ComposedAttention(head_dim, heads, seq, dropout)
            else:
                cell = FlashAttention(head_dim, dropout, alibi=True, backend=attention, input_layout="BSH")
            blocks.append(Block(heads, head_dim, cell, getattr(ms, dtype)))
        self.blocks = nn.CellList(blocks)
        self.norm = nn.LayerNorm((width,))
        self.head = nn.Dense(width, VOCABULARY, has_bias=False)
        # The compact causal mask: ones above the diagonal of one tile mean causal for the whole sequence.
        self.mask = Tensor(np.triu(np.ones((1, MASK_TILE, MASK_TILE), np.float16), 1))

    def construct(self, tokens):
        x = self.token(tokens)
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
    """Linear warm-up over a twentieth of the steps, then a cosine down to a twentieth of the peak."""
    warm_up = max(1, steps // 20)
    rise = [peak * (step + 1) / warm_up for step in range(warm_up)]
    fall = np.linspace(0, np.pi, max(1, steps - warm_up))
    return rise + [float(peak * (0.525 + 0.475 * np.cos(x))) for x in fall]


def generate(model: GPT, prompt: bytes, length: int, window: int, temperature: float, seed: int) -> bytes:
    """Samples `length` bytes after the prompt. The model sees `window` bytes, one shape: the graph compiles once."""
    generator = np.random.default_rng(seed)
    text = list(prompt)
    for _ in tqdm(range(length), desc="sample", unit="byte"):
        seen = text[-window:]
        tokens = np.zeros((1, window), np.int32)
        tokens[0, : len(seen)] = seen
        logits = model(Tensor(tokens)).asnumpy()[0, len(seen) - 1].astype(np.float64) / temperature
        weights = np.exp(logits - logits.max())
        text.append(int(generator.choice(VOCABULARY, p=weights / weights.sum())))
    return bytes(text)


def plot(path: Path, curves: dict[str, list[float]], title: str) -> None:
    """Loss curves by name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (name, losses), style in zip(curves.items(), ("-", "--", ":")):
        axes.plot(range(1, len(losses) + 1), losses, style, label=name)
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def peak_megabytes() -> float:
    """Largest resident size that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    choices = ("cpu", "tik", "math", "emulator", "composed")
    names = "--backend", "--attention"
    parser.add_argument(*names, dest="attention", choices=choices, default="cpu", help="of FlashAttention, or composed")
    parser.add_argument(
        "--dtype", choices=("float32", "float16"), help="of the attention (default: float32; tik, emulator: float16)"
    )
    parser.add_argument("--device", choices=("CPU", "Ascend"), default="CPU", help="device target of MindSpore")
    parser.add_argument("--steps", type=int, default=400, help="length of the learning-rate schedule")
    parser.add_argument("--stop-after", type=int, default=None, help="steps to make, if fewer than the schedule's")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout of the attention")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--sample", type=int, default=300, help="bytes to generate at the end")
    parser.add_argument("--sample-window", type=int, default=256, help="bytes that the model sees while sampling")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="folder for the results (default results/<attention>)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    out = arguments.out or Path("results") / arguments.attention
    # The matrix unit of the first Ascend 910, which the emulator stands for, multiplies float16 only.
    dtype = arguments.dtype or ("float16" if arguments.attention in ("tik", "emulator") else "float32")
    out.mkdir(parents=True, exist_ok=True)

    ms.set_context(mode=ms.GRAPH_MODE)
    if hasattr(ms, "set_device"):
        ms.set_device(arguments.device)
    else:
        ms.set_context(device_target=arguments.device)
    ms.set_seed(arguments.seed)
    np.random.seed(arguments.seed)

    text = standard_library()
    sizes = arguments.layers, arguments.heads, arguments.head_dim, arguments.seq
    model = GPT(*sizes, arguments.dropout, arguments.attention, dtype)
    parameters = model.trainable_params()
    rates = learning_rates(arguments.learning_rate, arguments.steps)
    step = TrainStep(Loss(model), nn.AdamWeightDecay(parameters, rates, beta2=0.95, weight_decay=0.01))
    step.set_train()
    size = sum(parameter.size for parameter in parameters)
    print(
        f"GPT with {size / 1e6:.1f} M parameters, head_dim {arguments.head_dim}, sequence {arguments.seq}, on"
        f" {len(text) / 1e6:.1f} MB of Python source; MindSpore {ms.__version__}, GRAPH mode, {arguments.device};"
        f" attention: {arguments.attention}, {dtype}",
        flush=True,
    )

    before = peak_megabytes()
    losses = []
    seconds = []
    source = batches(text, arguments.batch, arguments.seq, arguments.seed)
    steps = min(arguments.steps, arguments.stop_after or arguments.steps)
    bar = tqdm(range(steps), desc=f"train [{arguments.attention}]", unit="step")
    for _ in bar:
        crop = next(source)
        start = time.perf_counter()
        losses.append(float(step(Tensor(crop[:, :-1]), Tensor(crop[:, 1:])).asnumpy()))
        seconds.append(time.perf_counter() - start)
        bar.set_postfix(loss=f"{losses[-1]:.3f}")

    summary = {
        "attention": arguments.attention,
        "steps": steps,
        "first_loss": losses[0],
        "last_losses_mean": float(np.mean(losses[-20:])),
        "compile_seconds": seconds[0],  # the first step compiles the graph
        "tokens_per_second": arguments.batch * arguments.seq / float(np.median(seconds[1:] or seconds)),
        "peak_megabytes": peak_megabytes(),
        "training_megabytes": peak_megabytes() - before,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    with open(out / "loss.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss", "seconds"])
        writer.writerows(zip(range(1, steps + 1), losses, seconds))
    plot(out / "loss.png", {arguments.attention: losses}, "byte-level GPT")

    if arguments.sample:
        model.set_train(False)
        window = min(arguments.sample_window, arguments.seq)
        prompt = arguments.prompt.encode()
        sample = generate(model, prompt, arguments.sample, window, arguments.temperature, arguments.seed)
        (out / "sample.txt").write_bytes(sample)
        print(f"sample:\n{sample.decode(errors='replace')}\n")
    print(
        f"{arguments.attention}: loss {losses[0]:.3f} -> {summary['last_losses_mean']:.3f} (mean of the last steps),"
        f" {summary['tokens_per_second']:.0f} tokens/s, peak memory {summary['peak_megabytes']:.0f} MB; see {out}/"
    )


if __name__ == "__main__":
    main()
