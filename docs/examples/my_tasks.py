# my_tasks.py
def swap_pairs(source: list[int]) -> list[int]:
    """Neighbours change places: 1 2 3 4 5 becomes 2 1 4 3 5."""
    pairs = [source[i : i + 2][::-1] for i in range(0, len(source), 2)]
    return [symbol for pair in pairs for symbol in pair]


class Palindrome:
    """Does the source read the same from both ends?"""

    symbols = ["a", "b", "c", "d"]
    target_symbols = ["no", "yes"]

    def source(self, length, random):
        """A palindrome in one case of two."""
        source = [random.randrange(4) for _ in range(length)]
        if random.random() < 0.5:
            source[-(length // 2) :] = source[length // 2 - 1 :: -1]
        return source

    def target(self, source):
        return [int(source == source[::-1])]
