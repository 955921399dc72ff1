"""Compiles graphs with the layer's operators for an Ascend 910, has MindSpore 2.0 compile the operators, and runs them.

    python program.py EMULATOR FOLDER        with MindSpore 2.0; FOLDER/cases.json and FOLDER/NAME.npz are its input

The graph, its Custom operators with their attributes, shapes and constants are MindSpore's own, as far as it comes
without a device. From there on MindSpore's C++ writes a compile job per operator, which needs the device's libraries;
`job` writes it instead, after `mindspore/ccsrc/plugin/device/ascend/kernel/tbe/tbe_json` of MindSpore's sources. The
jobs go through MindSpore's TbeJobManager and a stand-in for CANN to the emulator. Results go to FOLDER/NAME.out.npz.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np
from flash_attention.backends.ascend import BACKEND, entries, environment
from flash_attention.kernels.tik import host, operators
from flash_attention.kernels.tik.layout import nz_shape
from flash_attention.kernels.tik.problem import Chip
from flash_attention.kernels.tik.signature import Request
from flash_attention.problem import AttentionProblem
from mindspore import Tensor, nn, ops
from mindspore._c_expression import Oplib
from mindspore.common.api import _cell_graph_executor

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from no_device import Target, end_of_graph, open_no_device  # noqa: E402
from stand_in import Compiler  # noqa: E402

from tests.train.flash_attention.problems import make_problem  # noqa: E402
from tests.train.flash_attention.ut.tik import stored_arrays  # noqa: E402

DTYPES = {"Float16": "float16", "Float32": "float32", "Int32": "int32", "UInt8": "uint8"}
SOC = {
    **dict.fromkeys(("op_impl_mode", "op_impl_mode_list", "op_debug_config", "mdl_bank_path", "te_version"), ""),
    **dict.fromkeys(("op_bank_path", "vector_fp_ceiling", "l1Fusion", "l2Fusion", "l2Mode", "status_check"), ""),
    **{"socVersion": "Ascend910A", "coreType": "AiCore", "coreNum": "32", "op_debug_level": "1", "deviceId": 0},
    **{"autoTilingMode": "NO_TUNE", "offlineTune": False, "op_bank_update": False, "deterministic": False},
}


class Attention(nn.Cell):
    """Attention with given keep bits."""

    def __init__(self, problem: AttentionProblem):
        super().__init__()
        self.attention = BACKEND.build(problem)

    def construct(self, query, key, value, mask, bias, keep_bits):
        return self.attention(query, key, value, mask, bias, keep_bits, None)


class Gradients(nn.Cell):
    """Attention and its gradients, with both results used."""

    def __init__(self, problem: AttentionProblem):
        super().__init__()
        self.attention = Attention(problem)
        self.gradients = ops.GradOperation(get_all=True, sens_param=True)

    def construct(self, query, key, value, mask, bias, keep_bits, d_output, d_logsumexp):
        given = (query, key, value, mask, bias, keep_bits)
        return self.attention(*given), self.gradients(self.attention)(*given, (d_output, d_logsumexp))


def custom_operators(problem: AttentionProblem, arrays: dict, target: Target) -> list[dict]:
    """The Custom operators of the compiled graph, {function, path, request, inputs, outputs}, in order."""
    names = ("query", "key", "value", "mask", "bias", "keep_bits", "d_output", "d_logsumexp")
    tensors = [Tensor(arrays.get(name, np.zeros(1, np.float16))) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        ms.set_context(save_graphs=True, save_graphs_path=folder)
        target.set("Ascend")
        try:
            _cell_graph_executor.compile(Gradients(problem), *tensors, phase="export.jobs", do_convert=False)
        except RuntimeError as error:
            if not end_of_graph(error):
                raise
        finally:
            target.set("CPU")
            ms.set_context(save_graphs=False)
        last = max(Path(folder).rglob("*.ir"), key=lambda path: int(path.stem.rsplit("_", 1)[1]))
        return [_custom(*found) for found in re.findall(_CUSTOM, last.read_text())]


# Small constants are printed among the inputs, over several lines.
_CUSTOM = r"= Custom\((?:(?!= Custom\()[\s\S])*?primitive_attrs: (\{.*\})\n +: \((.*)\) -> \((.*)\)\n"


def _custom(attributes: str, inputs: str, outputs: str) -> dict:
    """What the graph says of a custom operator."""

    def attribute(name: str) -> str:
        return re.search(rf"\b{name}: ([^,}}]*)", attributes).group(1)

    start = attributes.index("request: ") + len("request: ")  # what follows is JSON, in braces within braces
    counted = re.findall(r"Tensor\[(\w+)\](?:\*(\d+))?", outputs)
    types = [kind for kind, count in counted for _ in range(int(count or 1))]
    shapes = re.findall(r"\(([\d, ]+)\)", outputs)
    return {
        "function": attribute("func_name"),
        "path": attribute("imply_path"),
        "name": attribute("uniq_name"),
        "request": attributes[start : start + json.JSONDecoder().raw_decode(attributes[start:])[1]],
        "inputs": [_tensor(*one) for one in re.findall(r"<Tensor\[(\w+)\], \(([\d, ]*)\)", inputs)],
        "outputs": [_tensor(*one) for one in zip(types, shapes)],
    }


def _json(text: str) -> str:
    """The JSON object that a text starts with."""
    return text[: json.JSONDecoder().raw_decode(text)[1]]


def _tensor(kind: str, shape: str) -> tuple:
    """Dtype and shape of a printed tensor."""
    return DTYPES[kind], [int(size) for size in shape.split(",") if size.strip()]


def job(operator: dict, information: dict, number: int, kind: str, folder: Path) -> dict:
    """The compile job of an operator: what single_tbe_json_creator.cc writes."""

    def described(side: str) -> list:
        result = []
        first = 0 if side == "inputs" else len(information["inputs"])
        for index, (dtype, shape) in enumerate(operator[side]):
            wanted, form = information["dtype_format"][0][first + index]
            assert wanted == dtype, (operator["function"], side, index)
            stored = list(nz_shape(*shape)) if form == "FRACTAL_NZ" else shape
            form = form if form == "FRACTAL_NZ" else "NCHW" if len(shape) == 4 else "ND"
            one = information[side][index]
            common = {"ori_shape": shape, "ori_format": "NCHW", "addr_type": 0, "L1_workspace_size": -1, "range": []}
            one = {"name": one["name"] + "_0", "param_type": one["paramType"], "valid": True}
            result.append({**common, **one, "shape": stored, "format": form, "dtype": dtype, "data_type": dtype})
        return result

    fusion_name = f"te_{operator['function']}_{number}_0"
    value, function = operator["request"], information["kernel"]
    node = {
        **{"input_desc": described("inputs"), "output_desc": described("outputs"), "op_name": fusion_name},
        **{"attrs": [{"name": "request", "dtype": "str", "value": value, "valid": True}], "attr_desc": [value]},
        **{
            "func_name": function,
            "module_name": f"impl.{function}",
            "type": operator["name"],
        },
        **{"py_module_path": operator["path"], "name": f"Default/Custom-op{number}", "pattern": "Opaque"},
        **{"is_dynamic_impl": False, "unknown_shape": False, "int64mode": False, "build_type": "accurately_build"},
        **{"miss_support_info": "", "max_kernel_id": 10},
    }
    data = [{"name": one["name"], "type": "Data", "output_desc": [one]} for one in node["input_desc"]]
    debug = {"op_debug_dir": str(folder), "kernel_meta_temp_dir": str(folder)}
    content = {"SocInfo": {**SOC, **debug}, "op_list": [*data, node], "fusion_op_name": fusion_name}
    content.update(full_name=node["name"], graph_name="", scope_id=-1, l1_size=-1)
    return {"source_id": 1, "job_id": number, "job_type": kind, "job_content": content}


class Jobs:
    """MindSpore's job manager, spoken to as its C++ does."""

    def __init__(self, folder: Path):
        from mindspore._extends.parallel_compile.tbe_compiler.tbe_job_manager import TbeJobManager

        self.manager, self.folder, self.number = TbeJobManager(), folder, 0
        tune = {"tune_op_list": [], "tune_dump_path": "", "tune_bank_path": ""}
        licence = dict.fromkeys(("rl_tune_switch", "rl_tune_list", "op_tune_switch", "op_tune_list", "pass_list"), "")
        debug = {"op_debug_dir": str(folder), "kernel_meta_temp_dir": str(folder)}
        content = {"SocInfo": {**SOC, **debug}, "TuneInfo": tune, "LicInfo": licence}
        content.update(para_debug_path="", process_num=1)
        self.ask({"source_id": 0, "job_id": 0, "job_type": "Initialize", "job_content": content}, "SUCCESS")

    def ask(self, job: dict, wanted: str) -> dict:
        """The answer to a job; raises unless its status is the one wanted."""
        answer = json.loads(self.manager.job_handler(json.dumps(job)))
        if answer["status"] != wanted:
            raise RuntimeError("\n".join(one["message"] for one in answer["process_info"]))
        return answer

    def compile(self, operator: dict, information: dict) -> str:
        """PreCompile, then Compile, each queried until it is done. Gives the kernel's name."""
        for kind in ("PreCompile", "Compile"):
            self.number += 1
            task = job(operator, information, self.number, kind, self.folder)
            self.ask(task, "RUNNING")
            target = {"source_id": 1, "job_id": self.number}
            query = {"source_id": 1, "job_id": self.number + 100000, "job_type": "Query", "job_content": target}
            answer = json.loads(self.ask(query, "SUCCESS")["result"])
            if answer["status"] != "SUCCESS":
                raise RuntimeError("\n".join(one["message"] for one in answer["process_info"]))
        return task["job_content"]["fusion_op_name"]


class Everything(list):
    """A list of paths that cannot be imported."""

    def __contains__(self, path) -> bool:
        return True


def run_case(case: dict, folder: Path, target: Target, jobs: Jobs, compiler: Compiler, registered: dict) -> None:
    """Compiles and runs the operators of one problem."""
    # JSON has no tuples.
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in case["problem"].items()}
    problem = make_problem(**fields.pop("rules"), **fields)
    with np.load(folder / f"{case['name']}.npz") as file:
        arrays = dict(file)
    for name in arrays.keys() & {"query", "key", "value", "bias", "d_output"}:
        arrays[name] = arrays[name].astype(np.float16)
    arrays["d_logsumexp"] = arrays["d_logsumexp"].astype(np.float32)
    if case["copied"] != isinstance(ops.Custom.tbe_path_failed, Everything):
        entries.entry.cache_clear()  # MindSpore has registered its functions with other paths
        ops.Custom.tbe_path_checked.clear()
        ops.Custom.tbe_path_failed = Everything() if case["copied"] else []
    found = custom_operators(problem, arrays, target)
    stages = operators.stages(Request.from_text(found[0]["request"]))
    assert len(found) == len(stages), [one["function"] for one in found]
    for operator in found:
        assert (Path(operator["path"]).parent.name == "akg_kernel_meta") == case["copied"], operator["path"]
    kernel_problem = host.describe(problem)
    features = {name: arrays.get(name) for name in ("mask", "bias", "keep_bits")}
    given = {name: arrays[name] for name in ("query", "key", "value")}
    stored = stored_arrays.forward_inputs(kernel_problem, **given, **features)
    for stage, operator in zip(stages, found):
        name = jobs.compile(operator, registered[operator["name"]])
        _, signature = operators.describe(stage, Request.from_text(operator["request"]))
        feed, out = folder / "feed.npz", folder / "out.npz"
        np.savez(feed, **signature.feed(**{one: stored[one] for one in signature.given}))
        compiler.must("run", name, str(feed), str(out))
        with np.load(out) as results:
            stored.update(results)
        if stage == "forward":
            output, logsumexp = stored_arrays.forward_outputs(kernel_problem, stored)
            d_outputs = arrays["d_output"], arrays["d_logsumexp"]
            stored.update(
                stored_arrays.backward_inputs(
                    kernel_problem,
                    **given,
                    output=output,
                    logsumexp=logsumexp,
                    d_output=d_outputs[0],
                    d_logsumexp=d_outputs[1],
                    **features,
                )
            )
    gradients = stored_arrays.backward_outputs(kernel_problem, stored)
    np.savez(folder / f"{case['name']}.out.npz", output=output, logsumexp=logsumexp, **gradients)


def main() -> None:
    """Compiles a layer for Ascend without a device, up to the operators' programs."""
    emulator, folder = map(Path, sys.argv[1:])
    os.chdir(folder)  # MindSpore leaves files behind
    ms.set_context(mode=ms.GRAPH_MODE)
    open_no_device()
    environment.missing = lambda version, target: None
    environment.chip = Chip
    registered, register = {}, Oplib.reg_op

    def keep(self, text: str, path: str) -> bool:
        information = json.loads(text)
        registered[information["op_name"]] = information
        return register(text, path)

    Oplib.reg_op = keep
    target, compiler = Target(), Compiler(emulator)
    compiler.install()
    jobs = Jobs(folder)
    for case in json.loads((folder / "cases.json").read_text()):
        run_case(case, folder, target, jobs, compiler, registered)
        print("compiled and run:", case["name"], flush=True)
    assert not {"tikemu", "tbe.tik"}.intersection(sys.modules)
    compiler.close()


if __name__ == "__main__":
    main()
