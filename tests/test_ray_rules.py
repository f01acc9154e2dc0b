"""What the code that speaks to Ray may not hold, whatever else it does: rules that a test of behaviour could miss."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "actors").glob("ray_*.py"))

Rule = Callable[[ast.Module], Iterator[str]]


def called(node: ast.AST) -> str:
    """``ray.get`` for a call of that, as it is written; empty for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        return f"{owner.id}.{node.func.attr}" if isinstance(owner, ast.Name) else f".{node.func.attr}"
    return ""


BLOCKING: Final = ("get", "wait", "get_actor", "init", "kill", "nodes", "shutdown")
"""Ray's functions that wait for another process."""


def blocking_in_a_coroutine(tree: ast.Module) -> Iterator[str]:
    """Each of these stops the whole loop, and waits for ever if what it waits for is on it. What stands in a nested plain
    function runs elsewhere, unless the coroutine calls it by its name."""
    plain = {it.name: it for it in ast.walk(tree) if isinstance(it, ast.FunctionDef)}
    rays = {"ray"} | {name for name, function in plain.items() if _gives_ray(function)} | imported(tree)

    def is_ray(value: ast.expr, known: set[str]) -> bool:
        while isinstance(value, ast.Attribute):
            value = value.value
        if isinstance(value, ast.Call):
            value = value.func
        return isinstance(value, ast.Name) and value.id in known

    def blocks(call: ast.Call, known: set[str]) -> bool:
        function = call.func
        if isinstance(function, ast.Name):
            return function.id in known & set(BLOCKING)
        return (
            isinstance(function, ast.Attribute)
            and function.attr in BLOCKING
            and is_ray(function.value, known)
        )

    def known_in(function: ast.AST) -> set[str]:
        """With the local names that Ray was given."""
        known = set(rays)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and is_ray(node.value, known):
                known |= {it.id for it in node.targets if isinstance(it, ast.Name)}
        return known

    def calls(function: ast.AST) -> Iterator[ast.Call]:
        for child in ast.iter_child_nodes(function):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if isinstance(child, ast.Call):
                yield child
            yield from calls(child)

    waiting: set[str] = set()
    for _ in plain:  # each pass finds callers of what the last one found
        waiting |= {
            name
            for name, function in plain.items()
            if any(blocks(it, known_in(function)) or called_here(it) in waiting for it in calls(function))
        }
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef):
            known = known_in(node)
            for call in calls(node):
                if blocks(call, known) or called_here(call) in waiting:
                    yield f"line {call.lineno}: {ast.unparse(call.func)} in a coroutine"


def called_here(call: ast.Call) -> str:
    """The name of a function or method of the same module; empty for anything else."""
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.attr if function.value.id in ("self", "cls") else ""
    return function.id if isinstance(function, ast.Name) else ""


def imported(tree: ast.Module) -> set[str]:
    """What comes from Ray by a name of its own, and what gives Ray from another module of ours."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module == "ray" or alias.name in ("untyped_ray", "_ray")
    } | {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "ray" and alias.asname
    }


def _gives_ray(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(it, ast.Return) and isinstance(it.value, ast.Name) and it.value.id == "ray"
        for it in ast.walk(function)
    )


def options(tree: ast.Module) -> Iterator[tuple[int, str, ast.expr]]:
    """(line, name, value) of each keyword argument, and of each entry of a dictionary with constant keys."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg is not None:
                    yield node.lineno, keyword.arg, keyword.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield node.lineno, key.value, value


def what_ray_would_repeat(tree: ast.Module) -> Iterator[str]:
    """A restart by Ray begins an actor anew without its log's knowledge, and a retry makes a call twice."""
    for line, name, value in options(tree):
        if name in ("max_restarts", "max_task_retries", "max_retries") and not _is(value, 0):
            yield f"line {line}: {name} is not 0"
        if name == "retry_exceptions" and not _is(value, False):
            yield f"line {line}: retry_exceptions"


def what_outlives_its_owner(tree: ast.Module) -> Iterator[str]:
    """A detached actor stays when its owner is gone, and nobody ends it."""
    for line, name, value in options(tree):
        if name == "lifetime" and not _is(value, None):
            yield f"line {line}: lifetime is given"


def environments_made_at_run_time(tree: ast.Module) -> Iterator[str]:
    """A runtime environment can take minutes or fail, and installs what nobody looked at."""
    for line, name, _ in options(tree):
        if name == "runtime_env":
            yield f"line {line}: runtime_env"


def references_that_are_kept(tree: ast.Module) -> Iterator[str]:
    """An ``ObjectRef`` dies with its owner: what is kept is bytes."""
    for node in ast.walk(tree):
        if called(node) in ("pickle.dumps", "cloudpickle.dumps") and "ref" in ast.unparse(node).lower():
            yield f"line {getattr(node, 'lineno', 0)}: a reference is pickled"


def _is(value: ast.expr, wanted: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is wanted


OURS: Final = "def _ray():\n import ray\n return ray\n"

PLANTED: list[tuple[Rule, str, str]] = [
    (blocking_in_a_coroutine, "async def f():\n x = ray.get(y)", "async def f():\n go(lambda: ray.get(y))"),
    (blocking_in_a_coroutine, "async def f():\n if a:\n  ray.wait([y])", "def f():\n ray.get(y)"),
    (
        blocking_in_a_coroutine,
        f"{OURS}async def f():\n x = _ray().get(y)",
        f"{OURS}async def f():\n x = await thread(_ray().get, y)",
    ),
    (
        blocking_in_a_coroutine,
        "from .a import untyped_ray\nasync def f():\n untyped_ray().wait([y])",
        "from .a import untyped_ray\nasync def f():\n untyped_ray().put(y)",
    ),
    (
        blocking_in_a_coroutine,
        "async def f():\n ray.get_actor(name)",
        "async def f():\n handle.get_actor(name)",
    ),
    (
        blocking_in_a_coroutine,
        f"{OURS}async def f():\n r = _ray()\n r.get(y)",
        "async def f():\n r = {}\n r.get(y)",
    ),
    (blocking_in_a_coroutine, "from ray import get\nasync def f():\n get(y)", "async def f():\n get(y)"),
    (blocking_in_a_coroutine, "import ray as r\nasync def f():\n r.get(y)", "async def f():\n r.get(y)"),
    (
        blocking_in_a_coroutine,
        "def g():\n return ray.get_actor(n)\nasync def f():\n g()",
        "def g():\n return ray.get_actor(n)\nasync def f():\n await thread(g)",
    ),
    (
        blocking_in_a_coroutine,
        "class A:\n def g(self):\n  self.h()\n def h(self):\n  ray.get(y)\n async def f(self):\n  self.g()",
        "class A:\n def h(self):\n  ray.get(y)\n async def f(self):\n  await thread(self.h)",
    ),
    (what_ray_would_repeat, "A.options(max_task_retries=1)", "A.options(max_task_retries=0)"),
    (what_ray_would_repeat, "O = {'max_restarts': -1}", "O = {'max_restarts': 0}"),
    (what_ray_would_repeat, "A.options(retry_exceptions=True)", "A.options(retry_exceptions=False)"),
    (what_outlives_its_owner, "A.options(lifetime='detached')", "A.options(name='a')"),
    (environments_made_at_run_time, "ray.init(runtime_env={})", "ray.init()"),
    (references_that_are_kept, "pickle.dumps(self._ref)", "pickle.dumps(answer)"),
]


@pytest.mark.parametrize(("rule", "bad", "good"), PLANTED)
def test_rule_sees_what_is_planted(rule: Rule, bad: str, good: str) -> None:
    assert list(rule(ast.parse(bad)))
    assert not list(rule(ast.parse(good)))


@pytest.mark.parametrize("rule", dict.fromkeys(row[0] for row in PLANTED), ids=lambda rule: rule.__name__)
def test_what_speaks_to_ray_keeps_the_rule(rule: Rule) -> None:
    assert FILES
    faults = [f"{path.name}: {fault}" for path in FILES for fault in rule(ast.parse(path.read_text("utf-8")))]
    assert not faults, "\n".join(faults)
