"""The dropout stream: Philox4x32-10 by seed, head and position. NumPy reference for the draws of every backend.

Philox is a counter-based generator. A keep decision depends only on the seed and the place in the attention matrix. So
forward, backward, recomputation and every backend see the same mask, and nothing stores it.

    key      (seed[0] mod 2**32, seed[1] mod 2**32)
    counter  (key index // 8, query index, query head, batch element)

One call gives four 32-bit words, that is eight 16-bit values (little-endian: the low half of word 0 first). Value j
decides key 8 * (key index // 8) + j, which is kept if the value is at least the threshold. Eight decisions make one
byte, bit j for value j. Given keep bits have the same layout.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 3.3.
"""

from __future__ import annotations

import numpy as np

from flash_attention.call import Call

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter, key) -> np.ndarray:
    """Compute ten rounds of Philox4x32.

    Args:
        counter: uint32 (..., 4).
        key: uint32 (..., 2), broadcast against the leading axes of counter.

    Returns:
        uint32 (..., 4).
    """
    words = [np.asarray(counter, dtype=np.uint64)[..., i] for i in range(4)]
    keys = [np.asarray(key, dtype=np.uint32)[..., i] for i in range(2)]
    for _ in range(_ROUNDS):
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            (second >> _HALF) ^ words[1] ^ keys[0],
            second & _LOW,
            (first >> _HALF) ^ words[3] ^ keys[1],
            first & _LOW,
        ]
        with np.errstate(over="ignore"):
            keys = [word + step for word, step in zip(keys, _KEY_STEPS)]
    return np.stack(np.broadcast_arrays(*words), axis=-1).astype(np.uint32)


def keep_bits(call: Call, seed) -> np.ndarray:
    """Return the packed keep decisions of a call whose dropout is active.

    The bits past seq_k in the last byte of a row are drawn like the others and mean nothing.

    Args:
        call: gives shapes, offsets of the shard and the threshold.
        seed: two integers, of which the low 32 bits count.

    Returns:
        uint8 (batch, heads, seq_q, ceil(seq_k / 8)); bit k % 8 of byte k // 8 set = key k is kept.
    """
    shape = call.shape_keep_bits()
    counter = np.empty((*shape[1:], 4), dtype=np.uint32)
    counter[..., 0] = np.arange(shape[3])
    counter[..., 1] = np.arange(shape[2])[:, None]
    counter[..., 2] = call.head_offset + np.arange(shape[1])[:, None, None]
    key = np.array([int(word) & 0xFFFFFFFF for word in seed], dtype=np.uint32)
    result = np.empty(shape, dtype=np.uint8)
    for element in range(shape[0]):  # by batch element: the values take 16 times the memory of the bits
        counter[..., 3] = call.batch_offset + element
        values = philox4x32(counter, key).astype("<u4").view("<u2")
        kept = values >= call.dropout_threshold
        result[element] = np.packbits(kept, axis=-1, bitorder="little")[..., 0]
    return result
