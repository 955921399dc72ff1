"""The backward operator: gradients of query, key, value and bias, tile by tile.

Dao, "FlashAttention-2" (2023), algorithm 2; two or three kernels run one after another, of which this is the main one:

    D = rowsum(dO * O), D and logsumexp as terms                preprocess.py, a kernel
    for K, V in work of this core:                              work.py deals and reads, load.py
        for Q, dO in query tiles that see K:                    pipeline.py, load.py
            S = Q K^T - logsumexp                               pipeline.py
            P = exp(S), masks, dropout                          softmax.probabilities
            dV += P^T dO, dP = dO V^T - D                       pipeline.py
            dS = P * dP, the gradient of a bias per score       softmax.d_scores
            dK += dS^T Q, dQ += dS K                            pipeline.py (Cube), store.QuerySums
        dK, dV                                                  store.Results
    dQ in float16, where several cores share those of a head    postprocess.py, a kernel

dK and dV stay in the accumulator memory of the Cube while query tiles pass by. docs/kernels.md draws the pipeline,
plan.py chooses the tiles and how their steps follow each other.
"""

from __future__ import annotations

from flash_attention.kernels.tik.backward.pipeline import KeyTileLoop
from flash_attention.kernels.tik.backward.work import choose
from flash_attention.kernels.tik.kernel import Kernel, Recording


def build(recording: Recording) -> Kernel:
    """Records and builds the main kernel."""
    request = recording.request
    choice = choose(request.problem, request.variant, request.bias_gradient)
    return recording.of_table(choice, lambda core, index: KeyTileLoop(core, choice.split, index).record())
