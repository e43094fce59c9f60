"""What can go wrong that a person can mend."""


class UserError(Exception):
    """Something the user can mend. Its message is one line: what, where, the remedy."""


class UnseenSymbol(UserError):
    """A symbol that the vocabulary does not hold; callers that know the file and line add them."""

    def __init__(self, symbol: str, known: int, example: str) -> None:
        self.symbol = symbol
        hint = f"known are {known} symbols such as {example!r}" if known else "it is empty"
        super().__init__(f"symbol {symbol!r} is not in the vocabulary ({hint})")
