#!/bin/sh
# A length study in an evening, from an empty folder: a task of one's own, three position schemes,
# five seeds, lengths up to five times those of training, a table and a picture.
set -e

cat > my_tasks.py <<'PYTHON'
def swap_pairs(source: list[int]) -> list[int]:
    """Neighbours change places: 1 2 3 4 5 becomes 2 1 4 3 5."""
    pairs = [source[i : i + 2][::-1] for i in range(0, len(source), 2)]
    return [symbol for pair in pairs for symbol in pair]
PYTHON

cat > swap.yaml <<'YAML'
data: {task: my_tasks.py:swap_pairs, symbols: 10, train_length: [1, 10], batch_tokens: 1024}
model: {norm: pre, d_model: 32, d_ff: 64}
train: {max_steps: 800}
YAML

toytrans sweep swap.yaml --seeds "${SEEDS:-0:4}" \
  --set model.positions=sinusoidal,rotary,anchored --lengths 1:50 --examples 1000
