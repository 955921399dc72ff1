#!/usr/bin/env python
"""Writes docs/api.md from the docstrings: python docs/reference.py (needs griffelib, imports nothing of the packages).

What a class inherits is left out, so a layer shows none of the hundred methods of nn.Cell.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/api.md"
HEAD = """# API

`python docs/reference.py` writes this page from the docstrings; in Python, `help(FlashAttention)` shows the same.
Layers are `mindspore.nn.Cell`s; what they inherit is left out.
"""
#: Headings with what stands below each, by import path; of a class or module with the members that are shown.
SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "Attention": {
        "flash_attention.FlashAttention": (),
        "flash_attention.flash_attention": (),
        "flash_attention.scaled_dot_product_attention": (),
        "flash_attention.flash_attention_varlen": (),
        "flash_attention.rotary_embedding": (),
    },
    "Decoding": {
        "flash_attention.KVCache": ("update", "attend", "reorder", "reset"),
        "flash_attention.paged_attention": (),
        "flash_attention.reshape_and_cache": (),
        "flash_attention.paged_caches": (),
    },
    "Backends": {
        "flash_attention.attention_backend": (),
        "flash_attention.available_backends": (),
        "flash_attention.explain": (),
        "flash_attention.AttentionProblem": ("from_inputs", "band"),
        "flash_attention.problem.AttentionRules": ("from_arguments",),
    },
    "Several devices": {
        "flash_attention.context_parallel.RingAttention": (),
        "flash_attention.context_parallel.GatherAttention": (),
        "flash_attention.context_parallel.SequenceSplit": ("split", "join", "positions"),
        "flash_attention.context_parallel.initialize": (),
        "flash_attention.context_parallel.finalize": (),
    },
    "Other names": {
        "flash_attention.install": (),
        "flash_attention.patch_mindspore": (),
        "flash_attention.compat.flash_attn": ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"),
        "flash_attention.compat.transformers.register": (),
        "flash_attention.compat.mindnlp.register": (),
    },
    "tikemu": {
        "tikemu.install": (),
        "tikemu.uninstall": (),
        "tikemu.run": (),
        "tikemu.result.Result": ("report", "save_trace"),
        "tikemu.options.Options": (),
    },
}
WIDTH = 110


def load() -> griffe.GriffeLoader:
    """Both packages, read from their sources."""
    loader = griffe.GriffeLoader(
        search_paths=[ROOT / "train", ROOT / "emulator"],
        docstring_parser=griffe.Parser.google,
        docstring_options={"warnings": False},
    )
    for package in ("flash_attention", "tikemu"):
        loader.load(package)
    loader.resolve_aliases(implicit=True)
    return loader


def prose(text: str) -> str:
    """A docstring's text as Markdown: references and code as Sphinx writes them become code."""
    return re.sub(r"(?::(?:func|class|mod|meth|attr):)?``?([^`]+)``?", r"`\1`", text.strip())


def item(name: str, kind: Any, text: str) -> str:
    """A line of a list: name, type in brackets, description."""
    # What raises or returns has a type alone, several of them in brackets.
    label = f"`{name}`" + (f" ({kind})" if kind else "") if name else f"`{str(kind).strip('()')}`" if kind else ""
    joined = ": ".join(part for part in (label, prose(text)) if part)
    return "* " + textwrap.indent(joined, "  ")[2:]


def signature(shown: Any, name: str) -> str:
    """How it is called, on one line or with a line for each parameter; of a property its type."""
    if shown.is_attribute:
        return f"```py\n{name}: {shown.annotation}\n```"
    function = shown if shown.is_function else shown.members.get("__init__")
    parameters = list(function.parameters) if function is not None and function.is_function else list(shown.parameters)
    stars = {"variadic positional": "*", "variadic keyword": "**"}
    parts, keyword_only = [], False
    for one in parameters:
        if one.name in ("self", "cls"):
            continue
        kind = one.kind.value
        if kind == "keyword-only" and not keyword_only:
            parts.append("*")
        keyword_only = keyword_only or kind in ("keyword-only", "variadic positional")
        text = stars.get(kind, "") + one.name + (f": {one.annotation}" if one.annotation is not None else "")
        if one.default is not None and kind not in stars:
            text += f" = {one.default}" if one.annotation is not None else f"={one.default}"
        parts.append(text)
    result = f" -> {shown.returns}" if shown.is_function and shown.returns is not None else ""
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"
    return f"```py\n{line}\n```"


def described(shown: Any) -> list[str]:
    """The docstring's sections as paragraphs and lists."""
    found = []
    titles = {
        "parameters": "Parameters",
        "other parameters": "Keyword parameters",
        "attributes": "Attributes",
        "returns": "Returns",
        "yields": "Yields",
        "raises": "Raises",
    }
    for section in shown.docstring.parsed if shown.docstring else ():
        kind = section.kind.value
        if kind == "text":
            found.append(prose(section.value))
        elif kind == "examples":
            code = "\n".join(text for _, text in section.value)
            found += ["**Example**", f"```pycon\n{code}\n```"]
        elif kind == "admonition":
            found += [f"**{section.title}**", prose(section.value.contents)]
        else:
            lines = [item(getattr(one, "name", "") or "", one.annotation, one.description) for one in section.value]
            found += [f"**{titles[kind]}**", "\n".join(lines)]
    return found


def entry(loader: griffe.GriffeLoader, path: str, members: tuple[str, ...]) -> list[str]:
    """Heading, signature and description of one name, and those of its members."""
    shown: Any = loader.modules_collection[path]
    shown = shown.final_target if shown.is_alias else shown
    # Names of the package itself stand alone, as one imports them; others say where they are.
    parts = path.split(".")
    title = parts[-1] if parts[0] == "flash_attention" and len(parts) == 2 else path
    lines = [f"### {title}"]
    if shown.is_module:
        lines += described(shown)
    else:
        lines += [signature(shown, parts[-1]), *described(shown)]
    for name in members:
        member = shown.members[name]
        member = member.final_target if member.is_alias else member
        lines += [f"#### {parts[-1]}.{name}", signature(member, name), *described(member)]
    return lines


def page() -> str:
    """The whole page."""
    loader = load()
    blocks = [HEAD.rstrip("\n")]
    for heading, names in SECTIONS.items():
        blocks.append(f"## {heading}")
        for path, members in names.items():
            blocks += entry(loader, path, members)
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE.relative_to(ROOT)}")
