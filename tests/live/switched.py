"""What PyTorch computes where the page switches parts of a model off: the real transformer, with
its masks, its scale, its positions or one of its heads exchanged for a while."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from toytrans.inspection.record import attentions
from toytrans.model.masks import MaskMaker, causal_mask
from toytrans.model.positions.base import Positions
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, Vocabulary

PADS = ("encoderPads", "decoderPads", "crossPads")
SWITCHES = (*PADS, "causal", "scale", "places")
"""What model.js can switch off, by its names."""

STATES: dict[str, tuple[str, ...]] = {
    "everything": (),
    **{f"no {switch}": (switch,) for switch in SWITCHES},
    "no pads": PADS,
    "nothing": SWITCHES,
}


class SomeMasks(MaskMaker):
    """The masks of a model, some of them left open."""

    def __init__(self, pad_mask: str, off: tuple[str, ...]) -> None:
        super().__init__(pad_mask)  # type: ignore[arg-type]
        self.off = off

    def encoder_self(self, src: Tensor) -> Tensor:
        return self._open(super().encoder_self(src), "encoderPads")

    def decoder_self(self, tgt_in: Tensor) -> Tensor:
        mask = self._open(self._without_pads(tgt_in, tgt_in), "decoderPads")
        return mask & self._open(causal_mask(tgt_in.shape[1])[None, None], "causal")

    def cross(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        return self._open(super().cross(src, tgt_in), "crossPads")

    def _open(self, mask: Tensor, switch: str) -> Tensor:
        return torch.ones_like(mask) if switch in self.off else mask


@contextlib.contextmanager
def switched(model: Transformer, off: tuple[str, ...], head_off: str = "") -> Iterator[None]:
    """A model with some parts off until the block ends. head_off: "cross.2.1", as in model.js."""
    modules = set(attentions(model).values())
    before = model.masks, model.positions, model.cross_positions
    scales = {module: module.scale for module in modules}
    model.masks = SomeMasks(model.settings.pad_mask, off)
    if "places" in off:
        model.positions = model.cross_positions = Positions(model.settings, Vocabulary(()))
    for module in modules:
        module.scale = 1.0 if "scale" in off else module.scale
    hooks = contextlib.ExitStack()
    if head_off:
        part, layer, head = head_off.split(".")
        module = attentions(model)[part, int(layer)]  # type: ignore[index]
        width = model.settings.d_model // model.settings.n_heads
        its_own = slice((int(head) - 1) * width, int(head) * width)

        def silence(_: object, args: tuple[Tensor]) -> Tensor:
            outputs = args[0].clone()
            outputs[..., its_own] = 0
            return outputs

        hooks.callback(module.out_proj.register_forward_pre_hook(silence).remove)
    with hooks:
        try:
            yield
        finally:
            model.masks, model.positions, model.cross_positions = before
            for module, scale in scales.items():
                module.scale = scale


@torch.no_grad()
def greedy(model: Transformer, src: Tensor, limits: list[int]) -> list[list[int]]:
    """The likeliest token at every step, the whole prefix read anew each time: src (B, S). Rows end
    with EOS, or at their limits."""
    tokens, memory = torch.full((len(src), 1), BOS_ID), model.encode(src)
    while tokens.shape[1] <= max(limits) and not bool((tokens == EOS_ID).any(1).all()):
        logits = model.decode(tokens, memory, src)[:, -1]
        newest = logits[:, EOS_ID:].argmax(-1, keepdim=True) + EOS_ID
        tokens = torch.cat((tokens, newest), 1)
    rows = []
    for ids, limit in zip(tokens[:, 1:].tolist(), limits, strict=True):
        ids = ids[:limit]
        rows.append(ids[: ids.index(EOS_ID) + 1] if EOS_ID in ids else ids)
    return rows
