"""SCAN's commands and actions, made from its grammar (Lake and Baroni 2018, figure 6)."""

from itertools import product

ACTIONS = {"walk": "I_WALK", "look": "I_LOOK", "run": "I_RUN", "jump": "I_JUMP"}


def verbs() -> dict[str, list[str]]:
    """V: one action with its direction."""
    found = {verb: [action] for verb, action in ACTIONS.items()}
    for verb, side in product((*ACTIONS, "turn"), ("left", "right")):
        turn = f"I_TURN_{side.upper()}"
        act = [ACTIONS[verb]] if verb != "turn" else []
        found[f"{verb} {side}"] = [turn, *act]
        found[f"{verb} opposite {side}"] = [turn, turn, *act]
        found[f"{verb} around {side}"] = [turn, *act] * 4
    return found


def commands() -> dict[str, list[str]]:
    """C: every command and its actions."""
    parts = {
        f"{verb}{times}": actions * count
        for verb, actions in verbs().items()
        for times, count in (("", 1), (" twice", 2), (" thrice", 3))
    }
    found = dict(parts)
    for (left, first), (right, second) in product(parts.items(), repeat=2):
        found[f"{left} and {right}"] = first + second
        found[f"{left} after {right}"] = second + first
    return found


def scan_lines() -> list[str]:
    """All commands in the format of SCAN's files."""
    return [f"IN: {words} OUT: {' '.join(actions)}" for words, actions in commands().items()]
