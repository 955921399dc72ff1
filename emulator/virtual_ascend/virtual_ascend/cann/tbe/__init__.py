"""CANN's package tbe: what tikemu has of it, and names that MindSpore's compiler asks for."""

from virtual_ascend.compiler import modules, tasks

modules.provide(tasks.TE_FUSION)
