"""List names that are refused, with the reasons (D13c, D22, D25b, D28a, D30c)."""

from __future__ import annotations

from .registry import refuse

COMPARISONS = ("lt", "gt", "ge", "le", "eq", "ne")

refuse(("conv2d",), "it is not emulated; use load3dv1 and mmad")
refuse(("load2dv2", "load3dv2"), "it exists from Ascend 310P on; use the v1 form")
refuse(("data_move_pad",), "it exists from Atlas A2 on; move whole blocks of 32 bytes with data_move")
refuse(
    ("vadddeqrelu", "vaddrelu", "vsubrelu", "vmulconv", "vaddreluconv"),
    "fused inference instructions exist from Ascend 310P on",
)
refuse(("v4dtrans",), "it exists from Ascend 310P on; use vnchwconv or vec_trans_scatter")
refuse(
    tuple(f"vcmpvs_{name}" for name in COMPARISONS),
    "comparison with a scalar exists from Ascend 310P on; use vcmpv_* with a filled tensor",
)
refuse(
    ("vbi", "vreduce", "vreducev2", "vgather", "vgatherb", "vscatter", "vec_gather"),
    "gather and scatter instructions exist from Ascend 310P on",
)
refuse(("vcopy",), "it exists from Ascend 310P on; use data_move inside the Unified Buffer")
refuse(("vbs16", "vms4"), "sort instructions of later chips; use vrpsort16 and vmrgsort4")
refuse(
    ("vec_whole_reduce_add", "vec_whole_reduce_max", "vec_whole_reduce_min"),
    "it exists on later chips; use vcadd, vcmax or vcmin",
)
refuse(("vec_cpadd",), "it exists on later chips; use vcpadd")
refuse(
    (
        *("rpn_cor", "rpn_cor_diag", "set_rpn_cor_ir", "set_rpn_offset", "vaadd", "viou", "vrpac", "call_module"),
        *("col2img", "vmins", "vmaxs", "vcbd", "vmrgsort", "vsort32", "new_scope", "mov_vmrgsort4_sr_to_scalar"),
        *("TensorAddrList", "vmrgch", "get_available_buffer_size", "get_overflow_status", "set_overflow_status"),
        *("load_image", "StartProfiling", "vmaddrelu", "winograd_feature_map_transform", "winograd_weight_transform"),
        *("printf", "scalar_countbit0", "h_rec", "h_sqrt", "h_broadcast", "h_trans", "h_relu", "h_reduce_argmin"),
    ),
    "no public description says what it does",
)
