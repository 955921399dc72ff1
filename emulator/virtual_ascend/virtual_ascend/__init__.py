"""virtual_ascend: MindSpore's own Ascend backend on a computer without a card.

``virtual-ascend -- python train.py`` runs a program that says ``device_target="Ascend"``. MindSpore is the real one;
this package stands in for CANN and the chip. See README.md.
"""

__version__ = "0.1.0"
