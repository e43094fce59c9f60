"""The command line: parses, calls, prints. `app` imports a command when it is called, and a command
imports what needs torch when it runs."""

from typing import NoReturn


def main() -> NoReturn:
    """Run a command. Signals are heeded before anything else is imported."""
    from toytrans.training.signals import end_at_once

    end_at_once()
    from toytrans.cli.app import main

    main()
