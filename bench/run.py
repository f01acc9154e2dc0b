"""Measure boundloop: ``python bench/run.py w1|w2|w3|w4|w5|core|store|layers``, one JSON line a result.

Questions, definitions and figures are in README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    # Started as a file: its neighbours are modules of the package `bench`, below the root of the checkout.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.measure import Facts, machine
from bench.workload import LANES, STORES, TOOLS


def main(arguments: list[str] | None = None) -> None:
    """Run one measurement and print its results as they come."""
    given = _options().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=given.folder) as folder:
        about = machine(folder)
        for result in _results(given, folder):
            show({**result, **about}, given.output)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=("w1",))
    parser.add_argument("--lane", choices=LANES, default="inline", help="where the tool runs")
    parser.add_argument("--tool", choices=TOOLS, default="read", help="quick read, or keyed write")
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--runs", type=int, help="runs at once")
    parser.add_argument("--steps", type=int, help="tool steps a run")
    parser.add_argument("--repeat", type=int, default=3, help="fresh measurements; the median is shown")
    parser.add_argument(
        "--growth", action="store_true", help="w1: a long run's cost a step against a short one's"
    )
    parser.add_argument("--folder", help="where store files go; its disk is what is measured")
    parser.add_argument("-o", dest="output", choices=("json", "table"), default="table")
    return parser


def _results(given: argparse.Namespace, folder: str) -> Iterator[Facts]:
    if given.workload == "w1":
        from bench import steps

        if given.growth:
            yield steps.growth(
                folder,
                lane=given.lane,
                kind=given.tool,
                store=given.store,
                repeat=given.repeat,
                long=given.steps or steps.GROWTH_LONG,
            )
        else:
            yield steps.steps_per_second(
                folder,
                lane=given.lane,
                kind=given.tool,
                runs=given.runs or 1,
                steps=given.steps or 1_000,
                store=given.store,
                repeat=given.repeat,
            )


def show(result: Facts, output: str) -> None:
    """A JSON line, or a line a figure."""
    if output == "json":
        print(json.dumps(result), flush=True)
        return
    width = max(map(len, result))
    for name, value in result.items():
        print(f"{name:<{width}}  {value if isinstance(value, str) else json.dumps(value)}")
    print(flush=True)


if __name__ == "__main__":
    main()
