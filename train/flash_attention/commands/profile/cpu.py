"""Profile a call of the cpu kernel. Rates stand beside NumPy's matrix product and the processor's peak."""

from __future__ import annotations

import argparse


def run(options: argparse.Namespace) -> int:
    from flash_attention.commands.info import processor, require_mindspore

    require_mindspore()
    from flash_attention.measuring.case import PASSES, Case
    from flash_attention.measuring.implementations import Gemm, MultiplyAdds
    from flash_attention.measuring.timing import time_in_turns, working
    from flash_attention.text_table import table

    sizes = {"batch": options.batch, "heads": options.heads, "head_dim": options.head_dim}
    rows, masks = [], []
    with working(("gemm", "multiply_adds", "flash"), options.threads) as workers:
        gemm, multiply_adds, flash = workers
        # Each process imports its modules as it starts. A peak measured meanwhile would be half of what it should be.
        for worker in workers:
            worker.require(Case(1))
        ((product,), _) = time_in_turns([gemm], Case(1), options.rounds, 10.0, ("forward",))
        of_product = Gemm.gflops(product.median)
        for dtype in options.dtype:
            alone, _ = time_in_turns([flash], Case(1, dtype, **sizes), options.rounds)
            empty = {timing.kind: timing for timing in alone}
            for seq in options.seq:
                case = Case(seq, dtype, options.window_blocks, options.tile, pattern=options.block_mask, **sizes)
                seen = case.visits
                if case.pattern:
                    masks.append(f"{case}: {seen}")
                # In turns with the peak, so that both meet the same load. The peak is the undisturbed round.
                both, _ = time_in_turns([multiply_adds, flash], [Case(1, dtype), case], options.rounds)
                timings = {timing.kind: timing for timing in both if timing.implementation == "flash"}
                peaks = [t.seconds for t in both if t.implementation == "multiply_adds" and t.kind in PASSES]
                most = MultiplyAdds.gflops(min(map(min, peaks)))
                for kind in ("forward", "backward"):
                    timing, overhead = timings[kind], empty[kind].median
                    rows.append(
                        [
                            str(case),
                            kind,
                            f"{timing.median * 1e3:.2f}",
                            f"{timing.gflops:.0f}",
                            f"{timing.gflops / of_product:.0%}",
                            f"{timing.gflops / most:.0%}",
                            f"{seen.density:.1%}",
                            f"{seen.pairs / (case.batch * case.heads * seq * seq):.1%}",
                            f"{min(1.0, max(0.0, overhead / timing.median)):.1%}",
                        ]
                    )
    print(f"{processor()}, {options.threads} threads; NumPy's float32 matrix product: {of_product:.0f} GFLOP/s")
    print(f"B={options.batch} H={options.heads} D={options.head_dim} causal; medians of {options.rounds} rounds\n")
    header = ["call", "pass", "ms", "GFLOP/s", "of product", "of peak", "tiles visited", "pairs visible", "overhead"]
    print("\n".join([table(header, rows), *masks]))
    print(
        "\nThe peak is what multiply-adds reach in registers alone, in the arithmetic that the kernel has for a dtype."
        "\nGFLOP/s count the products on visible pairs (2 forward, 5 backward); the rest of the time goes to softmax,"
        "\npacking and the hidden part of partly visible tiles. The overhead is the time of a call on one token."
    )
    return 0
