"""Scenario files: a script, what people do, and the whole narrative of what must happen.

A file of ``tests/scenarios`` is a list of blocks, separated by empty lines: a command, perhaps a body, ``----`` and the
expected output. Lines that begin with ``#`` are for the reader. ``python tests/test_scenarios.py --rewrite [NAME…]``
writes what happens now; commit such a difference only if you understand each line of it.

Commands (``run=NAME`` where there are several; the first is ``r1``):

    model                  one turn a line, as in a script file; before the first start
    guard WORD PLACE…      deny what holds "secret" in this place (call, result, answer), fail or none: before the first start
    policy WORD TOOL…      deny, deny_terminal, ask, fail or none for these tools
    shop MODE…             how the far side treats the next submissions
    shop_note TEXT         text that search results carry from now on
    start INPUT [k=v…]     operation=, goal=TOOL,TOOL, tools=TOOL,TOOL, hosted=NAME,NAME, on_stop=, and any limit;
                           cite=SOURCE for what the answer must cite, as [source:ID];
                           stages=NAME:TOOL,TOOL>TOOL/NAME:TOOL (behind > what leaves the stage)
    advance MS             let time pass
    open GATE              let a held answer of the model go
    approve | reject       the open approval, as by=PERSON; approval=ID for another one
    cancel | resume | close_run
    raise_limits k=v…
    resolve CALL applied|absent [JSON]
    effects                what the far side counted
"""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.scenario_narrative import line
from tests.scenario_shop import MODES, Shop
from tests.stepped_loop import SteppedLoop

from boundloop.actors.client import Runtime
from boundloop.adapters.script import read_script
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.history import load_run, read_records
from boundloop.eventstore.inbox import gather_inbox
from boundloop.eventstore.memory import MemoryStore
from boundloop.runtime import events as e
from boundloop.runtime.errors import BoundloopError
from boundloop.runtime.goal import Goal
from boundloop.runtime.guardrails import GuardrailDecision, GuardrailQuestion, Guardrails
from boundloop.runtime.invariants import check_state
from boundloop.runtime.limits import Limits
from boundloop.runtime.policy import Policy, PolicyDecision, PolicyQuestion, default_rules
from boundloop.runtime.stage_spec import Stage

FOLDER: Final = Path(__file__).resolve().parent / "scenarios"
START_MS: Final = 1_700_000_000_000
STUCK_S: Final = 60.0
T = TypeVar("T")
ARGUMENT = re.compile(r"([a-z_]+)=(.*)", re.DOTALL)


class Block(NamedTuple):
    """One command of a file."""

    comment: str
    command: str
    body: tuple[str, ...]
    expected: str


def read_blocks(text: str) -> Iterator[Block]:
    """The blocks of a file. Raises ``ValueError`` for one without its separator."""
    for part in re.split(r"\n{2,}", text.strip()):
        lines = part.splitlines()
        comment = [row for row in lines if row.startswith("#")]
        rest = [row for row in lines if not row.startswith("#")]
        if not rest:
            yield Block("\n".join(comment), "", (), "")
            continue
        if "----" not in rest:
            raise ValueError(f"no ---- below {rest[0]!r}")
        cut = rest.index("----")
        yield Block("\n".join(comment), rest[0], tuple(rest[1:cut]), "\n".join(rest[cut + 1 :]))


def write_blocks(blocks: list[Block]) -> str:
    """The text of a file."""
    parts: list[str] = []
    for block in blocks:
        rows = [block.comment] if block.comment else []
        if block.command:
            rows += [block.command, *block.body, "----"]
        if block.expected:
            rows.append(block.expected)
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


class World:
    """One scenario under way: the real runtime over a memory store, on a loop whose time is set."""

    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.shop = Shop()
        self.store = MemoryStore(clock=lambda: START_MS + self.loop.now_ms)
        self.rules: dict[str, str] = {}
        self.questions = False
        self.guards: dict[str, str] = {}
        self.model: ScriptedModel | None = None
        self.runtime: Runtime | None = None
        self.shown: dict[str, int] = {}

    def play(self, block: Block) -> str:
        """Do one command; what it says, then what happened in each run since the last command."""
        words = shlex.split(block.command)
        if not words:
            return ""
        command: Callable[..., str] = getattr(self, f"do_{words[0]}")
        options: dict[str, str] = {}
        plain: list[str] = []
        for word in words[1:]:
            found = ARGUMENT.fullmatch(word)
            if found:
                options[found[1]] = found[2]
            else:
                plain.append(word)
        if block.body:
            plain.append("\n".join(block.body))
        try:
            said = command(*plain, **options) or ""
        except BoundloopError as error:
            said = f"refused: {error.code}"
        return "\n".join(part for part in (said, *self.news()) if part)

    def news(self) -> list[str]:
        """For each run the events that weren't shown yet, and how it stands after them."""
        if self.runtime is None:
            return []
        self.on_loop(self.loop.settle())
        return [self.on_loop(self.news_of(run_id)) for run_id in self.shown]

    async def news_of(self, run_id: str) -> str:
        """What is new of one run."""
        records = await read_records(self.store, run_id)
        fresh = records[self.shown[run_id] :]
        if not fresh:
            return ""
        self.shown[run_id] = len(records)
        row = await self.store.run(run_id)
        assert row is not None
        stands = f"=> {run_id} {row.index.status}"
        if row.index.outcome:
            stands += f" {row.index.outcome}/{row.index.reason}"
        if row.index.waiting_for:
            stands += f", waits for {re.sub('key:.*', 'a key', row.index.waiting_for)}"
        return "\n".join(
            [*(line(record.seq, record.at_ms, record.event, records[0].at_ms) for record in fresh), stands]
        )

    def close(self) -> None:
        """End the runtime. By then each run's log folds to a lawful state and pairs its calls with their results."""
        if self.runtime is None:
            self.loop.close()
            return
        histories = [self.on_loop(load_run(self.store, run_id)) for run_id in self.shown]
        self.runtime.close()
        for state, records in histories:
            check_state(state)
            check_pairs([record.event for record in records])

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the runtime's loop; nothing there waits for real time."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(STUCK_S)

    @property
    def rt(self) -> Runtime:
        if self.runtime is None:
            assert self.model is not None
            self.runtime = Runtime(
                store=self.store,
                model=self.model,
                tools=self.shop.tools(),
                policy=Policy(self.decide, revision="scenario-1", guardrails=self.guardrails()),
                principal="ann",
                loop=self.loop,
                questions=self.questions,
            )
        return self.runtime

    # --- commands --------------------------------------------------------------------------------------------------

    def do_model(self, turns: str) -> None:
        script = read_script(b'{"turns":[' + ",".join(turns.splitlines()).encode() + b"]}")
        self.model = ScriptedModel.from_script(script)

    def do_guard(self, word: str, *places: str) -> None:
        self.guards |= dict.fromkeys(places, word)

    def guardrails(self) -> Guardrails | None:
        """The scenario's guardrails, which look for one word."""

        def judge(question: GuardrailQuestion) -> GuardrailDecision | None:
            match self.guards[question.place]:
                case "none":
                    return None
                case "fail":
                    raise RuntimeError("the judging service is down")
                case _:
                    seen = f"{question.arguments} {question.result} {question.text}"
                    leaks = "secret" in seen
                    return GuardrailDecision(
                        answer="deny" if leaks else "allow", code="leak" if leaks else ""
                    )

        if not self.guards:
            return None
        at = dict.fromkeys(self.guards, judge)
        return Guardrails(
            revision="g1", call=at.get("call"), result=at.get("result"), answer=at.get("answer")
        )

    def do_policy(self, word: str, *tools: str) -> None:
        self.rules |= dict.fromkeys(tools, word)

    def do_questions(self) -> None:
        self.questions = True

    def do_shop(self, *modes: str) -> None:
        assert set(modes) <= set(MODES)
        self.shop.modes.extend(modes)

    def do_shop_note(self, text: str) -> None:
        self.shop.note = text

    def do_start(
        self,
        text: str,
        *,
        run: str = "r1",
        operation: str = "",
        goal: str = "",
        tools: str = "",
        hosted: str = "",
        stages: str = "",
        cite: str = "",
        on_stop: str = "suspend",
        **limits: str,
    ) -> None:
        self.shown[run] = 0
        self.rt.start(
            text,
            limits=Limits(cost="1", **{name: int(value) for name, value in limits.items()}),
            goal=Goal.of(*goal.split(",") if goal else (), citations=cite or None) if goal or cite else None,
            tools=tools.split(",") if tools else None,
            hosted=hosted.split(",") if hosted else (),
            stages=[stage_from(part) for part in stages.split("/")] if stages else None,
            operation_id=operation or f"op-{run}",
            run_id=run,
            on_stop="end" if on_stop == "end" else "suspend",
        )

    def decide(self, question: PolicyQuestion) -> PolicyDecision | None:
        """The scenario's policy: the default rules but for the tools that it names."""
        match self.rules.get(question.tool):
            case "deny":
                return PolicyDecision(answer="deny", code="not_today")
            case "deny_terminal":
                return PolicyDecision(answer="deny", code="never", terminal=True)
            case "ask":
                return PolicyDecision(answer="ask")
            case "none":
                return None
            case "fail":
                raise RuntimeError("the checking service is down")
            case _:
                return default_rules(question)

    def do_advance(self, ms: str) -> None:
        self.on_loop(self.loop.advance(int(ms)))

    def do_open(self, gate: str) -> None:
        assert self.model is not None
        self.model.gate(gate).open()

    def do_approve(self, *, by: str = "bob", run: str = "r1", approval: str = "") -> None:
        self.rt.approve(run, approval or self.open_approval(run), by=by)

    def do_reject(self, *, by: str = "bob", run: str = "r1", reason: str = "") -> None:
        self.rt.reject(run, self.open_approval(run), by=by, reason=reason)

    def open_approval(self, run_id: str) -> str:
        return next((shown.approval_id for shown in self.rt.result(run_id).approvals), "none")

    def do_cancel(self, *, run: str = "r1") -> None:
        self.rt.cancel(run)

    def do_answer(
        self, text: str = "", *, run: str = "r1", by: str = "ann", cannot: str = "", stop: str = ""
    ) -> None:
        asked = next((one.question_id for one in self.rt.result(run).questions), "q_0")
        self.rt.answer(run, asked, text, by=by, cannot=bool(cannot), stop=bool(stop))

    def do_send(self, text: str, *, run: str = "r1", by: str = "ann") -> None:
        self.rt.send(run, text, by=by)

    def do_resume(self, *, run: str = "r1") -> None:
        self.rt.resume(run)

    def do_close_run(self, *, run: str = "r1") -> None:
        self.rt.close_run(run)

    def do_raise_limits(self, *, run: str = "r1", **limits: str) -> None:
        self.rt.raise_limits(run, by="ann", **{name: int(value) for name, value in limits.items()})

    def do_resolve(
        self, call: str, outcome: str, result: str = "", *, run: str = "r1", by: str = "bob"
    ) -> None:
        self.rt.resolve_call(run, call, by=by, applied=outcome == "applied", result=result)

    def do_inbox(self) -> str:
        found = self.on_loop(gather_inbox(self.store))
        lines: list[str] = []
        for row in found.rows:
            what = f"{row.outcome}/{row.reason}" if row.kind == "stop" else f"{row.call} {row.tool}"
            lines += [f"{row.kind} {row.run_id} {what}", *(f"  {command}" for command in row.next_commands)]
        return "\n".join(lines) or "nothing waits for a person"

    def do_effects(self) -> str:
        rows = [f"{what} {kind}: {count}" for (what, kind), count in sorted(self.shop.counts.items())]
        return "\n".join(rows) or "none"


def stage_from(text: str) -> Stage:
    """A stage as ``do_start`` takes it."""
    name, _, rest = text.partition(":")
    tools, _, leave = rest.partition(">")
    return Stage(name, tuple(tools.split(",")), leave.split(",") if leave else None)


def check_pairs(happened: list[e.AnyEvent]) -> None:
    """Each proposed call has exactly one bound result, before the model is asked again and before the run ends."""
    without_result: set[str] = set()
    for event in happened:
        if isinstance(event, e.CallProposed):
            without_result.add(event.call)
        elif isinstance(event, e.ResultBound):
            without_result.remove(event.call)
        elif isinstance(event, e.ModelRequested | e.RunTerminated):
            assert not without_result


def narrate(text: str) -> str:
    """The file as it would be if all that happens now were expected."""
    world = World()
    try:
        return write_blocks([block._replace(expected=world.play(block)) for block in read_blocks(text)])
    finally:
        world.close()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text("utf-8")
    assert narrate(text) == text


def test_the_list_of_scenarios_is_not_empty() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 20


@pytest.mark.parametrize("name", ["branch_1_ids_of_a_straight_run"])
def test_a_narrative_that_differs_is_seen(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text("utf-8")
    assert narrate(text.replace("run_terminated", "run_terminated ", 1)) == text


def test_a_block_without_its_separator_is_refused() -> None:
    with pytest.raises(ValueError, match="no ----"):
        list(read_blocks("effects\nnone\n"))


def rewrite(names: list[str]) -> None:
    """Write what happens now into the files of these names, or into all."""
    for path in sorted(FOLDER.glob("*.txt")):
        if not names or path.stem in names:
            path.write_text(narrate(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--rewrite"]:
        sys.exit("usage: test_scenarios.py --rewrite [NAME…]")
    rewrite(sys.argv[2:])
