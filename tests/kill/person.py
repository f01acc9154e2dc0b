"""The person at the desk as a process: ``python -m tests.kill.person STORE FAR_PORT``, until its input closes."""

from __future__ import annotations

import sys

from examples.far_side import FarSide
from tests.kill.desk import Desk, Report
from tests.kill.talk import Looked, say


def main() -> None:
    url, far_port = sys.argv[1:]
    Desk(url, FarSide(int(far_port)), tell).work(0)


def tell(report: Report) -> None:
    say(Looked(report.left, report.counts, list(report.open_runs)))


if __name__ == "__main__":
    main()
