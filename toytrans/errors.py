"""Errors that the user can fix, and how messages write names and numbers for people."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class UserError(Exception):
    """An error that the user can fix. Its message is one line: what, where, the remedy.

    Only what names several keys, or shows code, has several lines.
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class BadKey(UserError):
    """A key of the config is refused where nothing is known of the file. Whoever read the file adds
    the line of the key."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key


JOINERS = "\u200c\u200d"
"""Zero-width joiners of letters and emoji: unprintable to Python, but harmless."""


def printable(text: str) -> str:
    """Text on one line whose control characters are shown, not obeyed."""
    return "".join(c if c.isprintable() or c in JOINERS else repr(c)[1:-1] for c in text)


def shortened(text: str) -> str:
    """Text without its middle if it is very long. The remedy is at its end."""
    return text if len(text) <= 2000 else f"{text[:1200]} ... {text[-700:]}"


HOW_TO_SEPARATE = "put spaces between symbols, and each sequence in quotes of its own"


def listed(names: Sequence[str], most: int = 10) -> str:
    """Names with commas, the first ones of many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def share(value: float) -> str:
    """A proportion with enough digits to differ from 1: 0.998, 0.99987, 1.000."""
    for digits in range(3, 17):
        text = f"{value:.{digits}f}"
        if float(text) < 1 or value == 1:
            break
    return "1.000" if value == 1 else text


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known name, or all of them. Where
    the name has digits, only one with the same is near: fp16 does not mean fp64."""
    names = list(names)
    digits = [c for c in name if c.isdigit()]
    near = [
        known
        for known in get_close_matches(name, names)
        if not digits or digits == [c for c in known if c.isdigit()]
    ]
    near = near or [known for known in names if known.lower() == name.strip().lower()]
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def how_to_install(*packages: str) -> str:
    """The command that installs missing packages, however toytrans itself was installed."""
    return f"`python -m pip install {' '.join(packages)}`"


class UnseenSymbol(UserError):
    """A symbol that is not in a vocabulary. Callers that know file and line add them."""

    def __init__(self, symbol: str, known: Sequence[str]) -> None:
        """known: the symbols of the vocabulary. `what` is the message without the remedy for what
        was typed."""
        hint = f"known are {len(known):,} symbols such as {known[0]!r}" if known else "it is empty"
        self.what = f"symbol {symbol!r} is not in the vocabulary ({hint})"
        remedy = ""
        if "," in symbol:
            remedy = f"; {HOW_TO_SEPARATE}"
        elif len(symbol) > 1 and set(symbol) <= set(known) and set(map(len, known)) == {1}:
            spaced = shortened(" ".join(symbol))
            remedy = f"; each of its characters is a symbol: put spaces between them, {spaced!r}"
        super().__init__(self.what + remedy)


MEMORY_RAN_OUT = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA error: out of memory",  # of the driver, say for a CUDA graph
    "CUBLAS_STATUS_ALLOC_FAILED",
    "could not create a primitive",  # of oneDNN
    "std::bad_alloc",
)
"""What torch's errors say where they have no class of their own."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the host or a device is out of memory."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    kind = f"{type(error).__module__}.{type(error).__name__}"
    of_a_device = kind in ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
    return of_a_device or any(words in str(error) for words in MEMORY_RAN_OUT)
