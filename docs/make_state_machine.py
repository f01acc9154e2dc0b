"""Write ``docs/state-machine.md`` and ``docs/stops.md`` from the tables: ``python docs/make_state_machine.py``."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from boundloop.runtime.diagram import state_machine_document
from boundloop.runtime.stop_document import stops_document

TARGETS = {"state-machine.md": state_machine_document, "stops.md": stops_document}

if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    for name, document in TARGETS.items():
        target = Path(__file__).with_name(name)
        target.write_text(document())
        print(f"wrote {target}")
