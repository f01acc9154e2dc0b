"""The machine as ``/proc`` shows it: processes, sockets and a few numbers. Reading only; what can't be read is absent.

Everything is read below a root that tests put elsewhere.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

LISTEN: Final = 10
ESTABLISHED: Final = 1
COMMAND_BYTES_MAX: Final = 65_536
PROCESSES_MAX: Final = 100_000
SOCKETS_MAX: Final = 200_000

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Process(NamedTuple):
    """One process. ``state`` is the kernel's letter (``T`` is stopped), ``command`` its title or command line."""

    pid: int
    parent: int
    state: str
    command: str


class Socket(NamedTuple):
    """One TCP socket."""

    local: IpAddress
    local_port: int
    remote: IpAddress
    state: int
    inode: int


class Machine:
    """This machine, or one that a test describes. ``environment`` is that of the process which asks."""

    def __init__(
        self,
        *,
        proc: str = "/proc",
        shm: str = "/dev/shm",
        environment: Mapping[str, str] | None = None,
        user_id: int | None = None,
    ) -> None:
        self.proc = Path(proc)
        self.shm = shm
        self.environment = os.environ if environment is None else environment
        self._user_id = os.getuid() if user_id is None else user_id

    def text(self, name: str, bytes_max: int = 1 << 22) -> str:
        """A file below ``/proc``; empty if it can't be read."""
        try:
            with open(self.proc / name, "rb") as file:
                return file.read(bytes_max).decode("utf-8", "replace")
        except OSError:
            return ""

    def number(self, name: str, key: str) -> int:
        """The number after ``key:`` in a file such as ``meminfo`` (kB as bytes); -1 if it isn't there."""
        found = re.search(rf"^{re.escape(key)}:\s+(\d+)( kB)?", self.text(name), flags=re.MULTILINE)
        return -1 if found is None else int(found[1]) * (1024 if found[2] else 1)

    def processes(self) -> list[Process]:
        """This user's processes."""
        try:
            names = [name for name in os.listdir(self.proc) if name.isdigit()]
        except OSError:
            return []
        return [found for name in names[:PROCESSES_MAX] if (found := self._process(name)) is not None]

    def _process(self, name: str) -> Process | None:
        try:
            if os.stat(self.proc / name).st_uid != self._user_id:
                return None
            state, parent = self.text(f"{name}/stat").rpartition(")")[2].split()[:2]
            return Process(int(name), int(parent), state, self._command(name))
        except (OSError, ValueError):  # gone meanwhile
            return None

    def _command(self, name: str) -> str:
        return self.text(f"{name}/cmdline", COMMAND_BYTES_MAX).replace("\0", " ").strip()

    def environment_of(self, pid: int) -> Mapping[str, str] | None:
        """What a process was started with; None if it doesn't tell."""
        text = self.text(f"{pid}/environ")
        if not text:
            return None
        return {name: value for name, _, value in (entry.partition("=") for entry in text.split("\0"))}

    def sockets(self) -> list[Socket]:
        """All TCP sockets of this network namespace."""
        rows = [*self.text("net/tcp").splitlines()[1:], *self.text("net/tcp6").splitlines()[1:]]
        return list(_sockets(rows[:SOCKETS_MAX]))

    def inodes_of(self, pid: int) -> frozenset[int]:
        """The sockets that a process holds."""
        held: set[int] = set()
        try:
            for entry in os.scandir(self.proc / str(pid) / "fd"):
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path))
                if found:
                    held.add(int(found[1]))
        except OSError:
            pass
        return frozenset(held)


def _sockets(rows: list[str]) -> Iterator[Socket]:
    for row in rows:
        fields = row.split()
        try:
            local, _, local_port = fields[1].partition(":")
            remote = fields[2].partition(":")[0]
            yield Socket(
                address_of(local), int(local_port, 16), address_of(remote), int(fields[3], 16), int(fields[9])
            )
        except (IndexError, ValueError):
            continue


def address_of(text: str) -> IpAddress:
    """An address as the kernel prints it: each 32 bits in the machine's order, little-endian wherever Ray runs. IPv4 in
    IPv6's clothes is IPv4. Raises ``ValueError``."""
    words = bytes.fromhex(text)
    data = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    found = ipaddress.ip_address(data)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
