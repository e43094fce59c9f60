"""Sealed faults: a fault in a config that nobody reads by accident, for exercises.

    fault: sealed-<48 characters: a nonce of 8 bytes, then the name XOR a stream made from it>

This hides a name and does not encrypt it: training opens the seal without a key, so anybody can
who calls `opened`. A sealed fault may be none.
"""

import hashlib
from base64 import b64decode, urlsafe_b64encode
from typing import cast, get_args

from toytrans.config.names import FaultName
from toytrans.errors import UserError

PREFIX = "sealed-"
NONCE, NAME, CHECK = 8, 24, 4
"""Bytes of the nonce, of the padded name, and of the checksum that follows it."""

CLOSED = "!"
"""Behind the name in the seal of a closed exercise, whose cure no command tells."""

NAMES = {
    f"{name}{mark}".encode().ljust(NAME): (name, mark)
    for name in ("", *get_args(FaultName))
    for mark in ("", CLOSED)
}
"""Every name with its mark, by its padded bytes."""


def seal(fault: FaultName | None, nonce: bytes, *, closed: bool = False) -> str:
    """A fault, or none, sealed. nonce: 8 bytes; equal ones give equal seals."""
    assert len(nonce) == NONCE
    name = f"{fault or ''}{CLOSED if closed else ''}".encode().ljust(NAME)
    return PREFIX + urlsafe_b64encode(nonce + _xor(name + _check(nonce, name), nonce)).decode()


def opened(fault: str | None) -> FaultName | None:
    """The fault of a config, its seal opened. Raises UserError where the seal was changed."""
    if fault is None or not is_sealed(fault):
        return cast(FaultName | None, fault)  # the config checked it
    return cast(FaultName, _inside(fault)[0]) or None


def is_closed(fault: str | None) -> bool:
    """Whether a fault is that of a closed exercise. Raises UserError where the seal was changed."""
    return fault is not None and is_sealed(fault) and _inside(fault)[1] == CLOSED


def _inside(fault: str) -> tuple[str, str]:
    """The name and the mark in a seal. Raises UserError where it was changed."""
    try:
        raw = b64decode(fault.removeprefix(PREFIX), altchars=b"-_", validate=True)
    except ValueError:
        raw = b""
    nonce = raw[:NONCE]
    inner = _xor(raw[NONCE:], nonce)
    name, check = inner[:NAME], inner[NAME:]
    if check != _check(nonce, name) or name not in NAMES:
        raise UserError(f"fault: {PREFIX}...: this seal was changed; take the one handed out")
    return NAMES[name]


def is_sealed(fault: str | None) -> bool:
    return fault is not None and fault.startswith(PREFIX)


def fault_remark(fault: str | None) -> str:
    """What titles say about a config's fault; empty without one."""
    if is_sealed(fault):
        return "a sealed exercise"
    return f"broken on purpose: {fault}" if fault else ""


def _xor(raw: bytes, nonce: bytes) -> bytes:
    stream = hashlib.shake_256(b"toytrans" + nonce).digest(len(raw))
    return bytes(a ^ b for a, b in zip(raw, stream, strict=True))


def _check(nonce: bytes, name: bytes) -> bytes:
    return hashlib.sha256(nonce + name).digest()[:CHECK]
