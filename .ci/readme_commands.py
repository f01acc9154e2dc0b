"""Print the shell commands that README.md states for CI: `readme_commands.py README.md NAME`.

A command is the fenced block on the line directly below `<!-- ci:NAME -->`. CI runs what the reader is told to run, so
the two can't diverge. Exit 1 and the reason on stderr if there is not exactly one such block.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

BLOCK = r"^<!-- ci:{name} -->\n```\w*\n(?P<command>.*?)^```$"


def command(text: str, name: str) -> str:
    marks = len(re.findall(rf"^<!-- ci:{re.escape(name)} -->", text, re.MULTILINE))
    blocks = re.findall(BLOCK.format(name=re.escape(name)), text, re.MULTILINE | re.DOTALL)
    if marks != 1 or len(blocks) != 1 or not blocks[0].strip():
        raise SystemExit(
            f"README: wanted one fenced command directly below <!-- ci:{name} -->, marks found: {marks}"
        )
    return str(blocks[0])


if __name__ == "__main__":
    print(command(Path(sys.argv[1]).read_text("utf-8"), sys.argv[2]), end="")
