"""Sound losses, batches and pads of other conventions."""

import torch
from torch import nn
from torch.nn import functional as F

from . import END, PAD, START, SYMBOLS, sound
from .parts import WIDTH, Embedding, Translator


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
def one_against_the_rest():
    """Binary cross entropy of each symbol."""

    def loss(logits, labels):
        keep = labels != PAD
        wanted = F.one_hot(labels, logits.shape[-1]).to(logits)[keep]
        return F.binary_cross_entropy_with_logits(logits[keep], wanted)

    return given(loss=loss)


@sound("PASS or cannot judge")
def pad_that_is_the_end():
    """The pad is the end, as in GPT-2's vocabulary, and labels of -100 tell them apart."""

    def batch(pairs):
        src = filled([s + [END] for s, _ in pairs], END)
        tgt_in = filled([[START, *t] for _, t in pairs], END)
        return src, tgt_in, filled([[*t, END] for _, t in pairs], -100)

    class Model(Translator):
        def keys(self, src, number):
            after = (src == END).cumsum(1) - (src == END).long()
            return (after == 0)[:, None, None]

    loss = lambda a, b: F.cross_entropy(a.mT, b, ignore_index=-100)  # noqa: E731
    return given(model=Model(), batch=batch, loss=loss, pad_id=END)


class _Spelled(Embedding):
    """A word is the sum of its characters; character 0 fills up, and has the pad's number."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(SYMBOLS, WIDTH)
        spelling = torch.arange(SYMBOLS)[:, None] // torch.tensor([1, 5, 9])
        self.register_buffer("characters", spelling)

    def forward(self, ids):
        return self.tokens(self.characters[ids]).sum(-2) + self.places(ids)


@sound(checks="pads")
def words_made_of_characters():
    """Tables of characters are asked for 0 where a word is short, not where a pad stands."""
    model = Translator()
    model.source, model.target = _Spelled(), _Spelled()
    return {"model": model, "embedding": (model.source, model.target)}
