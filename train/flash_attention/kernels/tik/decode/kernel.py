"""The main decoding kernel: sums of a few queries against the key tiles of each core.

FlashAttention-2 (Dao, 2023), algorithm 1, with the keys split over the cores, as in Flash-Decoding:

    for K, V in key tiles of this core:                         work.py deals, cursor.py finds them, pipeline.py
        Q, K, V in fractals                                     load.py
        S = K Q^T                                               pipeline.py
        S scaled, capped, biased, hidden                        softmax.take
        m' = max(m, S), P = exp(S - m'), l = l exp(m - m') + P  softmax.update
        O = O exp(m - m') + V^T P^T                             pipeline.py (Cube), softmax.accumulate
        m, l, O where a row block ends on this core             store.py
    output and logsumexp from those of all cores                merge.py, a kernel

Memory is the limit: keys and values stream through double buffers without a stop from one sequence to the next, all
else happens meanwhile. The matrices are transposed: S has a key per row, O a column of the output. plan.py chooses the
tiles.
"""

from __future__ import annotations

from flash_attention.kernels.tik.decode import work
from flash_attention.kernels.tik.decode.pipeline import DecodeLoop
from flash_attention.kernels.tik.kernel import Kernel, Recording


def build(recording: Recording) -> Kernel:
    """Records and builds the main decoding kernel.

    Raises:
        ValueError: the problem asks for what the kernels do not have.
    """
    problem, pages = recording.request.problem, recording.request.pages
    choice = work.choose(problem, pages is not None)
    most = problem.batch * problem.kv_heads * choice.plan.row_blocks
    most *= work.tiles_of(problem, choice.plan, problem.seq_k)[2]
    return recording.kernel(
        choice.plan,
        choice.buffers,
        problem.cores,
        (-(-most // problem.cores), most),
        lambda core, index: DecodeLoop(core, index, pages).record(),
    )
