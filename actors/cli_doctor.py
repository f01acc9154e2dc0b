"""``doctor``: what about this machine, Ray and the store breaks a promise, or will surprise."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from .cli_output import FAILED, OK, Format, Output
from .cli_session import output_option
from .cli_text import safe_text

if TYPE_CHECKING:
    from .doctor_findings import Finding

COLUMNS = ("level", "name", "found", "means", "do")


@click.command()
@click.option(
    "--store",
    "store_url",
    envvar="BOUNDLOOP_STORE",
    metavar="URL",
    help="Look at this store's file too; it isn't opened.  [env: BOUNDLOOP_STORE]",
)
@click.option(
    "--ray", "address", metavar="ADDRESS|local", help="Join this cluster, or start one, and look at it too."
)
@output_option
def doctor(store_url: str | None, address: str | None, output: str) -> int:
    """Look at this machine, the versions, Ray and the store, and say what breaks a promise or will surprise.

    Exits 1 if anything fails; warnings are no failure. Without --ray nothing imports Ray or connects to it.
    """
    from .doctor import examine, examine_cluster, healthy, in_order
    from .doctor_machine import Machine

    before = click.get_current_context().find_root().params.get("store_url")
    findings = examine(Machine(), store_url or (str(before) if before else ""))
    if address:
        findings = in_order([*findings, *examine_cluster(address)])
    out = Output(cast(Format, output))
    if out.form == "table":
        for finding in findings:
            _print(out, finding)
        bad = [sum(finding.level == level for finding in findings) for level in ("fail", "warn")]
        out.line(f"{len(findings)} findings, {bad[0]} failed, {bad[1]} to be known.")
    else:
        from .doctor_findings import as_row

        out.rows(COLUMNS, [as_row(finding) for finding in findings])
    return OK if healthy(findings) else FAILED


def _print(out: Output, finding: Finding) -> None:
    out.line(f"{finding.level:<5} {finding.name:<22} {safe_text(finding.found)}")
    if finding.level != "ok":
        out.line(f"      {safe_text(finding.means)}")
        out.line(f"      To do: {safe_text(finding.do)}")
