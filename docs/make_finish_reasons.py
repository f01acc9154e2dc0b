"""Write ``docs/finish-reasons.md`` from the tables: ``python docs/make_finish_reasons.py``."""

from __future__ import annotations

from pathlib import Path

from boundloop.adapters.finish_document import finish_document

TARGET = Path(__file__).with_name("finish-reasons.md")

if __name__ == "__main__":
    TARGET.write_text(finish_document())
    print(f"wrote {TARGET}")
