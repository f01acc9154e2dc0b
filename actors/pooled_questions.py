"""A host's questions to the application's code in executors: the checks of a call, and what a far side says of a key.

Each has an executor of its tool's pool to itself, or a place on the loop of one, and no place of a limited group. It waits
for that as long as a call of the tool might, and then has the time that it would have in the host. Whatever keeps it from
an answer is an unknown. One whose time is over loses its executor, as a call does; one that nobody waits for any more
goes on until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from ..runtime.events import RungVerdict
from ..runtime.limits import RECHECKS_MAX
from ..runtime.policy import Policy
from ..runtime.tool_spec import ToolSpec
from .dispatch_wire import (
    QueryAsked,
    decode_far_side_answer,
    decode_rungs_answered,
    decode_verdict,
    encode_question,
)
from .guarding import GuardAsked, unjudged
from .leases import Key, Lease, Leases, NoPlace
from .lines import ExecutorDied, LineDown, NoAnswer
from .pool_spec import CHECKS_KIND, query_kind
from .query import QUERY_TIMEOUT_S, FarSideAnswer, Sent, unknown
from .rungs import CHECK_TIMEOUT_S, Rungs, RungsAnswered

LOOP_LATE_S: Final = 2.0
"""How much longer a loop has to say that a query's time is over, which it sees to itself. Less than the margin."""

A = TypeVar("A")


class Unanswered(Exception):
    """No answer, and why. ``gone``: the executor is, or can't be reached; another may answer."""

    def __init__(self, code: str, *, gone: bool = False) -> None:
        super().__init__(code)
        self.code = code
        self.gone = gone


class Questions:
    """Of one host; made and used on one event loop."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def checked(self, rungs: Rungs) -> RungsAnswered:
        """See ``ToolExecutors``. What an executor took with it as it died is asked again, as any unknown is."""
        spec = rungs.spec
        question = _Question(
            self._leases,
            (spec.definition.pool, CHECKS_KIND),
            spec.name,
            encode_question(rungs.asked),
            decode_rungs_answered,
            CHECK_TIMEOUT_S,
        )
        until_s = self._loop.time() + _patience_s(spec, CHECK_TIMEOUT_S)
        code = ""
        for _ in range(RECHECKS_MAX):
            try:
                return await self._asked(question, until_s - self._loop.time())
            except Unanswered as error:
                code = error.code
                if not error.gone or self._loop.time() >= until_s:
                    break
        return rungs.unanswered(code)

    async def guarded(self, asked: GuardAsked, policy: Policy, pool: str, patience_s: float) -> RungVerdict:
        """See ``ToolExecutors``. What an executor took with it is asked again, as any unknown is."""
        question = _Question(
            self._leases,
            (pool, CHECKS_KIND),
            asked.tool,
            encode_question(asked),
            decode_verdict,
            CHECK_TIMEOUT_S,
        )
        until_s = self._loop.time() + max(CHECK_TIMEOUT_S, patience_s)
        code = ""
        for _ in range(RECHECKS_MAX):
            try:
                return await self._asked(question, until_s - self._loop.time())
            except Unanswered as error:
                code = error.code
                if not error.gone or self._loop.time() >= until_s:
                    break
        return unjudged(code, policy)

    async def queried(
        self, spec: ToolSpec | None, key: bytes | None, sent: Sent | None = None
    ) -> FarSideAnswer:
        """See ``ToolExecutors``. Whoever reconciles asks again after a while."""
        if spec is None or spec.query is None or key is None:
            return unknown("no_query")
        kind = query_kind(spec)
        question = _Question(
            self._leases,
            (spec.definition.pool, kind),
            spec.name,
            encode_question(
                QueryAsked(tool=spec.name, definition_sha256=spec.definition_sha256, key=key, sent=sent)
            ),
            decode_far_side_answer,
            QUERY_TIMEOUT_S + (LOOP_LATE_S if kind == "async" else 0.0),
        )
        try:
            return await self._asked(question, _patience_s(spec, QUERY_TIMEOUT_S))
        except Unanswered as error:
            return unknown(error.code)

    async def close(self) -> None:
        """Give all of them up."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _asked(self, question: _Question[A], wait_s: float) -> A:
        """One question to its end, whether or not anybody still waits for it once it is out."""
        task = self._loop.create_task(question.answer(wait_s))
        self._tasks.add(task)
        task.add_done_callback(self._over)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not question.out:
                task.cancel()
            raise

    def _over(self, done: asyncio.Task[Any]) -> None:
        self._tasks.discard(done)
        if not done.cancelled():
            done.exception()  # if nobody waits any more, it is nobody's


class _Question(Generic[A]):
    """One question, on one executor at a time. ``out``: an executor has it."""

    __slots__ = ("_answer_s", "_data", "_decode", "_key", "_leases", "_tool", "out")

    def __init__(
        self,
        leases: Leases,
        key: Key,
        tool: str,
        data: bytes,
        decode: Callable[[object], A | None],
        answer_s: float,
    ) -> None:
        self._leases = leases
        self._key = key
        self._tool = tool
        self._data = data
        self._decode = decode
        self._answer_s = answer_s
        self.out = False

    async def answer(self, wait_s: float) -> A:
        """Raises ``Unanswered``."""
        lease = self._leases.kept(self._key, self._answer_s) or await self._leased(wait_s)
        left_s = min(self._answer_s, lease.until_s - asyncio.get_running_loop().time())
        if left_s <= 0:
            self._leases.done(lease)
            raise Unanswered("expired")
        try:
            reply = lease.line.send(self._data)
        except LineDown:
            self._leases.lost(lease, "unreached")
            raise Unanswered("no_executor", gone=True) from None
        self.out = True
        try:
            await asyncio.wait([reply], timeout=left_s)
        except asyncio.CancelledError:
            self._leases.lost(lease, "overdue")
            raise
        finally:
            self.out = False
        if not reply.done():
            self._leases.lost(lease, "overdue")
            raise Unanswered("timeout")
        return self._settled(lease, reply)

    async def _leased(self, wait_s: float) -> Lease:
        try:
            return await self._leases.take(
                self._key,
                tool=self._tool,
                group="",
                left_s=wait_s,
                extra_ms=int(self._answer_s * 1_000),
            )
        except NoPlace as error:
            raise Unanswered(error.code, gone=error.code == "no_executor") from None

    def _settled(self, lease: Lease, reply: asyncio.Future[object]) -> A:
        try:
            answer = self._decode(reply.result())
        except ExecutorDied:
            self._leases.lost(lease, "died")
            raise Unanswered("lost", gone=True) from None
        except NoAnswer:
            answer = None
        if answer is None:
            self._leases.lost(lease, "overdue")
            raise Unanswered("lost")
        self._leases.done(lease)
        return answer


def _patience_s(spec: ToolSpec, least_s: float) -> float:
    """How long a place is waited for."""
    return max(least_s, spec.definition.timeout_ms / 1_000)
