"""The names of the package for type checkers; at run time they load on first use."""

from flash_attention.context_parallel.communication import PeerError as PeerError
from flash_attention.context_parallel.communication import finalize as finalize
from flash_attention.context_parallel.communication import initialize as initialize
from flash_attention.context_parallel.gather import GatherAttention as GatherAttention
from flash_attention.context_parallel.sequence import SequenceSplit as SequenceSplit
