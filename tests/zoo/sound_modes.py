"""Sound models that do otherwise in train mode, or with some of their weights."""

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from . import sound
from .parts import WIDTH, Layer, Translator, real


def _of_layers(layer):
    model = type("Model", (Translator,), {"layer": layer})
    return model()


class _Experts(Layer):
    """Six experts, of which `top` work for a token."""

    top = 1

    def __init__(self, attention, cross):
        super().__init__(attention, cross)
        del self.fc1, self.fc2
        self.router = nn.Linear(WIDTH, 6)
        self.experts = nn.ModuleList(_Expert() for _ in range(6))

    def feed_forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(self.top, -1)
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            found = found + share * expert(x)
        return found


class _Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())


@sound()
def experts_one_for_each_token():
    """A mixture of experts of which some are never chosen."""
    return _of_layers(_Experts)


@sound()
def experts_one_that_nobody_takes():
    """The router's bias keeps tokens from two experts of six."""
    model = _of_layers(_Experts)
    for layer in (*model.encoder, *model.decoder):
        with torch.no_grad():
            layer.router.bias[:2] = -100.0
    return model


@sound()
def experts_two_for_each_token():
    """Two experts of six work for a token."""

    class Two(_Experts):
        top = 2

    return _of_layers(Two)


@sound("PASS or cannot judge")
def experts_with_noise_in_train_mode():
    """The router's scores are noisy while training."""

    class Noisy(_Experts):
        def feed_forward(self, x):
            noise = 0.1 * torch.randn_like(x) if self.training else 0.0
            return super().feed_forward(x + noise)

    return _of_layers(Noisy)


@sound()
class gradient_checkpointing(Translator):
    """Layers are computed again in the backward pass, in train mode."""

    class layer(Layer):
        def forward(self, *given):
            if self.training:
                return checkpoint(super().forward, *given, use_reentrant=False)
            return super().forward(*given)


@sound("PASS or cannot judge")
class layers_dropped_in_train_mode(Translator):
    """Stochastic depth: whole branches are left out at random while training."""

    class layer(Layer):
        def branch(self, x, norm, sublayer):
            if self.training and torch.rand(()) < 0.3:
                return x
            return super().branch(x, norm, sublayer)


@sound("PASS or cannot judge")
class noise_in_train_mode(Translator):
    """Noise on embeddings while training."""

    def embed_source(self, src):
        x = self.source(src)
        return x + 0.1 * torch.randn_like(x) if self.training else x


@sound("PASS or cannot judge")
class words_dropped_in_train_mode(Translator):
    """Source words are replaced by symbol 3 at random while training."""

    def embed_source(self, src):
        drop = (torch.rand(src.shape) < 0.2) & real(src) & self.training
        return self.source(torch.where(drop, 3, src))


@sound()
class frozen_batch_norm(Translator):
    """Batch norm that stays in eval mode."""

    def __init__(self):
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(WIDTH)
        self.batch_norm.running_mean.normal_()

    def train(self, mode=True):
        super().train(mode)
        self.batch_norm.eval()
        return self

    def embed_source(self, src):
        return self.batch_norm(self.source(src).mT).mT


@sound()
def weight_norm():
    """Weights by direction and length."""
    model = Translator()
    parametrizations.weight_norm(model.head)
    parametrizations.weight_norm(model.encoder[0].fc1)
    return model


@sound("PASS or cannot judge")
def spectral_norm():
    """Spectral norm, whose estimate moves at each call in train mode."""
    model = Translator()
    parametrizations.spectral_norm(model.encoder[0].fc1)
    return model.eval()


@sound()
def forward_is_a_closure():
    """A replaced forward calls the old one: a copy of the model would run the model's own parts,
    which are in train mode."""
    model = Translator()
    model.forward = lambda src, tgt, forward=model.forward: forward(src, tgt)
    return model.train()
