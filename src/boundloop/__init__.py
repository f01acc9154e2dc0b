"""A bounded interpreter for actions that a model proposes; import what you use from its packages."""

__version__ = "0.1.0.dev0"
