"""Sound losses, batches and pads of other conventions."""

import torch
from torch import nn
from torch.nn import functional as F

from . import END, PAD, START, SYMBOLS, sound
from .parts import WIDTH, Embedding, Translator, triangle, waves


def filled(rows, value=PAD, left=False, width=0):
    """Ragged rows to a tensor (N, L)."""
    width = max(width, 1, *(len(row) for row in rows))
    fill = [[value] * (width - len(row)) for row in rows]
    pairs = zip(rows, fill, strict=True)
    return torch.tensor([pad + row if left else row + pad for row, pad in pairs])


def make_batch(pairs, **options):
    """The usual batch: the source ends with the end, labels are the next inputs."""
    src = filled([s + [END] for s, _ in pairs], **options)
    tgt_in = filled([[START, *t] for _, t in pairs], **options)
    return src, tgt_in, filled([[*t, END] for _, t in pairs], **options)


def mean_loss(logits, labels, **options):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, **options)


def given(**arguments):
    """A plain model with a loss and a batch maker."""
    return {"model": Translator(), "batch": make_batch, "loss": mean_loss} | arguments


@sound()
def cross_entropy():
    """The usual loss and batch."""
    return given()


@sound()
def cross_entropy_in_single_precision():
    """The loss casts logits to fp32."""
    return given(loss=lambda logits, labels: mean_loss(logits.float(), labels))


@sound()
def label_smoothing():
    """A tenth of each label is spread over the vocabulary."""
    return given(loss=lambda logits, labels: mean_loss(logits, labels, label_smoothing=0.1))


@sound()
def class_weights():
    """Rare classes weigh more, and the mean is by weight."""
    weight = torch.linspace(0.5, 2, SYMBOLS)
    return given(loss=lambda logits, labels: mean_loss(logits, labels, weight=weight.to(logits)))


@sound()
def class_weights_with_a_heavy_end():
    """The end weighs five times as much."""
    weight = torch.ones(SYMBOLS)
    weight[END] = 5.0
    return given(loss=lambda logits, labels: mean_loss(logits, labels, weight=weight.to(logits)))


@sound()
def z_loss():
    """The squared log of the softmax's denominator is added at real labels."""

    def loss(logits, labels):
        keep = labels != PAD
        return mean_loss(logits, labels) + 1e-2 * (logits.logsumexp(-1)[keep] ** 2).mean()

    return given(loss=loss)


@sound()
def sum_over_count():
    """The sum, divided by the number of real labels."""

    def loss(logits, labels):
        keep = labels != PAD
        each = F.cross_entropy(logits.mT, labels, reduction="none")
        return (each * keep).sum() / keep.sum()

    return given(loss=loss)


@sound()
def focal_loss():
    """Easy labels weigh less."""

    def loss(logits, labels):
        each = F.cross_entropy(logits.mT, labels, reduction="none")[labels != PAD]
        return ((1 - (-each).exp()) ** 2 * each).mean()

    return given(loss=loss)


@sound()
def negative_log_likelihood():
    """log_softmax and nll_loss."""

    def loss(logits, labels):
        return F.nll_loss(logits.log_softmax(-1).mT, labels, ignore_index=PAD)

    return given(loss=loss)


class _Sure(Translator):
    """Its logits are far apart."""

    def forward(self, src, tgt):
        return 30 * super().forward(src, tgt)


@sound()
def label_smoothing_of_a_sure_model():
    """Where a model is surer than the smoothed label, the loss falls as it becomes less so."""
    smoothed = lambda a, b: mean_loss(a, b, label_smoothing=0.3)  # noqa: E731
    return given(model=_Sure(), loss=smoothed)


@sound()
def probabilities_and_their_logarithm():
    """The model gives probabilities, and the loss takes their logarithm."""

    class Model(Translator):
        def forward(self, src, tgt):
            return super().forward(src, tgt).softmax(-1)

    def loss(probabilities, labels):
        return F.nll_loss(probabilities.log().mT, labels, ignore_index=PAD)

    return given(model=Model(), loss=loss)


@sound()
def log_probabilities_and_nll():
    """The model gives log-probabilities, and the loss is nll_loss."""

    class Model(Translator):
        def forward(self, src, tgt):
            return super().forward(src, tgt).log_softmax(-1)

    return given(model=Model(), loss=lambda a, b: F.nll_loss(a.mT, b, ignore_index=PAD))


@sound()
def log_softmax_twice():
    """The model gives log-probabilities, and the loss is cross entropy, which leaves them so."""

    class Model(Translator):
        def forward(self, src, tgt):
            return super().forward(src, tgt).log_softmax(-1)

    return given(model=Model())


@sound()
def one_against_the_rest():
    """Binary cross entropy of each symbol."""

    def loss(logits, labels):
        keep = labels != PAD
        wanted = F.one_hot(labels, logits.shape[-1]).to(logits)[keep]
        return F.binary_cross_entropy_with_logits(logits[keep], wanted)

    return given(loss=loss)


@sound()
def probabilities_one_against_the_rest():
    """The model gives a probability for each symbol, and the loss refuses other numbers."""

    class Model(Translator):
        def forward(self, src, tgt):
            return super().forward(src, tgt).sigmoid()

    def loss(probabilities, labels):
        keep = labels != PAD
        wanted = F.one_hot(labels, probabilities.shape[-1]).to(probabilities)[keep]
        return F.binary_cross_entropy(probabilities[keep], wanted)

    return given(model=Model(), loss=loss)


@sound()
def a_margin():
    """The hinge loss of Crammer and Singer."""
    return given(loss=lambda a, b: F.multi_margin_loss(a[b != PAD], b[b != PAD]))


@sound()
def one_less_the_probability():
    """A loss with a bound, which mistaken labels harm less."""

    def loss(logits, labels):
        return 1 - logits.softmax(-1).gather(-1, labels[..., None])[labels != PAD].mean()

    return given(loss=loss)


@sound()
def a_term_of_the_weights():
    """The squared norm of the weights is a part of the loss."""
    model = Translator()

    def loss(logits, labels):
        return mean_loss(logits, labels) + 1e-3 * sum((w**2).sum() for w in model.parameters())

    return given(model=model, loss=loss)


@sound()
def a_loss_module():
    """nn.CrossEntropyLoss on logits turned to (B, V, T)."""
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    return given(loss=lambda logits, labels: criterion(logits.mT, labels))


@sound()
def labels_of_minus_one_hundred():
    """Labels are -100 where inputs are pads."""

    def batch(pairs):
        src, tgt_in, tgt_out = make_batch(pairs)
        return src, tgt_in, tgt_out.masked_fill(tgt_out == PAD, -100)

    return given(batch=batch, loss=lambda a, b: F.cross_entropy(a.mT, b, ignore_index=-100))


@sound("PASS or cannot judge")
def pad_that_is_the_end():
    """The pad is the end, as in GPT-2's vocabulary, and labels of -100 tell them apart."""

    def batch(pairs):
        src = filled([s + [END] for s, _ in pairs], END)
        tgt_in = filled([[START, *t] for _, t in pairs], END)
        return src, tgt_in, filled([[*t, END] for _, t in pairs], -100)

    class Model(Translator):
        def source_mask(self, src, number):
            after = (src == END).cumsum(1) - (src == END).long()
            return (after == 0)[:, None, None]

        def cross_mask(self, src, tgt, number):
            return self.source_mask(src, number)

    loss = lambda a, b: F.cross_entropy(a.mT, b, ignore_index=-100)  # noqa: E731
    return given(model=Model(), batch=batch, loss=loss, pad_id=END)


@sound()
def rows_sorted_by_the_maker():
    """The batch maker sorts rows by the source's length."""

    def batch(pairs):
        return make_batch(sorted(pairs, key=lambda pair: -len(pair[0])))

    return given(batch=batch)


@sound()
def widths_of_eight():
    """Batches are padded to a multiple of eight."""

    def batch(pairs):
        longest = max(max(len(s), len(t)) for s, t in pairs) + 1
        return make_batch(pairs, width=longest + -longest % 8)

    return given(batch=batch)


@sound()
def a_fixed_width():
    """Batches are always 70 places wide, longer ones as they are."""
    return given(batch=lambda pairs: make_batch(pairs, width=70))


@sound()
def start_on_the_source_too():
    """Sources begin with the start and end with the end."""

    def batch(pairs):
        src = filled([[START, *s, END] for s, _ in pairs])
        return src, *make_batch(pairs)[1:]

    return given(batch=batch)


@sound()
def no_end_on_the_source():
    """Sources carry no end; an empty one is a row of pads."""

    def batch(pairs):
        return filled([s for s, _ in pairs]), *make_batch(pairs)[1:]

    return given(batch=batch)


@sound()
def a_language_in_front():
    """Targets begin with a language id behind the start, as in mBART."""

    def batch(pairs):
        src, _, _ = make_batch(pairs)
        tgt_in = filled([[START, 3, *t] for _, t in pairs])
        return src, tgt_in, filled([[3, *t, END] for _, t in pairs])

    return given(batch=batch)


# Pads ----------------------------------------------------------------------------------------


class _AnyPads(Translator):
    """Pads may stand on either side; places count what is real; another id may be the pad."""

    source_pad, target_pad = PAD, PAD

    def __init__(self):
        super().__init__()
        self.source, self.target = _Counted(), _Counted()
        self.source.pad, self.target.pad = self.source_pad, self.target_pad

    def source_mask(self, src, number):
        return (src != self.source_pad)[:, None, None]

    def cross_mask(self, src, tgt, number):
        return self.source_mask(src, number)

    def target_mask(self, tgt, number):
        return triangle(tgt.shape[1]) & (tgt != self.target_pad)[:, None, None]


class _Counted(Embedding):
    def places(self, ids):
        return waves(((ids != self.pad).cumsum(1) - 1).clamp(min=0))


@sound(pad_side="left")
class left_pads(_AnyPads):
    """Pads to the left on both sides, which is told."""


@sound()
class right_pads_by_count(_AnyPads):
    """The same model with pads to the right."""


@sound("PASS or cannot judge")
def left_padded_batches():
    """A batch maker that pads to the left, targets too."""
    return given(model=_AnyPads(), batch=lambda pairs: make_batch(pairs, left=True))


@sound(pad_side="left")
def left_padded_batches_that_are_told():
    """The same, and pad_side is told."""
    return given(model=_AnyPads(), batch=lambda pairs: make_batch(pairs, left=True))


@sound("PASS or cannot judge")
def left_padded_sources():
    """Sources are padded to the left, targets to the right."""

    def batch(pairs):
        return filled([s + [END] for s, _ in pairs], left=True), *make_batch(pairs)[1:]

    return given(model=_AnyPads(), batch=batch)


class _AnotherPad(_AnyPads):
    source_pad = 19


@sound(source_pad_id=19)
class another_pad_on_the_source(_AnotherPad):
    """The source's pad is 19, the target's 0, which is told."""


@sound("PASS or cannot judge")
def another_pad_on_the_source_in_batches():
    """The source's pad is 19 by the batch maker."""

    def batch(pairs):
        return filled([s + [END] for s, _ in pairs], 19), *make_batch(pairs)[1:]

    return given(model=_AnotherPad(), batch=batch, source_pad_id=19)


@sound(pad_id=19)
class the_last_id_pads(_AnyPads):
    """The pad is the last id of the vocabulary, as in Marian."""

    source_pad = target_pad = 19


@sound(start_id=0)
class start_that_is_the_pad(Translator):
    """Decoding starts with the pad id, as in T5 and Marian; place 0 is open all the same."""

    def target_mask(self, tgt, number):
        keep = tgt != PAD
        keep[:, 0] = True
        return triangle(tgt.shape[1]) & keep[:, None, None]


@sound()
class zeroed_pads(Translator):
    """padding_idx, and outputs at pads set to zero."""

    def __init__(self):
        super().__init__()
        self.source.tokens = nn.Embedding(SYMBOLS, WIDTH, padding_idx=PAD)

    def forward(self, src, tgt):
        keep = tgt != PAD
        keep[:, 0] = True
        return super().forward(src, tgt) * keep[..., None]


@sound()
class pads_that_answer_nan(Translator):
    """Outputs at the target's pads are NaN by design; nobody reads them."""

    def forward(self, src, tgt):
        pads = tgt == PAD
        pads[:, 0] = False
        return super().forward(src, tgt).masked_fill(pads[..., None], torch.nan)


@sound()
class removed_pads(Translator):
    """Outputs are computed at real target places alone and put back, as unpadded kernels do."""

    def forward(self, src, tgt):
        keep = tgt != PAD
        keep[:, 0] = True
        y = self.decode(src, tgt, self.encode(src))
        logits = y.new_zeros(*tgt.shape, SYMBOLS)
        return logits.masked_scatter(keep[..., None], self.head(y[keep]))


class _Spelled(Embedding):
    """A word is the sum of its characters; character 0 fills up, and has the pad's number."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(SYMBOLS, WIDTH)
        spelling = torch.arange(SYMBOLS)[:, None] // torch.tensor([1, 5, 9])
        self.register_buffer("characters", spelling)

    def forward(self, ids):
        return self.tokens(self.characters[ids]).sum(-2) + self.places(ids)


@sound()
def words_made_of_characters():
    """Tables of characters are asked for 0 where a word is short, not where a pad stands."""
    model = Translator()
    model.source, model.target = _Spelled(), _Spelled()
    return {"model": model, "embedding": (model.source, model.target)}
