"""``serve``: host an application's runs until told to end."""

from __future__ import annotations

from typing import Any

import click

from ..runtime.errors import BoundloopError
from .application import load_application
from .cli_output import OK, Output
from .cli_run import ray_option
from .cli_session import output_option


@click.command()
@click.argument("reference", metavar="MODULE:SPEC")
@click.option(
    "--store", "store_url", envvar="BOUNDLOOP_STORE", default="", metavar="URL", help="Over the SPEC's."
)
@click.option("--take-over", is_flag=True, help="End another process that owns the store's file.")
@click.option("--name", default="boundloop", metavar="NAME", help="Tells several of a cluster apart.")
@ray_option
@output_option
def serve(reference: str, store_url: str, take_over: bool, name: str, ray: str | None, output: Any) -> int:
    """Host an application's runs until SIGTERM or SIGINT.

    Owns the store, takes up whatever is ready in it, and serves other shells and attached processes. At the end runs are
    put down where they are, within seconds, for whoever serves next.
    """
    out = Output(output, at_once=True)
    try:
        application = load_application(reference)
        url = store_url or application.store
        if not url:
            raise click.UsageError("name a store: --store URL, BOUNDLOOP_STORE, or the SPEC's own")
        with application.runtime(
            url, take_over=take_over, reference=reference, ray=ray, name=name
        ) as runtime:
            out.note(f"serving {url}")
            runtime.serve()
        return OK
    except BoundloopError as error:
        return out.error(error)
