"""The shell commands that README.md states for CI.

`readme_commands.py README.md` prints their names, one a line, in the order in which they stand;
`readme_commands.py README.md NAME` prints one command: the fenced block on the line directly below `<!-- ci:NAME -->`.
CI runs what the reader is told to run, so the two can't diverge. Exit 1 with the reason on stderr if README has no
command `test`, or not exactly one block for a name.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MARK = re.compile(r"^<!-- ci:([a-z-]+) -->", re.MULTILINE)
BLOCK = r"^<!-- ci:{name} -->\n```\w*\n(.*?)^```$"


def names(text: str) -> list[str]:
    found = MARK.findall(text)
    if "test" not in found:
        raise SystemExit("README: no fenced command below <!-- ci:test -->")
    return list(dict.fromkeys(found))


def command(text: str, name: str) -> str:
    marks = MARK.findall(text).count(name)
    blocks = re.findall(BLOCK.format(name=re.escape(name)), text, re.MULTILINE | re.DOTALL)
    if marks != 1 or len(blocks) != 1 or not blocks[0].strip():
        raise SystemExit(
            f"README: wanted one fenced command directly below <!-- ci:{name} -->, marks found: {marks}"
        )
    return str(blocks[0])


if __name__ == "__main__":
    readme = Path(sys.argv[1])
    if not readme.is_file():
        raise SystemExit(f"{readme}: no such file")
    content = readme.read_text("utf-8")
    print(command(content, sys.argv[2]) if sys.argv[2:] else "\n".join(names(content)))
