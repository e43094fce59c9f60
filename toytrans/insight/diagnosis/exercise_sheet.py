"""The text of an exercise: its config, and the sheet for the student."""

from typing import Literal

MOST_STUDENTS = 1000
MOST_ANSWERS = 100

Language = Literal["en", "ko"]

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
   toytrans explain faults
   toytrans explain FAULT
   ```

   You may plant the suspect yourself and compare every number. `--break` takes the place of the
   sealed fault:

   ```
   toytrans train --config exercise.yaml --break FAULT --out runs/suspect
   ```

5. Answer with the name of the fault{or_none}. {answers}

   ```
   toytrans exercise check FAULT
   ```

   If you are stuck, ask for a hint. {hints}

   ```
   toytrans exercise hint
   ```

6. Write down the symptom that you saw, the number or proof that shows the fault, and what has to be
   changed, in your own words{or_why}.

Answers and hints are counted in `progress.json`. Leave the other files as they are.
"""

SHEET_KO = """\
# 무엇이 잘못되었을까요? {level}단계 연습 문제

모델이 수열을 뒤집는 법을 배웁니다. {claim}

이 폴더로 이동하세요. 아래 명령은 모두 여기서 실행합니다.

1. 모델을 학습하고(코어가 비어 있으면 약 10초), 비교할 정상 모델도 학습합니다.

   ```
   toytrans train --config exercise.yaml
   toytrans train --config exercise.yaml --set fault=null --out runs/sound
   ```

2. 두 표에서 검증 쌍과 테스트 쌍의 exact match(정답과 완전히 같은 비율), 토큰 정확도, 손실을
   비교하세요. 학습 손실은 표 위 마지막 진행 줄에 있습니다. 표는 가장 좋은 체크포인트를 측정한
   것이며, 그 스텝을 알려 줍니다.
   {table}

3. {look}

   ```
{commands}
   ```

4. 결함 목록을 읽고, 의심되는 결함의 카드를 읽으세요. FAULT 자리에 결함의 이름을 씁니다.

   ```
   toytrans explain faults
   toytrans explain FAULT
   ```

   의심되는 결함을 직접 심어 모든 수치를 비교할 수도 있습니다. `--break`는 봉인된 결함을
   대신합니다.

   ```
   toytrans train --config exercise.yaml --break FAULT --out runs/suspect
   ```

5. 결함의 이름{or_none}으로 답하세요. {answers}

   ```
   toytrans exercise check FAULT
   ```

   막히면 힌트를 요청하세요. {hints}

   ```
   toytrans exercise hint
   ```

6. 관찰한 증상, 결함을 보여 주는 수치나 검사 결과, 고쳐야 할 점을 자신의 말로 쓰세요{or_why}.

답과 힌트의 수는 `progress.json`에 기록됩니다. 다른 파일은 그대로 두세요.
"""

COMMANDS = {
    1: ('toytrans translate runs/exercise "5 7 9"', "toytrans doctor runs/exercise"),
    2: (
        "toytrans doctor runs/exercise",
        "toytrans inspect-masks runs/exercise",
        "toytrans check runs/exercise",
    ),
    3: (
        "toytrans check runs/exercise",
        "toytrans trace layer runs/exercise",
        "toytrans eval runs/exercise",
    ),
}

LEVELS = {
    1: (
        "One thing in it is broken, and the numbers at the end of training show it.",
        "Which number is wrong, and what does it say about decoding?",
        "Look at what the model puts out, and at what the doctor makes of the records:",
    ),
    2: (
        "One thing in it is broken. The table says that, but not what.",
        "Which number still looks sound?",
        "Look at the masks, and let the proofs tell which rule is broken. The doctor reads the "
        "records of training alone, so it may find nothing:",
    ),
    3: (
        "One thing in it is broken, or nothing is. The table shows little or nothing.",
        "Is a difference larger than that between two seeds? To see that, train "
        "each again\n   with `--seed 1`, and add `--out runs/exercise-1` or `--out runs/sound-1`.",
        "Let the proofs decide, and say what each failing one means:",
    ),
}
"""For each level: what is claimed, a question to the table, where to look."""

LEVELS_KO = {
    1: (
        "이 모델에는 망가진 곳이 하나 있고, 학습이 끝날 때의 수치에 드러납니다.",
        "어떤 수치가 이상하며, 그 수치는 디코딩에 대해 무엇을 말해 주나요?",
        "모델의 출력과, doctor 명령이 기록에서 찾아내는 것을 살펴보세요.",
    ),
    2: (
        "이 모델에는 망가진 곳이 하나 있습니다. 표는 그 사실만 알려 주고, 어디인지는 알려 주지 "
        "않습니다.",
        "정상으로 보이는 수치는 무엇인가요?",
        "마스크를 살펴보고, 어떤 규칙이 깨졌는지 검사로 확인하세요. doctor는 학습 기록만 읽으므로 "
        "아무것도 찾지 못할 수 있습니다.",
    ),
    3: (
        "이 모델에는 망가진 곳이 하나 있거나 없습니다. 표에는 거의 드러나지 않습니다.",
        "그 차이가 시드 두 개 사이의 차이보다 큰가요? 확인하려면 두 모델을 `--seed 1`로 다시\n   "
        "학습하고, `--out runs/exercise-1` 또는 `--out runs/sound-1`을 붙이세요.",
        "검사로 판정하고, 실패한 검사가 각각 무엇을 뜻하는지 쓰세요.",
    ),
}


def sheet(level: int, language: Language, closed: bool, limit: int | None) -> str:
    """The student's sheet, as Markdown. limit: the most answers that count."""
    korean = language == "ko"
    claim, table, look = (LEVELS_KO if korean else LEVELS)[level]
    none = " 또는 `none`" if korean else ", or with `none`"
    why = (
        ".\n   망가진 곳이 없다고 본다면 그 까닭을 쓰세요"
        if korean
        else ", or why you say that nothing is broken"
    )
    return (SHEET_KO if korean else SHEET).format(
        level=level,
        claim=claim,
        table=table,
        look=look,
        commands="\n".join(f"   {line}" for line in COMMANDS[level]),
        or_none=none if level == 3 else "",
        or_why=why if level == 3 else "",
        answers=(_answers_ko if korean else _answers)(closed, limit),
        hints=HINTS_KO[closed] if korean else HINTS[closed],
    )


HINTS = ("There are three, and the last says what is wrong:", "There are two:")
HINTS_KO = (
    "세 개가 있으며, 마지막 힌트는 무엇이 잘못되었는지 말해 줍니다.",
    "두 개가 있습니다.",
)
"""Of an open exercise, and of a closed one."""


def _answers(closed: bool, limit: int | None) -> str:
    count = f"You have {limit} answer{'s' * (limit > 1)}. " if limit else ""
    if closed:
        return f"{count}Whether it is right\n   is told when the exercises are graded:"
    return f"{count}A wrong one may be\n   followed by another; a right one stands:"


def _answers_ko(closed: bool, limit: int | None) -> str:
    count = f"답은 {limit}번까지 할 수 있습니다. " if limit else ""
    if closed:
        return f"{count}맞았는지는\n   채점할 때 알려 줍니다."
    return f"{count}틀리면 다시\n   답할 수 있고, 한 번 맞힌 답은 그대로 인정됩니다."
