"""What a check of the scale suite measured and whether it is what was promised, printed as it comes."""

from __future__ import annotations


class Verdicts:
    """Of one check. ``failed`` counts what did not hold."""

    def __init__(self, check: str) -> None:
        self.check = check
        self.failed = 0

    def figure(self, name: str, value: object) -> None:
        """A measurement that nothing depends on."""
        print(f"      {self.check}: {name}: {_shown(value)}", flush=True)

    def holds(self, name: str, value: object, *, holds: bool) -> None:
        """A measurement with a verdict."""
        self.failed += not holds
        print(f"{'ok   ' if holds else 'BROKEN'} {self.check}: {name}: {_shown(value)}", flush=True)

    def at_most(self, name: str, value: float, bound: float) -> None:
        """Holds if it is no more than the bound."""
        self.holds(name, f"{_shown(value)} (at most {_shown(bound)})", holds=value <= bound)

    def equal(self, name: str, value: object, wanted: object) -> None:
        """Holds if it is just that."""
        self.holds(name, f"{_shown(value)} (wanted {_shown(wanted)})", holds=value == wanted)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.0f}"
    return f"{value:,}" if type(value) is int else str(value)
