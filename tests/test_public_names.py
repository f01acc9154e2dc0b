"""The names that packages give on first use: a type checker sees each of them, and no other."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ("runtime", "actors", "adapters")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: str) -> None:
    module = import_module(f"boundloop.{package}")
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    with pytest.raises(AttributeError):
        _ = module.Nonsense


def test_a_wrong_import_is_seen_by_a_type_checker(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "".join(f"from boundloop.{package} import Nonsense{n}\n" for n, package in enumerate(PACKAGES))
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    for n, package in enumerate(PACKAGES):
        assert f'Module "boundloop.{package}" has no attribute "Nonsense{n}"' in done.stdout, done.stdout
