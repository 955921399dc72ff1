"""Recurrent layers over (steps, batch, features), and the derivatives of single steps.

Weights of an LSTM lie in FRACTAL_ZN_RNN, its bias in ND_RNN_BIAS: rows of input and of hidden state and columns of each
gate fill up fractals of their own. Operators take such tensors as they are stored.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..numerics import wide
from .elementwise import sigmoid

_PART = 16
# Two float16 between 0 and 1 are less than this when they are read as one float32.
_TAKEN_FOR_FLOAT32 = 2.0**-7


def _filled(size: int) -> int:
    return -(-size // _PART) * _PART


def _places(sizes: list[int]) -> np.ndarray:
    """Where elements of parts of these sizes lie when each part fills up fractals."""
    starts = np.cumsum([0, *map(_filled, sizes)])
    return np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes)])


def matrix_of(stored: np.ndarray) -> np.ndarray:
    """A view of fractals (row part, column part, column, row) as rows with what fills up."""
    down, across, width, height = stored.shape
    return stored.transpose(0, 3, 1, 2).reshape(down * height, across * width)


def _parts(features: int, hidden: int, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of rows and columns of weights of so many; rows of the input, of the hidden state, or of both."""
    down = [features, hidden] if rows == features + hidden else [rows]
    return _places(down), _places([hidden] * (columns // hidden))


def _to_and_from_fractals(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    """Weights and biases to the formats of recurrent layers and back."""
    attributes = kernel.attributes
    features, hidden = attributes["input_size"], attributes["hidden_size"]
    result = kernel.outputs[0]
    if attributes["src_format"] == "ND":
        filled = np.zeros(result["shape"], x.dtype)
        if x.ndim == 1:
            filled[_places([hidden] * (x.size // hidden))] = x
            return filled
        rows, columns = _parts(features, hidden, *x.shape)
        whole = np.zeros((filled.shape[0] * _PART, filled.shape[1] * _PART), x.dtype)
        whole[np.ix_(rows, columns)] = x
        return whole.reshape(filled.shape[0], _PART, filled.shape[1], _PART).transpose(0, 2, 3, 1)
    if len(result["shape"]) == 1:
        return x[_places([hidden] * (result["shape"][0] // hidden))]
    return matrix_of(x)[np.ix_(*_parts(features, hidden, *result["shape"]))]


def _activation(name: str) -> Callable[[np.ndarray], np.ndarray]:
    if name.lower() != "tanh":
        raise NotImplementedError(f"the activation {name}; tanh is known")
    return np.tanh


def _gates(kernel: Kernel, names: str, given: str) -> list[int]:
    """The places of these gates in the order that an attribute gives."""
    order = kernel.attributes.get("gate_order", given)
    return [order.index(name) for name in names]


def _steps(kernel: Kernel, count: int) -> range:
    backward = kernel.attributes.get("direction", "UNIDIRECTIONAL") == "REDIRECTIONAL"
    return range(count - 1, -1, -1) if backward else range(count)


def _lstm(kernel: Kernel, x: np.ndarray, weights: np.ndarray, bias: np.ndarray, *rest: Any) -> tuple[np.ndarray, ...]:
    """Output, hidden state and cell state of every step, the gates i, j, f, o, and the tanh of the cell state."""
    states = [array for array in rest if array is not None and array.dtype.kind == "f"]
    attributes = kernel.attributes
    count, batch, features = x.shape
    hidden = kernel.outputs[0]["ori_shape"][-1]
    rows, columns = _parts(features, hidden, features + hidden, 4 * hidden)
    matrix, shift = wide(matrix_of(weights))[np.ix_(rows, columns)], wide(bias)[columns]
    zeros = np.zeros((batch, hidden), np.float32)
    h, c = (wide(state).reshape(batch, hidden) for state in states[:2]) if states else (zeros, zeros)
    activate = _activation(attributes.get("activation", "tanh"))
    results = np.zeros((8, count, batch, hidden), np.float32)
    order = _gates(kernel, "ijfo", "ijfo")
    for step in _steps(kernel, count):
        sums = np.concatenate([wide(x[step]), h], 1) @ matrix + shift
        i, j, f, o = (sums.reshape(batch, 4, hidden)[:, place] for place in order)
        i, f, o = sigmoid(i), sigmoid(f + attributes.get("forget_bias", 0.0)), sigmoid(o)
        j = activate(j)
        c = f * c + i * j
        bent = activate(c)
        h = o * bent
        results[:, step] = h, h, c, i, j, f, o, bent
    return tuple(results)


def _lstm_step_gradient(kernel: Kernel, *arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of the sums in the gates, and of the cell state before the step, of which it is the first input."""
    shape = kernel.outputs[1]["ori_shape"]
    before, *rest = (wide(array).reshape(shape) for array in arrays)
    of_output, of_hidden, of_cell, i, j, f, o, bent = rest
    if max(i.max(), f.max(), o.max()) < _TAKEN_FOR_FLOAT32:
        raise ValueError(
            "no gate is open anywhere: these are float16 that MindSpore takes for float32, as its GRAPH of an LSTM "
            "does; in PYNATIVE it trains"
        )
    total = of_output + of_hidden
    cell = total * o * (1 - bent**2) + of_cell
    gates = [cell * j * i * (1 - i), cell * i * (1 - j**2), cell * before * f * (1 - f), total * bent * o * (1 - o)]
    places = _gates(kernel, "ijfo", "ijfo")
    filled = np.zeros((*shape[:-1], kernel.outputs[0]["ori_shape"][-1]), np.float32)
    filled[..., _places([shape[-1]] * 4)] = np.concatenate([gates[places.index(place)] for place in range(4)], -1)
    return filled, cell * f


def _gru(kernel: Kernel, x: np.ndarray, of_input: np.ndarray, of_hidden: np.ndarray, *rest: Any) -> tuple[Any, ...]:
    """Output and hidden state of every step, the gates z and r, the new state, and what r weighs in it."""
    bias_input, bias_hidden, _lengths, start = (*rest, None, None, None, None)[:4]
    count, batch, _ = x.shape
    hidden = kernel.outputs[0]["ori_shape"][-1]
    h = np.zeros((batch, hidden), np.float32) if start is None else wide(start).reshape(batch, hidden)
    activate = _activation(kernel.attributes.get("activation", "tanh"))
    order = _gates(kernel, "rzh", "zrh")
    results = np.zeros((6, count, batch, hidden), np.float32)
    for step in _steps(kernel, count):
        sums = []
        for rows, matrix, bias in ((x[step], of_input, bias_input), (h, of_hidden, bias_hidden)):
            product = wide(rows) @ wide(matrix) + (0 if bias is None else wide(bias))
            sums.append([product.reshape(batch, 3, hidden)[:, place] for place in order])
        (r_input, z_input, new_input), (r_hidden, z_hidden, new_hidden) = sums
        r, z = sigmoid(r_input + r_hidden), sigmoid(z_input + z_hidden)
        new = activate(new_input + r * new_hidden)
        h = (1 - z) * new + z * h
        results[:, step] = h, h, z, r, new, new_hidden
    return tuple(results)


def _gru_step_gradient(kernel: Kernel, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Gradients of the state before the step as far as it goes there past the gates, of the sums in the gates, and of
    the input's part of the new state's. Steps are counted from the last.

    In the first call both gradients of the state are one. The call behind the last only adds them.
    """
    batch, hidden = kernel.outputs[0]["ori_shape"][-2:]
    past, states, of_output, of_state, *rest = (
        wide(array).reshape(-1, batch, hidden) for array in arrays if array is not None
    )
    number, count = kernel.attributes["t_state"], len(of_output)
    arriving = past[0] + of_state[0] if number else of_state[0]
    if number == count:
        empty = np.zeros((batch, hidden), np.float32)
        return arriving, np.zeros((batch, 3 * hidden), np.float32), empty
    step = count - 1 - number
    z, r, new, new_hidden = (array[step] for array in rest)
    total = of_output[step] + arriving
    before = states[step - 1] if step else states[0]
    of_new = total * (1 - z) * (1 - new**2)
    gates = {
        "r": of_new * new_hidden * r * (1 - r),
        "z": total * (before - new) * z * (1 - z),
        "h": of_new * r,
    }
    order = kernel.attributes.get("gate_order", "zrh")
    return total * z, np.concatenate([gates[name] for name in order], -1), of_new


TABLE: dict[str, Callable[..., Any]] = {
    "basic_lstm_cell_c_state_grad_v2": _lstm_step_gradient,
    "dynamic_gru_v2": _gru,
    "dynamic_rnn": _lstm,
    "gru_v2_hidden_grad_cell": _gru_step_gradient,
    "trans_data_rnn": _to_and_from_fractals,
}
