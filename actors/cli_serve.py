"""``serve``: host an application's runs until told to end."""

from __future__ import annotations

import os
from typing import Any, Unpack

import click

from ..eventstore.location import parse_url, shown_url
from ..eventstore.owned import real_path
from ..runtime.errors import BoundloopError
from .application import load_application
from .cli_output import OK, Output
from .cli_run import OnRay, ray_options
from .cli_session import output_option
from .cli_text import quoted, safe_text
from .client import Runtime


@click.command()
@click.argument("reference", metavar="MODULE:SPEC")
@click.option(
    "--store", "store_url", envvar="BOUNDLOOP_STORE", default="", metavar="URL", help="Over the SPEC's."
)
@click.option("--take-over", is_flag=True, help="End another process that owns the store's file.")
@click.option("--name", default="boundloop", metavar="NAME", help="Tells several of a cluster apart.")
@ray_options
@output_option
def serve(
    reference: str, store_url: str, take_over: bool, name: str, output: Any, **on_ray: Unpack[OnRay]
) -> int:
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
            url, take_over=take_over, reference=reference, name=name, **on_ray
        ) as runtime:
            for line in _said(runtime, url, name):
                out.note(line)
            runtime.serve()
        return OK
    except BoundloopError as error:
        return out.error(error)


def _said(runtime: Runtime, url: str, name: str) -> list[str]:
    """Where it serves, and how others reach it."""
    lines = [f"serving {safe_text(shown_url(url))}, pid {os.getpid()}"]
    location = parse_url(url)
    if location.kind == "postgres":
        lines.append("other shells:    the same --store; other machines: serve it there too")
    if location.kind != "sqlite":
        return lines
    there = f"sqlite:///{real_path(location.path)}"
    lines.append(f"other shells:    boundloop inbox --store {quoted(there)}")
    if runtime.ray_address:
        named = "" if name == "boundloop" else f", name={name!r}"
        attach = f"Runtime(store={there!r}, ray={runtime.ray_address!r}{named}, …)"
        lines.append(f"other processes: {safe_text(attach)}; RAY_AUTH_MODE=token if Ray has a token")
    return lines
