"""The text of an exercise: its config, and the sheet for the student."""

MOST_STUDENTS = 1000

CONFIG_TEXT = """\
# Reverse sequences with the textbook model; the fault is sealed.
seed: {seed}
fault: {fault}
data:
  task: reverse
  symbols: 10
  train_length: [2, 7]
  batch_tokens: 1024
model:
  positions: sinusoidal
  norm: post
train:
  max_steps: 400
"""

SHEET = """\
# What is wrong? An exercise of level {level}

A model learns to reverse sequences. {claim}

Change to this folder: every command below runs here.

1. Train it (about 10 s on free cores), and train the sound model beside it:

   ```
   toytrans train --config exercise.yaml
   toytrans train --config exercise.yaml --set fault=null --out runs/sound
   ```

2. Compare the two tables: exact match, token accuracy and loss on validation and test pairs. The
   training loss is in the last line of progress, above the table. A table measures the best
   checkpoint, and names its step.
   {table}

3. {look}

   ```
{commands}
   ```

4. Read the catalogue, and the card of a fault that you suspect. Write its name for FAULT:

   ```
   toytrans faults
   toytrans faults FAULT
   ```

   You may plant the suspect yourself and compare every number. `--break` takes the place of the
   sealed fault:

   ```
   toytrans train --config exercise.yaml --break FAULT --out runs/suspect
   ```

5. Answer with the name of the fault{or_none}. A wrong answer may be followed by another:

   ```
   toytrans exercise check FAULT
   ```

   If you are stuck, ask for a hint. There are three, and the last says what is wrong:

   ```
   toytrans exercise hint
   ```

6. Write down the symptom that you saw, the number or proof that shows the fault, and what has to be
   changed, in your own words{or_why}.

Answers and hints are counted in `progress.json`; the last answer counts. Leave the other files as
they are.
"""

LEVELS = {
    1: (
        "One thing in it is broken, and the numbers at the end of training show it.",
        "Which number is wrong, and what does it say about decoding?",
        "Look at what the model puts out, and at what the doctor makes of the records:",
        ('toytrans translate runs/exercise "5 7 9"', "toytrans doctor runs/exercise"),
    ),
    2: (
        "One thing in it is broken. The table says that, but not what.",
        "Which number still looks sound?",
        "Look at the masks, and let the proofs tell which rule is broken. The doctor reads the "
        "records of training alone, so it may find nothing:",
        (
            "toytrans doctor runs/exercise",
            "toytrans inspect-masks runs/exercise",
            "toytrans check runs/exercise",
        ),
    ),
    3: (
        "One thing in it is broken, or nothing is. The table shows little or nothing.",
        "Is a difference larger than that between two seeds? To see that, train "
        "each again\n   with `--seed 1`, and add `--out runs/exercise-1` or `--out runs/sound-1`.",
        "Let the proofs decide, and say what each failing one means:",
        (
            "toytrans check runs/exercise",
            "toytrans trace layer runs/exercise",
            "toytrans eval runs/exercise",
        ),
    ),
}
"""For each level: what is claimed, a question to the table, where to look, commands."""


def sheet(level: int) -> str:
    """The student's sheet, as Markdown."""
    claim, table, look, commands = LEVELS[level]
    return SHEET.format(
        level=level,
        claim=claim,
        table=table,
        look=look,
        commands="\n".join(f"   {line}" for line in commands),
        or_none=", or with `none`" if level == 3 else "",
        or_why=", or why you say that nothing is broken" if level == 3 else "",
    )
