"""The kernel's loops for Arm by LLVM's model of Kunpeng 920."""

import re
import shutil

import pytest

from benchmarks import kunpeng_model

TOOLS = (kunpeng_model.COMPILER, kunpeng_model.DISASSEMBLER, kunpeng_model.ANALYSER)
needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)} (Debian: g++-aarch64-linux-gnu, llvm)"
)


@pytest.mark.builds
@needs_tools
def test_the_loops_reach_what_is_required(capsys) -> None:
    status = kunpeng_model.main([])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert len(re.findall(r"^.* reached *$", printed, re.MULTILINE)) == 5, printed


@needs_tools
def test_wasted_instructions_are_noticed(tmp_path, monkeypatch, capsys) -> None:
    """The source here has one cell of scores: each of its instructions comes twice."""
    parts = "".join(f'#include "{name}-inl.h"\n' for name in ("gemm", "exp2", "philox", "pack", "scores", "forward"))
    source = f"""#include "kernels.h"\n#include "simd/neon.h"\n{parts}
        namespace flash_attention {{
        using Cell = ForwardCell<Float32Math, Float32Math, Bias::kNone, false>;
        void run(ForwardTile<Float32Math>& t, const KeyTile& k, int64_t m, int64_t n) {{ Cell(t, k, m, n).run_full(); }}
        }}
        void* const used = reinterpret_cast<void*>(flash_attention::run);
        extern "C" void* const* where() {{ return &used; }}"""
    cell = kunpeng_model.compiled(source, tmp_path / "cell.o")
    exact = kunpeng_model.analysed
    monkeypatch.setattr(kunpeng_model, "analysed", lambda code: exact([text for text in code for _ in range(2)]))
    assert kunpeng_model.main(["--library", str(cell)]) == 1
    assert capsys.readouterr().out.count("MISSED") == 5
