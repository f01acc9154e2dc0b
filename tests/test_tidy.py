"""House rules as tests: the lists that must agree with each other, and what the text of the tree may not hold.

A rule is a function from one file to its faults. Each stands in PLANTED with a text that it must catch and one that
it must let pass, so that no rule can go blind unnoticed.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import boundloop

ROOT = Path(__file__).resolve().parent.parent
NOT_PACKAGED = {"tests", "bench", "docs", "examples", "src"}
TEXT_ROOT_FILES = (".gitignore", ".pre-commit-config.yaml", "Makefile", "constraints.txt", "pyproject.toml")


def packages() -> set[str]:
    """Top-level folders with Python files that belong to the distribution."""
    return {
        entry.name
        for entry in ROOT.iterdir()
        if entry.is_dir()
        and entry.name not in NOT_PACKAGED
        and not entry.name.startswith(".")
        and any(entry.glob("*.py"))
    }


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def tree() -> list[Path]:
    """Every text file of the project, by its real path, relative to the root. Untracked ones count too."""
    found = [Path(name) for name in TEXT_ROOT_FILES if (ROOT / name).is_file()]
    found += [path.relative_to(ROOT) for path in ROOT.glob("*.md")]
    for folder in sorted(packages() | NOT_PACKAGED | {".ci"}):
        for parent, folders, names in os.walk(ROOT / folder):  # os.walk leaves links to folders alone
            folders[:] = [name for name in folders if name != "__pycache__"]
            found += [(Path(parent) / name).relative_to(ROOT) for name in names if not name.endswith(".pyc")]
    return found


def in_package(path: Path) -> bool:
    return path.parts[0] in packages()


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


# Lists that must agree ----------------------------------------------------------------------------------------------


def test_each_package_has_its_link() -> None:
    links = {path.name: os.readlink(path) for path in (ROOT / "src/boundloop").iterdir() if path.is_symlink()}
    assert links == {name: f"../../{name}" for name in packages()}


def test_wheel_takes_each_package() -> None:
    included = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {name: f"boundloop/{name}" for name in packages()}


def test_wheel_takes_each_file_of_the_package_itself() -> None:
    wheel = project()["tool"]["hatch"]["build"]["targets"]["wheel"]
    files = {f"src/boundloop/{path.name}" for path in (ROOT / "src/boundloop").iterdir() if path.is_file()}
    assert set(wheel["only-include"]) == files
    assert wheel["sources"] == ["src"]


def test_sdist_takes_what_the_wheel_takes_and_texts() -> None:
    targets = project()["tool"]["hatch"]["build"]["targets"]
    included = set(targets["sdist"]["only-include"])
    assert included == packages() | set(targets["wheel"]["only-include"]) | {
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
    }


def test_type_checkers_walk_each_package_and_what_uses_it() -> None:
    users = {name for name in ("tests", "bench", "examples") if any((ROOT / name).rglob("*.py"))}
    assert {f"src/boundloop/{name}" for name in packages()} | {"src/boundloop"} | users <= set(
        project()["tool"]["pyright"]["include"]
    )
    assert users | {"src"} <= set(project()["tool"]["mypy"]["files"])


def test_import_contract_places_each_package() -> None:
    contracts = project()["tool"]["importlinter"]["contracts"]
    layers = next(contract for contract in contracts if contract["type"] == "layers")
    assert layers["exhaustive"] is True
    assert sorted(re.findall(r"\w+", " ".join(layers["layers"]))) == sorted(packages())


def test_root_names_are_banned_as_imports() -> None:
    banned = project()["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(banned) == packages()


def test_version_is_stated_once() -> None:
    assert project()["project"]["version"] == boundloop.__version__


def test_constraints_are_exact_and_cover_what_the_project_asks_for() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert [
        pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*( ; .+)?", pin)
    ] == []
    pinned = {normal(pin.partition("==")[0]) for pin in pins}
    asked = project()["project"]
    wanted = asked["dependencies"] + [
        entry for group in asked["optional-dependencies"].values() for entry in group
    ]
    names = {normal(re.split(r"[\[<>=!~; ]", entry, maxsplit=1)[0]) for entry in wanted}
    assert names - pinned - {"boundloop"} == set()


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_test_files_have_names_of_their_own() -> None:
    names = Counter(path.name for path in tree() if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


# Rules for one file -------------------------------------------------------------------------------------------------

Rule = Callable[[Path, str], Iterator[str]]


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """Of the syntax tree of a file, which several rules walk."""
    return tuple(ast.walk(ast.parse(text)))


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """So many objects would slow down whatever runs in this process later."""
    yield
    nodes.cache_clear()


def files_named_by_kind(path: Path, text: str) -> Iterator[str]:
    if path.stem.strip("_") in {"common", "helper", "helpers", "misc", "models", "util", "utils"}:
        yield "named by kind, not by subject"


def sleeps_in_tests(path: Path, text: str) -> Iterator[str]:
    if path.parts[0] != "tests" or path.suffix != ".py":
        return
    for node in nodes(text):
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "asyncio"}:
            if any(name.name == "sleep" for name in node.names):
                yield f"line {node.lineno}: import the module, so that a sleep is seen"
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep"
        ):
            owner = node.func.value
            yields_only = (
                len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            )
            if isinstance(owner, ast.Name) and (
                owner.id == "time" or (owner.id in {"asyncio", "anyio", "trio"} and not yields_only)
            ):
                yield f"line {node.lineno}: a sleep; wait on a signal or move the clock"


def imported(text: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each absolute import, wherever it stands in the file."""
    for node in nodes(text):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name


def absolute_imports_inside(path: Path, text: str) -> Iterator[str]:
    if not in_package(path) or path.suffix != ".py":
        return
    for line, name in imported(text):
        if name.partition(".")[0] in {"boundloop", *packages()}:
            yield f"line {line}: imports {name}; inside the package imports are relative"


def ray_outside_its_files(path: Path, text: str) -> Iterator[str]:
    allowed = path.parts[0] == "actors" and path.name.startswith("ray_")
    if not in_package(path) or allowed or path.suffix != ".py":
        return
    for line, name in imported(text):
        if name.partition(".")[0] == "ray":
            yield f"line {line}: only actors/ray_*.py import Ray"


IGNORE = re.compile(
    r"#\s*(?:type|pyright):\s*ignore(\[[\w\-, ]+\])?(.*)|#\s*noqa(:\s*[A-Z]+\d+[A-Z\d, ]*)?(.*)"
)


def ignores_without_reason(path: Path, text: str) -> Iterator[str]:
    if path.suffix != ".py":
        return
    for line, comment in comments(text):
        found = IGNORE.search(comment)
        if found and not ((found[1] or found[3]) and re.search(r"\w\W+\w", found[2] or found[4] or "")):
            yield f"line {line}: name the rule that is ignored, and after it the reason"


def unfinished_marks(path: Path, text: str) -> Iterator[str]:
    for mark in ("TO" + "DO", "FIX" + "ME", "XX" + "X"):
        if re.search(rf"\b{mark}\b", text):
            yield f"holds {mark}"


def floats_where_things_are_counted(path: Path, text: str) -> Iterator[str]:
    if path.suffix != ".py":
        return
    for node in nodes(text):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=note):
                pass
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=note):
                pass
            case ast.arg(arg=name, annotation=ast.expr() as note):
                pass
            case (
                ast.FunctionDef(name=name, returns=ast.expr() as note)
                | ast.AsyncFunctionDef(name=name, returns=ast.expr() as note)
            ):
                pass
            case _:
                continue
        counted = re.search(r"_(micros|tokens|bytes)(_max|_min)?$", name)
        if counted and any(isinstance(part, ast.Name) and part.id == "float" for part in ast.walk(note)):
            yield f"line {node.lineno}: {name} is counted, so it is an int"


MACHINE = re.compile(
    r"(?<![\w.~-])/(?:work|root|opt|home/\w+|Users/\w+)/"
    r"|pypi" + r"\.org|pythonhosted" + r"\.org|npmjs" + r"\.(?:org|com)"
)


def traces_of_one_machine(path: Path, text: str) -> Iterator[str]:
    for found in MACHINE.finditer(text):
        yield f"holds {found[0]}"


def siblings_of_the_checkout(path: Path, text: str) -> Iterator[str]:
    if path != Path(".ci/run") and "../" + "shared" in text:
        yield "names a folder beside the checkout; .ci/run alone may, and passes it on in the environment"


PLANTED: list[tuple[Rule, str, str, str, str]] = [
    (files_named_by_kind, "runtime/_utils.py", "", "runtime/limits.py", ""),
    (sleeps_in_tests, "tests/test_a.py", "time.sleep(1)", "tests/test_a.py", "await asyncio.sleep(0)"),
    (sleeps_in_tests, "tests/test_a.py", "await asyncio.sleep(n)", "actors/a.py", "await asyncio.sleep(n)"),
    (
        sleeps_in_tests,
        "tests/test_a.py",
        "from time import sleep",
        "tests/test_a.py",
        "from time import time",
    ),
    (
        absolute_imports_inside,
        "actors/a.py",
        "import boundloop.runtime",
        "tests/test_a.py",
        "import boundloop.runtime",
    ),
    (
        absolute_imports_inside,
        "actors/a.py",
        "from runtime.ids import x",
        "actors/a.py",
        "from ..runtime.ids import x",
    ),
    (
        ray_outside_its_files,
        "actors/driver.py",
        "def f():\n import ray.util",
        "actors/ray_run.py",
        "import ray",
    ),
    (
        ignores_without_reason,
        "a.py",
        "x = 1  # type: ignore[misc]",
        "a.py",
        "x = 1  # type: ignore[misc]  # the why of it",
    ),
    (
        ignores_without_reason,
        "a.py",
        "x = 1  # pyright: ignore  # no rule is named",
        "a.py",
        "x = '# type: ignore'",
    ),
    (ignores_without_reason, "a.py", "x = 1  # noqa: E501", "a.py", "x = 1  # noqa: E501  a golden vector"),
    (unfinished_marks, "a.md", "TO" + "DO later", "a.md", "TO" + "DOs"),
    (floats_where_things_are_counted, "a.py", "cost_micros: float = 0", "a.py", "cost_micros: int = 0"),
    (
        floats_where_things_are_counted,
        "a.py",
        "def f(left_tokens: float | None): 0",
        "a.py",
        "def f(seconds: float): 0",
    ),
    (traces_of_one_machine, "a.md", "see /ro" + "ot/x", "a.md", "see net/work/x and ~/work/x"),
    (traces_of_one_machine, "a.txt", "https://py" + "pi.org/simple", "a.txt", "pip install boundloop"),
    (siblings_of_the_checkout, "a.md", "in ../sha" + "red/x", ".ci/run", "in ../sha" + "red/x"),
]


@pytest.mark.parametrize(("rule", "bad", "bad_text", "good", "good_text"), PLANTED)
def test_rule_sees_what_is_planted(rule: Rule, bad: str, bad_text: str, good: str, good_text: str) -> None:
    if bad_text.startswith("await"):
        bad_text = f"async def f():\n {bad_text}"
    if good_text.startswith("await"):
        good_text = f"async def f():\n {good_text}"
    assert list(rule(Path(bad), bad_text))
    assert not list(rule(Path(good), good_text))


@pytest.mark.parametrize("rule", dict.fromkeys(row[0] for row in PLANTED), ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    faults: list[str] = []
    for path in tree():
        try:
            text = (ROOT / path).read_text("utf-8")
        except UnicodeDecodeError:
            continue  # a binary sample has no text to judge
        faults += [f"{path}: {fault}" for fault in rule(path, text)]
    assert not faults, "\n".join(faults)


# What README states for CI -------------------------------------------------------------------------------------------

README = "text\n<!-- ci:test -->\n```sh\npython3 -m pytest\n```\n\n```sh\nother\n```\n"


def readme_command(folder: Path, text: str, *name: str) -> subprocess.CompletedProcess[str]:
    (folder / "README.md").write_text(text)
    command = [sys.executable, str(ROOT / ".ci/readme_commands.py"), str(folder / "README.md"), *name]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_readme_command_is_the_block_below_its_mark(tmp_path: Path) -> None:
    assert readme_command(tmp_path, README, "test").stdout.strip() == "python3 -m pytest"


@pytest.mark.parametrize(
    "text",
    [
        README.replace("ci:test", "ci:demo"),
        README * 2,
        README.replace("-->\n", "-->\n\n"),
        README.replace("python3 -m pytest\n", ""),
    ],
    ids=["no mark", "two marks", "mark apart from its block", "empty block"],
)
def test_readme_without_exactly_one_command_is_an_error(tmp_path: Path, text: str) -> None:
    done = readme_command(tmp_path, text, "test")
    assert (done.returncode, done.stdout) == (1, "")
    assert "ci:test" in done.stderr


def test_readme_commands_are_listed_in_order(tmp_path: Path) -> None:
    done = readme_command(tmp_path, README.replace("ci:test", "ci:demo") + README)
    assert done.stdout.split() == ["demo", "test"]


def test_readme_without_a_test_command_is_an_error(tmp_path: Path) -> None:
    assert readme_command(tmp_path, README.replace("ci:test", "ci:demo")).returncode == 1
