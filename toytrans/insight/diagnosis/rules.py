"""What looks wrong in a run: each rule reads a snapshot and yields symptoms.

The bounds were set on measured runs, sound and faulty; EXPERIMENTS.md lists them.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from toytrans.config.sealed import is_sealed, opened
from toytrans.evaluation import wilson_interval
from toytrans.insight.diagnosis.fault_cards import CARDS
from toytrans.insight.diagnosis.snapshot import SETTLED, RunSnapshot
from toytrans.insight.diagnosis.symptoms import Symptom, symptom
from toytrans.training.run import Record

Rule = Callable[[RunSnapshot], Iterator[Symptom]]

ROUNDING = 0.02
"""The share of validation pairs whose decoding may differ from teacher forcing by rounding."""

GAP, OTHER, BY_HEART = 0.1, 3.0, 2.0
"""A validation loss counts as higher if it exceeds the training loss by GAP nats and by a factor:
OTHER for endless training pairs (faults give 50 and more), BY_HEART for a finite set."""

RISING = 1.2
"""The loss rises if its last quarter is above RISING times the third, plus GAP."""

LOST, NOISE = 0.05, 2.1
"""A loss of exact match counts above LOST and above three standard errors, which are at most
NOISE / root of the pairs."""

PADDED = 1.3
SLOWER, ENOUGH_RECORDS = 3.0, 40

IGNORANT = 0.95
"""Above this share of the entropy of target tokens, a loss owes nothing to the source."""

FALLING = 0.9
"""The loss still falls if its last quarter is below FALLING times the third."""

SPIKE, SPIKE_WINDOW = 20.0, 10
"""A spike is a gradient above SPIKE times the median of the SPIKE_WINDOW records before it."""

CLIMBED = 1.2
CLIPPED, HARD = 0.95, 3.0
"""The share of clipped gradients, and their distance above the limit. Sound runs clip most of
their gradients while they learn."""

DEAD = 1e-3
FEW_TOKENS = 200
MANY_EPOCHS = 20.0


# Any run -------------------------------------------------------------------------------------


def planted_fault(run: RunSnapshot) -> Iterator[Symptom]:
    """A fault that the config names."""
    if not is_sealed(run.config.fault) and (fault := opened(run.config.fault)):
        card, what = CARDS[fault], f"The config names a planted fault: {fault}."
        changes = {"what": what, "proofs": card.proofs, "cards": (fault,)}
        yield symptom(run.config, "fault", card.what, **changes)


def damaged_files(run: RunSnapshot) -> Iterator[Symptom]:
    """Checkpoints, records and environment that cannot be read."""
    sound = [checkpoint.step for checkpoint in run.checkpoints if not checkpoint.damage]
    for checkpoint in run.checkpoints:
        if checkpoint.damage:
            evidence = checkpoint.damage.partition("; ")[0]
            changes = {"what": f"The checkpoint of step {checkpoint.step} cannot be used."}
            if sound:
                nearest = max((step for step in sound if step < checkpoint.step), default=sound[0])
                changes["remedy"] = f"that of step {nearest} can be: --checkpoint {nearest}"
            yield symptom(run.config, "damaged_checkpoint", evidence, **changes)
    if run.records and not run.checkpoints and run.ending not in ("cut short", "diverged"):
        yield symptom(run.config, "no_checkpoint", f"step {run.step:,} was reached")
    if run.unread:
        lines = "1 line holds" if run.unread == 1 else f"{run.unread} lines hold"
        evidence = f"{lines} no record that can be used"
        yield symptom(run.config, "records_cut", evidence)
    if run.environment is None:
        yield symptom(run.config, "no_environment", "environment.json is missing or damaged")


def diverged(run: RunSnapshot) -> Iterator[Symptom]:
    """A loss or gradient that is not finite."""
    if not run.diverged:
        return
    broken = next(r for r in run.records if r["loss"] is None or r["grad_norm"] is None)
    before = [r for r in run.records if r["step"] < broken["step"]]
    last = f"; loss {before[-1]['loss']:.3g} at step {before[-1]['step']}" if before else ""
    where = f"by step {broken['step']}, rate {broken['lr']:.2g}{last}"
    train = run.config.train
    unclipped = {"remedy": f"lower train.lr {train.lr:g}, and set train.clip_norm: 1.0"}
    changes = unclipped if train.clip_norm is None else {}
    yield symptom(run.config, "diverged", f"loss or gradient not finite {where}", **changes)


def cut_short(run: RunSnapshot) -> Iterator[Symptom]:
    """A training that did not end, or was never evaluated."""
    train = run.config.train
    if not run.records:
        name = "no_records" if run.checkpoints else "untrained"
        yield symptom(run.config, name, "metrics.jsonl holds no record")
        return
    if run.ending == "cut short":
        evidence = (
            f"step {run.step:,} of {train.max_steps:,}, rate {run.records[-1]['lr']:.2g} of "
            f"{train.lr:.2g} at its peak"
        )
        yield symptom(run.config, "cut_short", evidence)
    if not run.evaluations and not run.diverged:
        evidence = (
            f"{len(run.records)} records, none with valid_exact_match; train.eval_every is "
            f"{train.eval_every}"
        )
        yield symptom(run.config, "never_evaluated", evidence)


# Any training with finite numbers ------------------------------------------------------------


def reads_the_future(run: RunSnapshot) -> Iterator[Symptom]:
    """More wrong outputs than wrong tokens.

    In a sound model the first wrong token of an output is wrong under teacher forcing too.
    """
    if run.targets is None or not run.evaluations:
        return
    last = run.evaluations[-1]
    outputs = 1 - last["valid_exact_match"]
    tokens = (1 - last["valid_token_accuracy"]) * run.targets.mean_tokens
    if outputs > tokens + ROUNDING:
        evidence = (
            f"{measured(last)}. Decoding alone, {outputs:.0%} of the outputs are wrong. Fed the "
            f"target, a pair has {tokens:.2f} wrong tokens. A sound model has at least one wrong "
            "token where it has a wrong output."
        )
        yield symptom(run.config, "reads_the_future", evidence)


def one_error_each(run: RunSnapshot) -> Iterator[Symptom]:
    """As many wrong tokens as wrong outputs, where random errors would leave more outputs right."""
    if run.targets is None or not run.evaluations:
        return
    last = run.evaluations[-1]
    exact, accuracy = last["valid_exact_match"], last["valid_token_accuracy"]
    outputs, tokens = 1 - exact, (1 - accuracy) * run.targets.mean_tokens
    chance = run.targets.by_chance(accuracy)
    if exact < chance / 2 and chance - exact > 0.2 and abs(tokens / outputs - 1) <= 0.2:
        evidence = (
            f"{measured(last)}. A pair has {tokens:.2f} wrong tokens. Errors at random places "
            f"would leave {chance:.2f} of the outputs right."
        )
        yield symptom(run.config, "one_error_each", evidence)


def worse_on_new_pairs(run: RunSnapshot) -> Iterator[Symptom]:
    """A validation loss far above the training loss.

    The training loss includes the steps just before the evaluation, so a training that diverges
    for a moment raises no alarm. Endless pairs cannot be memorized, so the cause is another one.
    """
    if not run.evaluations or run.targets is None or valid_is_longer(run):
        return
    last, endless = run.evaluations[-1], run.targets.train_size is None
    usual = run.loss_of(1 - SETTLED, 1, until=last["step"])
    train = max(usual, last["loss"] - run.floor)
    valid = last["valid_loss"] - run.valid_floor
    if valid < train + GAP or valid < (OTHER if endless else BY_HEART) * train:
        return
    evidence = f"training loss {train:.4f}, {measured(last)}, validation loss {valid:.4f}"
    if endless:
        yield symptom(run.config, "trained_on_something_else", evidence)
        return
    lowest = min(run.evaluations, key=lambda record: record["valid_loss"])
    evidence += f", lowest {lowest['valid_loss']:.4f} at step {lowest['step']:,}; "
    evidence += f"{run.targets.train_size:,} pairs, each seen {run.epochs:.0f} times"
    yield symptom(run.config, "overfitted", evidence)


def worse_on_test_pairs(run: RunSnapshot) -> Iterator[Symptom]:
    """A test exact match far below that of the validation pairs, at training lengths.

    The two 95% intervals are further apart than LOST. Lengths must be drawn alike in both.
    """
    tested, best = run.tested, run.best
    if tested is None or best is None or run.targets is None or not lengths_are_alike(run):
        return
    exact, pairs = best["valid_exact_match"], len(run.targets.tokens)
    valid = wilson_interval(round(exact * pairs), pairs)
    test = wilson_interval(round(tested.exact_match * tested.pairs), tested.pairs)
    if valid[0] - test[1] > LOST:
        evidence = (
            f"step {best['step']:,}: exact match {exact:.3f} ({valid[0]:.3f} to {valid[1]:.3f}) of "
            f"{pairs:,} validation pairs, {tested.exact_match:.3f} ({test[0]:.3f} to "
            f"{test[1]:.3f}) of {tested.pairs:,} test pairs of lengths "
            f"{_span(run.facts.train_length)}; 95% intervals"
        )
        yield symptom(run.config, "worse_on_test_pairs", evidence)


def got_worse(run: RunSnapshot) -> Iterator[Symptom]:
    """A last evaluation far below the best one, or a loss that rises."""
    best = run.best
    if best is not None and run.ending != "cut short":
        last, pairs = run.evaluations[-1], len(run.targets.tokens) if run.targets else 1
        lost = best["valid_exact_match"] - last["valid_exact_match"]
        if lost > max(LOST, NOISE / pairs**0.5):
            yield symptom(run.config, "best_long_before", f"{measured(best)}, {measured(last)}")
    if len(run.records) >= 8:
        third, end = run.loss_of(0.5, 0.75), run.settled_loss
        if end > RISING * third + GAP:
            evidence = f"{third:.3f} in the third quarter, {end:.3f} in the last"
            yield symptom(run.config, "loss_rises", evidence)


def untrained_places(run: RunSnapshot) -> Iterator[Symptom]:
    """Learned positions that no training source reached, but test data will."""
    config, longest = run.config, run.facts.train_length[1]
    spans = (config.data.valid_length, config.data.test_length)
    wanted = max((span[1] for span in spans if span), default=0)
    if config.model.positions == "learned" and wanted > longest:
        evidence = (
            f"trained to length {longest}, valid or test to {wanted}: the rows between keep "
            "their initial values"
        )
        yield symptom(config, "untrained_places", evidence)


def wasteful(run: RunSnapshot) -> Iterator[Symptom]:
    """Padding, emulated bf16, and steps that take longer and longer."""
    padding = median(record["padding"] for record in run.records)
    if padding > PADDED:
        yield symptom(run.config, "padding", f"{padding:.2f} padded tokens a real one")
    machine = run.environment or {}
    emulated = machine.get("device") == "cpu" and machine.get("bf16_products") is False
    if emulated and machine.get("precision") == "bf16":
        evidence = f"precision bf16 on {machine.get('processor')}"
        yield symptom(run.config, "emulated_bf16", evidence)
    pace = [
        (after["elapsed_s"] - before["elapsed_s"]) / (after["step"] - before["step"])
        for before, after in zip(run.records, run.records[1:], strict=False)
    ]
    if len(pace) >= ENOUGH_RECORDS:
        before, after = (1000 * median(pace[h]) for h in halves(pace))
        if after > SLOWER * before:
            evidence = f"{before:.0f} ms a step in the first half, {after:.0f} ms after"
            yield symptom(run.config, "slower", evidence)


# A training that did not solve its task ------------------------------------------------------


def learned_too_little(run: RunSnapshot) -> Iterator[Symptom]:
    """A loss that never fell, stopped falling, or was still falling."""
    end, unfinished = run.settled_loss, run.ending == "cut short"
    if run.targets is not None and end > IGNORANT * run.targets.entropy:
        entropy = run.targets.entropy
        evidence = f"loss {end:.2f}; token frequencies alone would give {entropy:.2f}"
        changes = {"severity": "odd"} if unfinished else {}
        yield symptom(run.config, "learned_nothing", evidence, **changes)
        return
    if len(run.records) < 8 or end < GAP or unfinished:
        return
    third = run.loss_of(0.5, 0.75)
    evidence = f"loss {third:.3f} in the third quarter, {end:.3f} in the last{_expected(run)}"
    if end < FALLING * third:
        yield symptom(run.config, "too_short", evidence)
    elif end <= RISING * third + GAP:
        yield symptom(run.config, "plateau", evidence)


def gradients(run: RunSnapshot) -> Iterator[Symptom]:
    """Gradients with spikes, gradients that are always clipped, and vanished gradients."""
    clip, steps = run.config.train.clip_norm, spikes(run.records)
    if steps and run.settled_loss > GAP:
        shown = ", ".join(f"{step:,}" for step in steps[:5]) + ", ..." * (len(steps) > 5)
        evidence = f"{len(steps)} records above {SPIKE:.0f} times those before: steps {shown}"
        yield symptom(run.config, "spikes", evidence)
    norms = [record["grad_norm"] for record in run.records[halves(run.records)[1]]]
    middle = median(norms)
    share = sum(norm > clip for norm in norms) / len(norms) if clip else 0.0
    if clip and share > CLIPPED and middle > HARD * clip:
        evidence = f"{share:.0%} of the second half's records above clip_norm {clip:g}"
        yield symptom(run.config, "clipped", f"{evidence}, median {middle:.2g}")
    if middle < DEAD and run.settled_loss > GAP:
        evidence = f"median norm {middle:.1e}, loss {run.settled_loss:.2f}"
        yield symptom(run.config, "vanished", evidence)


def rate(run: RunSnapshot) -> Iterator[Symptom]:
    """A warm-up that never ended, a rate that never decayed, a loss that climbed."""
    train, last = run.config.train, run.records[-1]["lr"]
    reached = f"rate {last:.2g} of {train.lr:.2g}"
    if run.step < (train.warmup_steps or 0):
        evidence = f"{run.step:,} steps of {train.warmup_steps:,} of warm-up, {reached}"
        yield symptom(run.config, "still_warming_up", evidence)
    elif run.ending == "max_seconds" and last > 0.5 * train.lr:
        evidence = f"step {run.step:,} of {train.max_steps:,}, {reached}"
        yield symptom(run.config, "stopped_before_decay", evidence)
    first = run.records[0]["loss"]
    highest = max(run.records, key=lambda record: record["loss"])
    if highest["loss"] > CLIMBED * first:
        evidence = f"{first:.2f} at first, {highest['loss']:.2f} at step {highest['step']:,}"
        yield symptom(run.config, "unstable", evidence)


def data(run: RunSnapshot) -> Iterator[Symptom]:
    """Unseen lengths, too few tokens a step, too few pairs."""
    if valid_is_longer(run) and not run.config.source_bos:
        trained, valid = _span(run.facts.train_length), _span(run.config.data.valid_length)
        evidence = f"trained {trained}, valid {valid}; only anchored positions reach further"
        yield symptom(run.config, "unseen_lengths", evidence)
    tokens = run.records[-1]["target_tokens"] / run.step
    if tokens < FEW_TOKENS:
        yield symptom(run.config, "few_tokens", f"{tokens:.0f} a step")
    if run.epochs > MANY_EPOCHS and run.targets is not None:
        evidence = f"{run.targets.train_size:,} pairs, each {run.epochs:.0f} times"
        yield symptom(run.config, "many_epochs", evidence)


def spikes(records: Sequence[Record]) -> list[int]:
    """Steps whose gradient is far above the median of the records before."""
    norms = [record["grad_norm"] for record in records]
    return [
        int(record["step"])
        for i, record in enumerate(records)
        if i >= SPIKE_WINDOW and norms[i] > SPIKE * median(norms[i - SPIKE_WINDOW : i])
    ]


def halves(items: Sequence[object]) -> tuple[slice, slice]:
    """The first and the second half of a sequence."""
    middle = len(items) // 2
    return slice(middle), slice(middle, None)


def measured(record: Record) -> str:
    """An evaluation as text."""
    return (
        f"step {record['step']:,}: exact match {record['valid_exact_match']:.3f}, token accuracy "
        f"{record['valid_token_accuracy']:.3f}"
    )


def valid_is_longer(run: RunSnapshot) -> bool:
    """Whether validation data has lengths outside the training lengths."""
    valid, (low, high) = run.config.data.valid_length, run.facts.train_length
    return valid is not None and (valid[0] < low or valid[1] > high)


def lengths_are_alike(run: RunSnapshot) -> bool:
    """Whether validation pairs and test pairs in range have the lengths of training.

    Files are taken to: other lengths are another distribution.
    """
    valid, test = run.config.data.valid_length, run.config.data.test_length
    if valid is None or test is None:
        return True
    low, high = run.facts.train_length
    return valid == (low, high) and test[0] <= low and test[1] >= high


def _expected(run: RunSnapshot) -> str:
    """The last evaluation, and the exact match that random errors would give."""
    if run.targets is None or not run.evaluations:
        return ""
    last = run.evaluations[-1]
    chance = run.targets.by_chance(last["valid_token_accuracy"])
    return f"; {measured(last)} (errors at random places would give {chance:.3f})"


def _span(length: tuple[int, int] | None) -> str:
    return f"{length[0]} to {length[1]}" if length else "?"


OF_ANY_RUN: tuple[Rule, ...] = (damaged_files, diverged, cut_short)
OF_TRAINING: tuple[Rule, ...] = (
    reads_the_future,
    one_error_each,
    worse_on_new_pairs,
    worse_on_test_pairs,
    got_worse,
    untrained_places,
    wasteful,
)
OF_FAILURE: tuple[Rule, ...] = (learned_too_little, gradients, rate, data)
