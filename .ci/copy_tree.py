"""Copy the project without what a developer's machine left in it: `copy_tree.py FROM TO`. Links stay links."""

from __future__ import annotations

import shutil
import sys

LEFT_OUT = (
    ".git",
    ".venv",
    "venv",
    "build",
    "dist",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
    "*.db*",
    "htmlcov",
)

if __name__ == "__main__":
    shutil.copytree(sys.argv[1], sys.argv[2], symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
