"""The command line: parses, calls, prints. `app` imports the module of a command when the command
is called. `train` alone imports torch later, when its config is known to be right."""

from typing import NoReturn


def main() -> NoReturn:
    """Run a command. Signals are heeded before anything else is imported."""
    from toytrans.training.signals import end_at_once

    end_at_once()
    from toytrans.cli.app import main

    main()
