"""The commands that copy a store."""

from __future__ import annotations

from pathlib import Path

from tests.command_line import CommandLine
from tests.test_export import fill


def test_the_commands_say_what_they_copied(cli: CommandLine, tmp_path: Path) -> None:
    cli.build(fill)
    file, other = str(tmp_path / "a.export"), f"sqlite:///{tmp_path}/other.db"
    done = cli("store", "export", file)
    assert done.code == 0, done
    assert done.out.splitlines()[0].startswith("10 runs, ")
    assert (tmp_path / "a.export").stat().st_mode & 0o777 == 0o600
    again = cli("store", "export", file)
    assert (again.code, "file_exists" in again.err) == (2, True)
    taken = cli("store", "import", file, "--store", other)
    assert taken.out.splitlines()[1] == done.out.splitlines()[1]
    assert "were there already" in cli("store", "import", file, "--store", other).out
    (tmp_path / "cut").write_bytes(Path(file).read_bytes()[:-1])
    refused = cli("store", "import", str(tmp_path / "cut"), "--store", f"sqlite:///{tmp_path}/third.db")
    assert (refused.code, "cut off" in refused.err) == (5, True)
    assert not (tmp_path / "third.db").exists()
    assert cli("store", "check", "--store", other).code == cli("store", "check").code
