"""Build the source distribution, install from it into an empty environment, and use it there: `try_package.py WORK`.

What is missing from the lists in pyproject.toml shows here: the checkout itself is never on the path.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVERY_MODULE = (
    "import boundloop, importlib, pkgutil\n"
    "for found in pkgutil.walk_packages(boundloop.__path__, 'boundloop.'):\n"
    "    found.name.endswith('__main__') or importlib.import_module(found.name)\n"
)


def run(*command: str | Path, cwd: Path) -> None:
    subprocess.run([str(part) for part in command], cwd=cwd, check=True, timeout=300)


def environment(folder: Path, *install: str | Path, cwd: Path) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", *install, cwd=cwd)
    return python


def main(work: Path) -> None:
    copy, empty = work / "copy", work / "empty"
    empty.mkdir(parents=True)
    run(sys.executable, ROOT / ".ci/copy_tree.py", ROOT, copy, cwd=empty)
    builder = environment(work / "builder", "hatchling>=1.27", cwd=empty)
    run(builder, "-m", "hatchling", "build", "-t", "sdist", "-d", work / "dist", cwd=copy)
    [archive] = (work / "dist").glob("*.tar.gz")
    user = environment(work / "user", archive, "-c", ROOT / "constraints.txt", cwd=empty)
    run(user, "-c", EVERY_MODULE, cwd=empty)
    run(user.parent / "boundloop", "--version", cwd=empty)
    run(user, ROOT / "examples/smallest.py", cwd=empty)
    run(user, "-m", "boundloop", "verify", "--store", "sqlite:///runs.db", cwd=empty)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
