"""The model of the simulated world: mostly sensible, sometimes hostile, and cut, silent or absurd where a fault says so.

What it proposes in a turn depends on the run and the turn alone, so an attempt that is made again proposes the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from boundloop.adapters.port import ProgressSink
from boundloop.runtime.canonical import canonical_bytes
from boundloop.runtime.model import ModelInput, ModelTurn, ProposedCall, ResultItem, Usage
from boundloop.runtime.prices import Price

from . import pinned
from .clock import passed
from .pinned import FAMILY, MODEL, PRICE
from .plan import Strike

if TYPE_CHECKING:
    from .hosts import SimHost
    from .world import World

USAGE: Final = Usage(120, 24)
EXTRA_TURNS: Final = 3
"""Turns beyond its script in which it still tries for the evidence that its goal asks for."""

STUBBORN_SHARE: Final = 0.015
STUBBORN_TURNS_MAX: Final = 4
"""Some runs ask for the same until an error tells them off, or for so many turns."""

_EFFECTS: Final = ("book", "book", "tag", "pay", "refund", "refund", "letter", "note", "wire")
_READS: Final = ("look", "look", "audit", "audit", "audit", "mail", "ask_user")
_SAFE: Final = ("book", "tag", "pay", "note", "wire")
_AGENTS: Final = ("clerk", "helper", "team")
_HOSTILE: Final[tuple[tuple[str, bytes], ...]] = (
    ("refund", b'{"order_id":"A1","cents":1'),
    ("refund", b'{"order_id":"A1","cents":"1"}'),
    ("refund", b'{"order_id":"A1","cents":1,"cents":900}'),
    ("pay", b'{"order_id":"A1","cents":NaN}'),
    ("pay", b'{"order_id":["A1"],"cents":1}'),
    ("pay", b'{"order_id":"A1","cents":1e400}'),
    ("book", b'{"sku":"S1","qty":99999999999999999999999999}'),
    ("book", b'{"sku":"' + b"s" * 3_000 + b'","qty":1}'),
    ("book", b'{"sku":"\xff","qty":1}'),
    ("tag", b"[" * 200 + b"]" * 200),
    ("delete_all_orders", b"{}"),
    ("", b"{}"),
    ("Refund", b'{"order_id":"A1","cents":1}'),
    ("refund\u200b", b'{"order_id":"A1","cents":1}'),
    ("team", b'{"agent":"root","input":"x"}'),
    ("look", b""),
    ("letter", b"null"),
)


class SimModel:
    """One host's adapter; each answers as all others would."""

    family = FAMILY
    revision = "1"
    model = MODEL
    price: Price | None = PRICE
    inline = True

    def __init__(self, world: World) -> None:
        self._world = world
        self.host: SimHost | None = None

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        world = self._world
        world.judge.model_asked(request)
        chance = world.dice("model", request.run_id, request.turn)
        strike = world.struck("model")
        if chance.random() < 0.5:
            await passed(chance.randint(5, 900) / 1_000)
        if strike is None:
            turn = self._sensible(request, chance)
        else:
            world.triples.at_run(strike.kind, request.run_id)
            turn = await self._struck(strike, request, chance)
        world.judge.promises.usage_said(request, turn.usage)
        return turn

    async def close(self) -> None:
        """Nothing to give back."""

    async def _struck(self, strike: Strike, request: ModelInput, chance: Random) -> ModelTurn:
        match strike.kind:
            case "crash_at_reply":
                assert self.host is not None
                self._world.crash(self.host)
                return self._sensible(request, chance)
            case "model_silent":
                return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # nothing ever comes of it
            case "model_raises":
                raise ConnectionResetError
            case "overrun":
                more = strike.size * 20 + (pinned.TOKENS if strike.size % 4 == 0 else 0)
                return self._sensible(request, chance, Usage(more, strike.size * 9))
            case "usage_unknown":
                return self._sensible(request, chance, None if strike.size % 2 else Usage(-5, 2**60))
            case "hostile_calls":
                return _calls([*_hostile(chance), *self._proposals(request, chance)[:1]])
            case "too_many_calls":
                return _calls([_call(chance, "look", number) for number in range(9)])
            case "same_effect_again":
                order = f"A{strike.size % 2}"
                calls = [
                    ("refund", canonical_bytes({"order_id": order, "cents": 3, "reason": reason}))
                    for reason in ("please", "once more", "")[: 2 + strike.size % 2]
                ]
                return _calls([ProposedCall(name, arguments, "same") for name, arguments in calls])
            case kind:
                return ModelTurn(
                    finish=kind,  # type: ignore[arg-type]  # the kinds of finishes are faults of these names
                    finish_raw=kind,
                    text="so far" if strike.size % 2 else "",
                    calls=tuple(self._proposals(request, chance)) if strike.size % 3 == 0 else (),
                    usage=USAGE,
                    error_code=kind if "err" in kind else "",
                    retryable=strike.size % 10 != 0,
                    retry_after_ms=strike.size,
                )

    # --- what it wants -----------------------------------------------------------------------------------------------

    def _sensible(self, request: ModelInput, chance: Random, usage: Usage | None = USAGE) -> ModelTurn:
        proposals = self._proposals(request, chance)
        if proposals:
            return _calls(proposals, usage)
        text = "" if chance.random() < 0.01 else "done"
        return ModelTurn(finish="final", finish_raw="stop", text=text, usage=usage)

    def _proposals(self, request: ModelInput, chance: Random) -> list[ProposedCall]:
        habit = self._world.dice("turns", request.run_id)
        turns = habit.choice((1, 2, 2, 3))
        if habit.random() < STUBBORN_SHARE and any(tool.name == "status" for tool in request.tools):
            return [] if _was_told_off(request) else [_call(habit, "status", number) for number in range(2)]
        offered = [tool.name for tool in request.tools]
        if request.turn > turns:
            missing = self._missing(request)
            return (
                [_call(chance, missing, request.turn)]
                if missing and request.turn <= turns + EXTRA_TURNS
                else []
            )
        names: list[str] = []
        if request.turn == 1:
            names.append(chance.choice([name for name in _SAFE if name in offered] or offered[:1]))
        names += [_wanted(chance, offered) for _ in range(chance.choice((0, 1, 1, 2)))]
        if chance.random() < 0.03:
            return [*_hostile(chance), *(_call(chance, name, 0) for name in names)]
        return [_call(chance, name, number) for number, name in enumerate(names or ["look"])]

    def _missing(self, request: ModelInput) -> str:
        """The tool that its stage or its goal asks for and that hasn't succeeded yet, as far as it can see."""
        leave = self._world.leave_of(request)
        if leave:
            return leave
        goal = self._world.goal_of(request)
        done = {item.name for item in request.items if isinstance(item, ResultItem) and not item.is_error}
        return goal if goal and goal not in done else ""


def _was_told_off(request: ModelInput) -> bool:
    return request.turn > STUBBORN_TURNS_MAX or any(
        isinstance(item, ResultItem) and item.is_error for item in request.items
    )


def _wanted(chance: Random, offered: Sequence[str]) -> str:
    drawn = chance.random()
    among = _AGENTS if drawn < 0.28 else _READS if drawn < 0.45 else _EFFECTS
    possible = [name for name in among if name in offered]
    return chance.choice(possible or [name for name in _SAFE if name in offered] or ["look"])


def _call(chance: Random, name: str, number: int) -> ProposedCall:
    """An ordinary call. There are few orders, so runs of one operation want the same effects."""
    order = f"A{chance.randrange(4)}"
    arguments: dict[str, object]
    match name:
        case "book":
            arguments = {"sku": f"S{chance.randrange(5)}", "qty": chance.choice((1, 1, 1, 2, 7))}
        case "tag":
            arguments = {"order_id": order, "label": chance.choice(("new", "old"))}
        case "pay":
            arguments = {"order_id": order, "cents": 5}
        case "refund":
            arguments = {"order_id": order, "cents": 3, "reason": chance.choice(("late", "broken", "asked"))}
        case "letter":
            arguments = {"to": f"P{chance.randrange(4)}"}
        case "note":
            arguments = {"text": order}
        case "ask_user":
            arguments = {"question": f"and {order}?"}
            if chance.random() < 0.5:
                arguments["choices"] = ["yes", "no"]
        case "audit":
            arguments = {"year": 2_000 + chance.randrange(9)}
        case "team":
            arguments = {"agent": chance.choice(("clerk", "patient")), "input": order}
        case "clerk" | "helper":
            arguments = {"input": order}
        case _:
            arguments = {"order_id": order}
    label = chance.choice(("", "same", f"call_{number}", f"call_{number}"))
    return ProposedCall(name, canonical_bytes(arguments), label)  # type: ignore[arg-type]  # JSON values


def _hostile(chance: Random) -> list[ProposedCall]:
    return [
        ProposedCall(name, arguments, chance.choice(("", "x", "\ud800")))
        for name, arguments in chance.sample(_HOSTILE, k=chance.choice((1, 1, 2)))
    ]


def _calls(calls: Sequence[ProposedCall], usage: Usage | None = USAGE) -> ModelTurn:
    return ModelTurn(finish="calls", finish_raw="tool_calls", calls=tuple(calls), usage=usage)
