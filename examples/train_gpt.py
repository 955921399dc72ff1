#!/usr/bin/env python
"""Train a byte-level GPT with FlashAttention on the source files of the Python standard library.

    python examples/train_gpt.py                       # native CPU kernel
    python examples/train_gpt.py --attention composed  # attention written in MindSpore operators, for comparison
    python examples/train_gpt.py --backend emulator --seq 128 --layers 1 --heads 1 --head-dim 64 --steps 3 --sample 0

It writes loss.csv, loss.png, sample.txt and summary.json to --out. Losses are nats per byte. The bits per byte at the
end are of modules that the training leaves out, in pieces of --seq bytes.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from mindspore import Tensor, nn, ops
from small_gpt import GPT, batches, draw, held_out_loss, peak_megabytes, pieces, sample_byte, standard_library, train
from tqdm import tqdm


class ComposedAttention(nn.Cell):
    """Compute FlashAttention(alibi=True, causal=True) as written out: the scores stand in memory."""

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

    def construct(self, query, key, value):
        batch, seq, width = query.shape
        query, key, value = self.split(query), self.split(key), self.split(value)
        weights = self.softmax(self.scores(query * self.scale, key) + self.bias[:, :, :seq, :seq])
        weights = self.dropout(weights).astype(value.dtype)
        return self.mix(weights, value).transpose(0, 2, 1, 3).reshape(batch, seq, width)

    def split(self, x):
        return x.reshape(x.shape[:2] + self.shape).transpose(0, 2, 1, 3)


def attention_of(arguments: argparse.Namespace) -> Callable[[], nn.Cell]:
    """Make the attention of a layer: ALiBi and a causal mask, by FlashAttention or composed."""
    sizes = arguments.head_dim, arguments.heads, arguments.seq
    if arguments.attention == "composed":
        return lambda: ComposedAttention(*sizes, arguments.dropout)
    options = {"alibi": True, "causal": True, "backend": arguments.attention, "input_layout": "BSH"}
    return lambda: FlashAttention(arguments.head_dim, arguments.dropout, **options)


def generate(model: GPT, prompt: bytes, length: int, window: int, temperature: float, seed: int) -> bytes:
    """Sample `length` bytes after the prompt. The model sees `window` bytes, one shape: the graph compiles once."""
    generator = np.random.default_rng(seed)
    text = list(prompt)
    for _ in tqdm(range(length), desc="sample", unit="byte"):
        seen = text[-window:]
        tokens = np.zeros((1, window), np.int32)
        tokens[0, : len(seen)] = seen
        logits = model(Tensor(tokens)).asnumpy()[0, len(seen) - 1]
        text.append(sample_byte(generator, logits, temperature))
    return bytes(text)


def held_out_bits(model: GPT, text: np.ndarray, seq: int, count: int) -> float:
    """Print and return the bits per byte over text that training left out."""
    crops = pieces(text, seq, count)
    bits = held_out_loss(model, crops) / float(np.log(2))
    print(f"held-out modules: {bits:.2f} bits per byte on {len(crops)} pieces of {seq} bytes", flush=True)
    return bits


def plot(path: Path, curves: dict[str, list[float]], title: str) -> None:
    """Draw loss curves by name, if matplotlib is installed."""

    def paint(axes) -> None:
        for (name, losses), style in zip(curves.items(), ("-", "--", ":")):
            axes.plot(range(1, len(losses) + 1), losses, style, label=name)
        axes.set(xlabel="step", ylabel="loss (nats per byte)", title=title)
        axes.grid(alpha=0.3)
        axes.legend()

    draw(path, paint)


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
    parser.add_argument("--steps", type=int, default=1000, help="length of the learning-rate schedule")
    parser.add_argument("--stop-after", type=int, default=None, help="steps to make, if fewer than the schedule's")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout of the attention")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--sample", type=int, default=500, help="bytes to generate at the end")
    parser.add_argument("--sample-window", type=int, default=256, help="bytes that the model sees while sampling")
    parser.add_argument("--held-out", type=int, default=64, help="pieces of held-out text to predict at the end")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--temperature", type=float, default=0.6)
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

    text, held_out = standard_library()
    model = GPT(arguments.layers, arguments.heads, arguments.head_dim, attention_of(arguments), dtype=dtype)
    size = sum(parameter.size for parameter in model.trainable_params())
    print(
        f"GPT with {size / 1e6:.1f} M parameters, head_dim {arguments.head_dim}, sequence {arguments.seq}, on"
        f" {len(text) / 1e6:.1f} MB of Python source; MindSpore {ms.__version__}, GRAPH mode, {arguments.device};"
        f" attention: {arguments.attention}, {dtype}",
        flush=True,
    )

    before = peak_megabytes()
    source = batches(text, arguments.batch, arguments.seq, arguments.seed)
    label = f"train [{arguments.attention}]"
    losses, seconds = train(
        model, source, arguments.steps, arguments.learning_rate, stop_after=arguments.stop_after, label=label
    )
    steps = len(losses)
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
    if arguments.held_out:
        summary["held_out_bits_per_byte"] = held_out_bits(model, held_out, arguments.seq, arguments.held_out)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    with open(out / "loss.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss", "seconds"])
        writer.writerows(zip(range(1, steps + 1), losses, seconds))
    plot(out / "loss.png", {arguments.attention: losses}, "byte-level GPT")

    if arguments.sample:
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
