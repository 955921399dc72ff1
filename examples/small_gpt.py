"""Share text, a small GPT, its training and its test between the examples."""

from __future__ import annotations

import resource
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import mindspore as ms
import numpy as np
from flash_attention import plotting
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal
from tqdm import tqdm

VOCABULARY = 256
#: Bytes that enter at every position: its own byte and the bytes before it.
SEEN = 4
#: Standard deviation of the vectors of bytes before training.
EMBEDDING_SIGMA = 0.15
#: One module in so many is held out of training.
HELD_OUT_EVERY = 40


# ------------------------------------------------------------------------------------------------ text
def standard_library(limit: int = 16 << 20) -> tuple[np.ndarray, np.ndarray]:
    """Return bytes of the standard library's modules in a fixed order: modules to train on, then other modules, at
    most `limit` each.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    skip = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "__pycache__"}
    training, held_out = bytearray(), bytearray()
    paths = [path for path in sorted(folder.rglob("*.py")) if not skip.intersection(path.relative_to(folder).parts)]
    for number, path in enumerate(paths):
        text = held_out if number % HELD_OUT_EVERY == HELD_OUT_EVERY // 2 else training
        if len(text) < limit:
            text += path.read_bytes()
    return np.frombuffer(bytes(training[:limit]), np.uint8), np.frombuffer(bytes(held_out[:limit]), np.uint8)


def batches(text: np.ndarray, batch: int, seq: int, seed: int) -> Iterator[np.ndarray]:
    """Yield random crops, int32 of shape (batch, seq + 1): inputs and, one byte later, targets."""
    generator = np.random.default_rng(seed)
    while True:
        starts = generator.integers(0, len(text) - seq, batch)
        yield np.stack([text[start : start + seq + 1] for start in starts]).astype(np.int32)


def pieces(text: np.ndarray, seq: int, count: int) -> np.ndarray:
    """Return `count` pieces of seq + 1 bytes, spread evenly over the text. A shorter text gives fewer."""
    count = min(count, (len(text) - 1) // seq)
    starts = np.linspace(0, len(text) - seq - 1, count).astype(int)
    return np.stack([text[start : start + seq + 1] for start in starts]).astype(np.int32)


# ------------------------------------------------------------------------------------------------ model
class ByteEmbedding(nn.Cell):
    """Bytes int32 (batch, SEEN - 1 + seq) -> (batch, seq, width). Every position sums vectors of the last SEEN bytes,
    with a table of vectors for each distance. ALiBi is too soft to tell the last few bytes apart."""

    def __init__(self, width: int):
        super().__init__()
        self.tables = nn.Embedding(SEEN * VOCABULARY, width, embedding_table=Normal(EMBEDDING_SIGMA))
        self.first_rows = Tensor(np.arange(SEEN, dtype=np.int32) * VOCABULARY)

    def construct(self, tokens):
        seq = tokens.shape[1] - SEEN + 1
        last = ops.stack([tokens[:, start : start + seq] for start in range(SEEN)], 2)
        return self.tables(last + self.first_rows).sum(2)


class Block(nn.Cell):
    """Attention, which takes and gives (batch, seq, heads * head_dim), and a feed-forward part."""

    def __init__(self, heads: int, head_dim: int, attention: nn.Cell, dtype: ms.Type):
        super().__init__()
        self.dtype = dtype
        width = heads * head_dim
        self.norm1 = nn.LayerNorm((width,))
        self.norm2 = nn.LayerNorm((width,))
        self.query, self.key, self.value = (nn.Dense(width, width) for _ in range(3))
        self.attention = attention
        self.out = nn.Dense(width, width)
        self.up = nn.Dense(width, 4 * width)
        self.down = nn.Dense(4 * width, width)

    def construct(self, x):
        y = self.norm1(x)
        query, key, value = self.query(y), self.key(y), self.value(y)
        query, key, value = query.astype(self.dtype), key.astype(self.dtype), value.astype(self.dtype)
        x = x + self.out(self.attention(query, key, value).astype(x.dtype))
        y = self.up(self.norm2(x))
        return x + self.down(y * ops.sigmoid(y))  # SiLU, whose gradient MindSpore 2.0 lacks on an Ascend in PYNATIVE


class GPT(nn.Cell):
    """Tokens int32 (batch, seq) -> logits float32 (batch, seq, 256).

    Args:
        layers, heads, head_dim: sizes.
        attention: makes the attention of a layer: a Cell of query, key and value in layout BSH. It has to be causal,
            and to know positions (ALiBi).
        dtype: of query, key and value.
    """

    def __init__(
        self, layers: int, heads: int, head_dim: int, attention: Callable[[], nn.Cell], dtype: str = "float32"
    ):
        super().__init__()
        width = heads * head_dim
        # A constant: on an Ascend in PYNATIVE, MindSpore 2.0 has no kernel for ops.zeros.
        self.before = Tensor(np.zeros((1, SEEN - 1), np.int32))
        self.token = ByteEmbedding(width)
        self.blocks = nn.CellList([Block(heads, head_dim, attention(), getattr(ms, dtype)) for _ in range(layers)])
        self.norm = nn.LayerNorm((width,))
        self.head = nn.Dense(width, VOCABULARY, has_bias=False)

    def construct(self, tokens):
        before = ops.tile(self.before, (tokens.shape[0], 1))
        x = self.token(ops.concat((before, tokens), 1))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Loss(nn.Cell):
    """Mean cross-entropy in nats per byte."""

    def __init__(self, model: GPT):
        super().__init__()
        self.model = model

    def construct(self, tokens, targets):
        logits = self.model(tokens)
        return ops.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


# ------------------------------------------------------------------------------------------------ training
class TrainStep(nn.TrainOneStepCell):
    """One optimizer step with the gradient's norm clipped to 1."""

    def construct(self, tokens, targets):
        loss = self.network(tokens, targets)
        gradients = self.grad(self.network, self.weights)(tokens, targets, ops.ones_like(loss))
        gradients = ops.clip_by_global_norm(gradients, 1.0)
        return ops.depend(loss, self.optimizer(gradients))


def learning_rates(peak: float, steps: int) -> list:
    """Warm up over a twentieth of the steps, then follow a cosine to a twentieth."""
    warm_up = max(1, steps // 20)
    rise = [peak * (step + 1) / warm_up for step in range(warm_up)]
    fall = np.linspace(0, np.pi, max(1, steps - warm_up))
    return rise + [float(peak * (0.525 + 0.475 * np.cos(x))) for x in fall]


def train(
    model: GPT,
    source: Iterator[np.ndarray],
    steps: int,
    learning_rate: float = 2e-3,
    stop_after: int | None = None,
    stop_seconds: float | None = None,
    label: str = "train",
) -> tuple[list[float], list[float]]:
    """Train with AdamW; returns the loss and the seconds of every step. The first step compiles the graph.

    Args:
        model: what to train; it is left in inference mode.
        source: batches, each with the inputs and, one byte later, the targets.
        steps: length of the learning-rate schedule.
        learning_rate: its peak.
        stop_after, stop_seconds: end earlier, after so many steps or seconds.
        label: stands before the progress bar.
    """
    rates = learning_rates(learning_rate, steps)
    optimizer = nn.AdamWeightDecay(model.trainable_params(), rates, beta2=0.95, weight_decay=0.01)
    step = TrainStep(Loss(model), optimizer)
    step.set_train()
    losses: list[float] = []
    seconds: list[float] = []
    end = time.monotonic() + (stop_seconds or float("inf"))
    bar = tqdm(range(min(steps, stop_after or steps)), desc=label, unit="step")
    for _ in bar:
        crop = next(source)
        start = time.perf_counter()
        losses.append(float(step(Tensor(crop[:, :-1]), Tensor(crop[:, 1:])).asnumpy()))
        seconds.append(time.perf_counter() - start)
        bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
        if time.monotonic() > end:
            break
    bar.close()
    model.set_train(False)
    return losses, seconds


def held_out_loss(model: GPT, crops: np.ndarray) -> float:
    """Return the mean loss, in nats per byte, of crops (count, seq + 1)."""
    loss = Loss(model)
    loss.set_train(False)
    return float(loss(Tensor(crops[:, :-1]), Tensor(crops[:, 1:])).asnumpy())


def sample_byte(generator: np.random.Generator, logits: np.ndarray, temperature: float) -> int:
    """Return a next byte, as likely as the logits say."""
    logits = logits.astype(np.float64) / temperature
    weights = np.exp(logits - logits.max())
    return int(generator.choice(VOCABULARY, p=weights / weights.sum()))


# ------------------------------------------------------------------------------------------------ figures
def draw(path: Path, paint: Callable, columns: int = 1) -> None:
    """Save a picture whose axes `paint` fills, if matplotlib is installed."""
    try:
        figure, axes = plotting.subplots(1, columns, (5 * columns, 4))
    except RuntimeError as error:
        print(f"no {path}: {error}")
        return
    paint(*axes[0])
    plotting.save(figure, path)


def peak_megabytes() -> float:
    """Return the largest resident size that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
