"""Kill again and again under load: ``python tests/kill/run.py --kills N [--seed S] [--victims KIND,…] [--store URL] [--keep FOLDER]``.

Without ``--victims``: one SQLite file and one host process after the other, no Ray (``alone``). With it: the victims are
run actors, tool executors, the owner of the store, the process that starts runs, raylets, or all of a three-node Ray cluster
(``cluster_trial``); run actors are also stopped until others have their runs, and go on then. ``--store postgresql://`` is a
server of its own that every host opens, and that may be among the victims too (``database``); any other URL of PostgreSQL is a store
that is used and left as it is. Approvals and the settling of
unknown effects come from a process of its own. A far side in another one counts. At the end every run must have ended.
Prints the counts; exit 1 if anything that was promised is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from examples.far_side import FarSide
from tests.kill.acks import read_acks
from tests.kill.alone import kill_hosts
from tests.kill.judge import FORBIDDEN, judge, judge_acks
from tests.postgres_server import Server, running

OWN_SERVER: Final = "postgresql://"

WANTED_ON_A_CLUSTER: Final = ("zombies refused",)
"""What must have happened at least once, or the trial has shown nothing about it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--victims", default="", help="run-actor,executor,owner,driver,raylet,cluster,database"
    )
    parser.add_argument("--store", default="", help="postgresql://… in place of a file; with victims only")
    parser.add_argument("--keep", default="", help="a folder that is made and left, with the store in it")
    asked = parser.parse_args()
    started = time.monotonic()
    with kept(asked.keep) if asked.keep else tempfile.TemporaryDirectory(prefix="kill-") as folder:
        if asked.store and not asked.victims:
            parser.error("--store says where the runs of a cluster are: name --victims")
        if asked.victims:
            victims = [name for name in asked.victims.split(",") if name]
            found, lines = on_a_cluster(Path(folder), asked.kills, asked.seed, victims, asked.store)
        else:
            found, lines = alone(folder, asked.kills, asked.seed)
    for name in sorted({*found, *FORBIDDEN}):
        print(f"{name}: {found[name]}")
    print("\n".join(lines))
    print(f"seconds: {time.monotonic() - started:.0f}, seed {asked.seed}")
    broken = [name for name in (*FORBIDDEN, "runs left") if found[name]]
    if "run-actor" in asked.victims:
        broken += [f"no {name}" for name in WANTED_ON_A_CLUSTER if not found[name]]
    for name in broken:
        print(f"VIOLATION: {name}")
    return 1 if broken else 0


@contextmanager
def kept(folder: str) -> Generator[str]:
    """A new folder that stays, to look at what became of a run."""
    os.makedirs(folder)
    yield folder


@contextmanager
def stored(folder: Path, store: str) -> Generator[tuple[str, Server | None]]:
    """The URL of the store, and its server if it is one of this suite's own."""
    if store == OWN_SERVER:
        with running(inside=str(folder)) as server:
            yield server.url(schema="killed"), server
    else:
        yield store or f"sqlite:///{folder / 'runs.db'}", None


def alone(folder: str, kills: int, seed: int) -> tuple[Counter[str], list[str]]:
    """One host process after the other; what was found, and lines for people."""
    trial, counts = kill_hosts(folder, kills, seed)
    found = asyncio.run(judge(f"sqlite:///{trial.path}", counts, trial.acknowledged))
    found.update(trial.last.counts)
    found["kills"] = kills
    found["runs left"] = max(0, trial.last.left)
    ranked = sorted(trial.recovery_ms) or [0]
    return found, [f"recovery ms: p50 {ranked[len(ranked) // 2]}, p95 {ranked[len(ranked) * 95 // 100]}"]


def on_a_cluster(
    folder: Path, kills: int, seed: int, victims: list[str], store: str = ""
) -> tuple[Counter[str], list[str]]:
    """A trial on Ray; raises ``SystemExit`` for a kind of victim that there isn't."""
    from tests.kill import cluster_load
    from tests.kill.cluster_trial import ClusterTrial
    from tests.kill.victims import VICTIMS

    from boundloop.adapters.loopback_process import LoopbackProcess

    unknown = set(victims) - set(VICTIMS)
    if unknown:
        raise SystemExit(f"no such victim: {min(unknown)}")
    if "database" in victims and store != OWN_SERVER:
        raise SystemExit(f"a database is a victim only with --store {OWN_SERVER}")
    # Workers import the load's module by name.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with (
        FarSide.start(in_order=True) as far,
        LoopbackProcess(cluster_load.script(seed)) as model,
        stored(folder, store) as (url, server),
    ):
        trial = ClusterTrial(folder, url, server, far, model.base_url, seed, victims)
        given_up = ""
        try:
            trial.work(kills)
        except RuntimeError as error:
            given_up = str(error)
        finally:
            trial.close()
        found = asyncio.run(judge(url, far.counts(), trial.acknowledged))
        found.update(asyncio.run(judge_acks(url, read_acks(folder / "acks.jsonl"))))
    told = trial.counts
    found.update(told.desk)
    found.update({f"killed: {kind}": count for kind, count in told.kills.items()})
    found.update({f"turned away: {what}": count for what, count in told.turned_away.items()})
    found["zombies refused"] += told.turned_away.total()
    found["run actors stopped until they were given up"] = told.zombies
    found["zombies that went on"] = told.zombies_that_went_on
    found["nodes stopped until they were taken for dead"] = told.stopped_nodes
    found["turned away from such nodes"] = told.turned_away_from_stopped_nodes
    found["actors on killed nodes"] = told.actors_on_killed_nodes
    found["leaked actors"] = len(told.leaked)
    found["runs left"] = max(0, told.left)
    found["given up"] = bool(given_up)
    opened = sorted(told.opened_ms) or [0]
    health = trial.cluster.health
    settings = f"every {health.period_ms} ms, time-out {health.timeout_ms} ms, {health.failures} failures"
    lines = [
        *trial.recovery.lines(),
        f"a Runtime is open after, ms: p50 {opened[len(opened) // 2]}, most {opened[-1]}",
        f"3 nodes, health check {settings}; {told.pss_bytes // 2**20} MiB of Ray at the end",
    ]
    if given_up or told.left or told.leaked:
        lines += [given_up, *told.open_runs, *told.leaked, *told.notes]
        lines += (folder / "errors.txt").read_text(errors="replace").splitlines()[-40:]
    return found, lines


if __name__ == "__main__":
    sys.exit(main())
