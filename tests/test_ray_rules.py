"""What the code that speaks to Ray may not hold, whatever else it does: rules that a test of behaviour could miss."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

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


def blocking_in_a_coroutine(tree: ast.Module) -> Iterator[str]:
    """``ray.get`` and ``ray.wait`` stop the whole loop, and wait for ever if what they wait for is on it. What stands in
    a nested plain function runs elsewhere."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.Lambda):
                continue
            if called(child) in ("ray.get", "ray.wait"):
                yield f"line {getattr(child, 'lineno', 0)}: {called(child)} in a coroutine"
            yield from walk(child)

    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef):
            yield from walk(node)


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


PLANTED: list[tuple[Rule, str, str]] = [
    (blocking_in_a_coroutine, "async def f():\n x = ray.get(y)", "async def f():\n go(lambda: ray.get(y))"),
    (blocking_in_a_coroutine, "async def f():\n if a:\n  ray.wait([y])", "def f():\n ray.get(y)"),
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
