"""The command line: parses, calls, prints. Commands import what they need when they run."""

from toytrans.cli.app import main

__all__ = ["main"]
