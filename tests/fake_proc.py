"""A ``/proc`` that a test writes: processes with their environments and sockets."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path

from boundloop.actors.doctor_machine import ESTABLISHED, LISTEN, Machine

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"


class FakeProc:
    """``machine()`` is what it looks like from inside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "net").mkdir()
        self._rows: dict[str, list[str]] = {"tcp": [HEADER], "tcp6": [HEADER]}
        self._inode = 100

    def process(
        self,
        pid: int,
        command: str,
        *,
        parent: int = 1,
        state: str = "S",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder = self.folder / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (a) name) {state} {parent} 0 0")
        (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        if environment is not None:
            (folder / "environ").write_text("".join(f"{name}={text}\0" for name, text in environment.items()))

    def listen(self, pid: int, address: str, port: int) -> None:
        self._row(address, port, "0.0.0.0", 0, LISTEN)
        os.symlink(f"socket:[{self._inode}]", self.folder / str(pid) / "fd" / str(self._inode))

    def connected(self, address: str, port: int, remote: str) -> None:
        self._row(address, port, remote, 5_555, ESTABLISHED)

    def _row(self, address: str, port: int, remote: str, remote_port: int, state: int) -> None:
        self._inode += 1
        name = "tcp6" if ":" in address else "tcp"
        self._rows[name].append(
            f"   0: {_hex(address)}:{port:04X} {_hex(remote)}:{remote_port:04X} {state:02X} 00000000:00000000 "
            f"00:00000000 00000000     0        0 {self._inode} 1 0000000000000000 100 0 0 10 0"
        )

    def file(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def machine(self, **environment: str) -> Machine:
        for name, rows in self._rows.items():
            self.file(f"net/{name}", "\n".join(rows) + "\n")
        return Machine(proc=str(self.folder), environment=environment)


def _hex(address: str) -> str:
    data = ipaddress.ip_address(address).packed
    return "".join(data[at : at + 4][::-1].hex().upper() for at in range(0, len(data), 4))
