"""virtual_ascend: MindSpore's own Ascend backend on a computer without a card.

``virtual-ascend -- python train.py`` runs a program that says ``device_target="Ascend"``: what is MindSpore's is real,
what is CANN's and the chip's is here. See README.md.
"""

__version__ = "0.1.0"
