"""A clock with operations on byte ranges."""

from __future__ import annotations

ISSUE, FLAG, HANDSHAKE = 4, 1, 10


SYNC = FLAG + HANDSHAKE  # from a result on one pipe to the start on another


FLAGS = 2 * FLAG  # issue of set_flag and wait_flag by the scalar unit
