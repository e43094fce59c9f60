"""The command line: parses, calls, prints. `app` imports what a command does when its options and
the keys of its config have been read. `train` alone has its options beside what it does, and
imports torch later, when its config is known to be right."""

from typing import NoReturn


def main() -> NoReturn:
    """Run a command. Signals are heeded before anything else is imported."""
    from toytrans.training.signals import end_at_once

    end_at_once()
    from toytrans.cli.app import main

    main()
