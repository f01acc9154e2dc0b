"""Write ``docs/state-machine.md`` from the tables: ``python docs/make_state_machine.py``."""

from __future__ import annotations

from pathlib import Path

from boundloop.runtime.diagram import state_machine_document

TARGET = Path(__file__).with_name("state-machine.md")

if __name__ == "__main__":
    TARGET.write_text(state_machine_document())
    print(f"wrote {TARGET}")
