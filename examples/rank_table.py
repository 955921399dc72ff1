#!/usr/bin/env python
"""Print the rank table of this server, for MindSpore 2.0 to 2.2 and several cards:

    python examples/rank_table.py > rank_table.json

It lists the cards that have an address in /etc/hccn.conf, where `hccn_tool` writes addresses. Ranks follow the numbers
of the cards.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
from pathlib import Path


def rank_table(server: str, addresses: dict[int, str]) -> dict:
    """Return the table of one server.

    Args:
        server: address of the server.
        addresses: addresses of the cards, by their numbers.
    """
    devices = [
        {"device_id": str(card), "device_ip": addresses[card], "rank_id": str(rank)}
        for rank, card in enumerate(sorted(addresses))
    ]
    servers = [{"server_id": server, "device": devices, "host_nic_ip": "reserve"}]
    return {"version": "1.0", "server_count": "1", "server_list": servers, "status": "completed"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--conf", type=Path, default=Path("/etc/hccn.conf"), help="file with lines address_CARD=IP")
    parser.add_argument("--server", default="", help="address of this server (default: from its name)")
    options = parser.parse_args()
    try:
        text = options.conf.read_text(encoding="utf-8")
    except OSError as error:
        parser.error(f"--conf: {error}; hccn_tool sets the cards' addresses")
    addresses = {int(card): ip for card, ip in re.findall(r"^\s*address_(\d+)\s*=\s*(\S+)", text, re.MULTILINE)}
    if not addresses:
        parser.error(f"--conf: no line address_CARD=IP in {options.conf}; hccn_tool sets the cards' addresses")
    server = options.server or socket.gethostbyname(socket.gethostname())
    print(json.dumps(rank_table(server, addresses), indent=1))


if __name__ == "__main__":
    main()
