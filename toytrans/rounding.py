"""How proportions are rounded for people."""


def share(value: float) -> str:
    """A proportion with enough digits to differ from 1: 0.998, 0.99987, 1.000."""
    for digits in (3, 4, 5):
        text = f"{value:.{digits}f}"
        if float(text) < 1 or value == 1:
            break
    return "1.000" if value == 1 else text
