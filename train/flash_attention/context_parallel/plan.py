"""Plan the work of one process on another process's keys, as calls of every backend.

No backend knows queries and keys that start at different positions, and none has to. Let query row x have position
x + D, counted from key y = 0 of another chunk. Causality and a window are bounds: x + D - left <= y <= x + D + right.
If D pushes a bound past the corner, no query sees the first keys (or the first rows see nothing). Without these keys or
rows, an ordinary top-left aligned window remains. Block windows shift by whole tiles in the same way.

A prefix (only beside causality, without windows) is data. In a later chunk perhaps only the keys of the prefix are
visible, so every process needs the keys of all processes.
"""

from __future__ import annotations

from typing import NamedTuple

from flash_attention.call import ALL_BLOCKS, AttentionRules
from flash_attention.call.visibility import UNLIMITED
from flash_attention.context_parallel.sequence import SequenceSplit

SAME, BEFORE, AFTER = "same", "before", "after"
_FAR = 1 << 50  # stands for no bound


class Piece(NamedTuple):
    """One call: local query rows [first_row, end_row) on the keys [first_key, end_key) of a process."""

    first_row: int
    end_row: int
    first_key: int
    end_key: int
    left: int = UNLIMITED
    right: int = UNLIMITED
    prev_blocks: int = ALL_BLOCKS
    next_blocks: int = ALL_BLOCKS
    # Where the keys lie: in the queries' own chunk, or in an earlier or later one.
    side: str = SAME
    # Position of the first row minus position of the first key.
    distance: int = 0
    # Position of the first key in the whole sequence. It means nothing in an unlimited call.
    position: int = 0
    # Whether rows see the keys of the prefix only.
    only_prefix: bool = False

    @property
    def unlimited(self) -> bool:
        """Return True if every row sees every key."""
        return not self.only_prefix and (*self[4:8],) == (UNLIMITED, UNLIMITED, ALL_BLOCKS, ALL_BLOCKS)


def pieces(
    split: SequenceSplit, rules: AttentionRules, length: int, rank: int, source: int, prefix: bool = False
) -> tuple[Piece, ...]:
    """Return the pieces of process `rank` on the keys of process `source`. There is none if it sees none of the keys.

    Args:
        length: tokens per chunk, a multiple of rules.tile if a block window applies (see `check_length`).
        prefix: whether the call has one.
    """
    found = []
    for row_place, row_chunk in enumerate(split.chunks(rank)):
        for key_place, key_chunk in enumerate(split.chunks(source)):
            place = row_place * length, key_place * length
            piece = _pair(rules, length, *place, row_chunk - key_chunk, prefix)
            if piece is not None:
                found.append(piece._replace(position=key_chunk * length + piece.first_key - place[1]))
    return tuple(found) if rules.alibi else _merged(found)


def steps(split: SequenceSplit, rules: AttentionRules, length: int, prefix: bool = False) -> tuple[int, ...]:
    """Return the distances, 0 first, at which some process sees another's keys on the ring.

    At step t, process r works on the keys of process (r - t) mod world. The steps are the same on every process. Keys
    that no process needs are not passed on, so a window skips whole steps.
    """
    world = split.world
    return tuple(
        step
        for step in range(world)
        if step == 0 or any(pieces(split, rules, length, rank, (rank - step) % world, prefix) for rank in range(world))
    )


def check_length(split: SequenceSplit, rules: AttentionRules, local: int) -> int:
    """Return the length of a chunk if a process holds `local` tokens.

    Raises:
        ValueError: a process cannot hold that many; with the allowed numbers.
    """
    unit = split.chunks_per_process * (rules.tile if rules.in_blocks else 1)
    if local % unit:
        why = f" with block windows, whose tiles have {rules.tile} tokens" if rules.in_blocks else ""
        raise ValueError(
            f"query: got {local} tokens per process, allowed are multiples of {unit} in {split.order} order{why}: a "
            f"whole sequence of a multiple of {unit * split.world} tokens over {split.world} processes"
        )
    return local // split.chunks_per_process


def _pair(rules: AttentionRules, length: int, row: int, key: int, chunks: int, prefix: bool) -> Piece | None:
    """Return the call of a query chunk on the key chunk `chunks` chunks before it."""
    distance = chunks * length
    if rules.causal and chunks < 0:
        after = Piece(row, row + length, key, key + length, side=AFTER, distance=distance, only_prefix=True)
        return after if prefix else None
    tiles = distance // rules.tile
    right = 0 if rules.causal else rules.window_right
    # Bounds on key index - row index within the chunks, in tokens and in tiles.
    low = -_FAR if rules.window_left == UNLIMITED else distance - rules.window_left
    high = _FAR if right == UNLIMITED else distance + right
    low_tile = -_FAR if rules.prev_blocks >= ALL_BLOCKS else tiles - rules.prev_blocks
    high_tile = _FAR if rules.next_blocks >= ALL_BLOCKS else tiles + rules.next_blocks
    cut = max(0, low, low_tile * rules.tile) or min(0, high, high_tile * rules.tile)
    if abs(cut) >= length:
        return None
    low, high = low - cut, high - cut
    low_tile, high_tile = low_tile - cut // rules.tile, high_tile - cut // rules.tile
    most = -(-length // rules.tile)
    return Piece(
        row + max(0, -cut),
        row + length,
        key + max(0, cut),
        key + length,
        left=UNLIMITED if -low >= length - 1 else -low,
        right=UNLIMITED if high >= length - 1 else high,
        prev_blocks=ALL_BLOCKS if -low_tile >= most else -low_tile,
        next_blocks=ALL_BLOCKS if high_tile >= most else high_tile,
        side=SAME if chunks == 0 else BEFORE if chunks > 0 else AFTER,
        distance=distance - cut,
    )


def _merged(found: list[Piece]) -> tuple[Piece, ...]:
    """Join neighbouring unlimited calls. Without ALiBi their distance does not matter."""
    result: list[Piece] = []
    for piece in found:
        for place, other in enumerate(result):
            joined = _union(other, piece)
            if joined is not None:
                result[place] = joined
                break
        else:
            result.append(piece)
    return tuple(result) if len(result) == len(found) else _merged(result)


def _union(first: Piece, second: Piece) -> Piece | None:
    if not (first.unlimited and second.unlimited):
        return None
    rows, keys = first[0:2] == second[0:2], first[2:4] == second[2:4]
    if (keys and first.end_row == second.first_row) or (rows and first.end_key == second.first_key):
        return first._replace(end_row=second.end_row, end_key=second.end_key)
    return None
