"""Operators of operator packages (OPP): used as CANN uses them, from their information and their entries."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tikemu
from tikemu.frontend import platform_info
from tikemu.machine.inputs import block_count

from ..compiler.tasks import record
from ..operator_call import OperatorCall, arguments_of, shape_of
from ..operator_packages import Information, installed
from .errors import KernelError
from .formats import dtype_of, store, to_plain
from .launch import Launcher
from .node import Node, described, description_of
from .report import AI_CORE


class Packages:
    """The operators of all packages in ASCEND_CUSTOM_OPP_PATH, compiled when they first run."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.kernels: dict[str, OperatorCall] = {}
        places = filter(None, os.environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":"))
        # MindSpore's own count as built in.
        self.types = installed(place for place in places if "/mindspore/lib/plugin/" not in place)

    def run(self, node: Node, given: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """Return the results of a node.

        Raises:
            KernelError: it has other tensors or attributes than the package says, or cannot be compiled or run.
        """
        information = self.types[node.type]
        inputs, outputs = self._tensors(node, information, given)
        key = json.dumps([node.type, node.attributes, inputs, outputs])
        if key not in self.kernels:
            self.kernels[key] = self._compile(node, information, inputs, outputs)
        kernel = self.kernels[key]
        program = kernel.program
        assert program is not None
        arguments = arguments_of(program)
        feeds: dict[str, np.ndarray] = {}
        for tensor, array, description in zip(arguments, given, inputs):
            stored = np.empty(description["shape"], dtype_of(description))
            assert array is not None  # every argument is there
            store(array, stored, description)
            feeds[tensor.name] = stored.reshape(shape_of(tensor))
        results = arguments[len(inputs) :]
        for tensor in (*results, *program.workspaces):
            if tensor.is_atomic_add:
                feeds[tensor.name] = np.zeros(shape_of(tensor), tensor.dtype)
        blocks = block_count(program, {}) or 1
        size = sum(array.nbytes for array in feeds.values())
        found = self.launcher.run_program(kernel, program, feeds, size)
        self.launcher.note(kernel, AI_CORE, blocks)
        return [
            to_plain(found[tensor.name].reshape(description["shape"]), description)
            for tensor, description in zip(results, outputs)
        ]

    def _tensors(
        self, node: Node, information: Information, given: Sequence[np.ndarray | None]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the descriptions of all tensors as CANN hands them to the entry."""
        sides = []
        for side, ports, tensors in (
            ("input", node.inputs, [None if array is None else description_of(array) for array in given]),
            ("output", node.outputs, [described(tensor) for _, tensor in node.outputs]),
        ):
            wanted = information.tensors(side)
            names, allowed = [port for port, _ in ports], [tensor["name"] for tensor in wanted]
            if names != allowed:
                raise KernelError(f"node {node.name}: {side}s {names}, of type {node.type} in its package {allowed}")
            found = []
            for want, tensor in zip(wanted, tensors):
                if tensor is None or tensor["dtype"] != want["dtype"]:
                    got = "nothing" if tensor is None else tensor["dtype"]
                    raise KernelError(
                        f"node {node.name}: {side} {want['name']} is {got}, of the package {want['dtype']}"
                    )
                shape = tensor["shape"]
                if want["format"] == "FRACTAL_NZ":
                    *outer, rows, columns = shape
                    shape = [*outer, -(-columns // 16), -(-rows // 16), 16, 16]
                found.append({**tensor, "shape": shape, "format": want["format"], "ori_format": "ND"})
            sides.append(found)
        return sides[0], sides[1]

    def _compile(self, node: Node, information: Information, inputs: list, outputs: list) -> OperatorCall:
        absent = [name for name in information.attributes if name not in node.attributes]
        if absent:
            raise KernelError(f"node {node.name}: it has no attribute {', '.join(absent)}, which {node.type} requires")
        soc = os.environ["VIRTUAL_ASCEND_SOC"]
        tikemu.install(soc=soc)
        platform_info.set_current_compile_soc_info(soc, aicore_num=int(os.environ["VIRTUAL_ASCEND_CORES"]))
        name = f"te_{information.function}_{len(self.kernels)}"
        try:
            values = [node.attributes[attribute] for attribute in information.attributes]
            tensors = [
                {**one, "shape": tuple(one["shape"]), "ori_shape": tuple(one["ori_shape"])}
                for one in (*inputs, *outputs)
            ]
            program = record(information.entry(), [*tensors, *values], kernel_name=name)
        except Exception as error:
            raise KernelError(f"node {node.name}: {node.type} cannot be compiled: {error}") from error
        return OperatorCall(name, node.type, information.function, inputs, outputs, dict(node.attributes), program)
