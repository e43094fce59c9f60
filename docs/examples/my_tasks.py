# my_tasks.py
def swap_pairs(source: list[int]) -> list[int]:
    """Neighbours change places: 1 2 3 4 5 becomes 2 1 4 3 5."""
    pairs = [source[i : i + 2][::-1] for i in range(0, len(source), 2)]
    return [symbol for pair in pairs for symbol in pair]


class Brackets:
    """Are the brackets balanced? If not, where is the first wrong one?"""

    symbols = ["(", ")"]
    target_symbols = ["yes", "no", *"0123456789"]
    shortest = 2

    def source(self, length, random):
        """Balanced brackets, and in one case of two one of them turned round."""
        source, depth = [], 0
        for left in range(length - length % 2, 0, -1):
            opens = depth == 0 or (depth < left and random.random() < 0.5)
            source.append(0 if opens else 1)
            depth += 1 if opens else -1
        if random.random() < 0.5:
            wrong = random.randrange(len(source))
            source[wrong] = 1 - source[wrong]
        return source

    def target(self, source):
        depth = 0
        for place, symbol in enumerate(source):
            depth += 1 - 2 * symbol
            if depth < 0:
                return [1, *(2 + int(digit) for digit in str(place))]
        return [0] if depth == 0 else [1]
