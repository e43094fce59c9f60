"""The model of a config: the transformer, perhaps with a fault in it, or a model of the user's."""

from pkgutil import resolve_name

from toytrans.config.faults import FAULTS, decoded_fault, openly_named_fault
from toytrans.config.schema import ModelSettings, Settings
from toytrans.errors import BadKey, UserError
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.references import shown
from toytrans.tokens import Vocabulary


def build_model(settings: Settings, vocabulary: Vocabulary) -> Seq2Seq:
    """The model of a run, with its fault in it: in fp64 where it is trained so, else in fp32.

    Raises UserError where the user's own model cannot be built, or a fault would change nothing.
    """
    model = build_sound_model(settings.model, vocabulary)
    if settings.fault is not None:
        plant(settings.fault, model)
    return model.double() if settings.train.precision == "fp64" else model


def plant(fault: str, model: Seq2Seq) -> None:
    """Break a model in place. Faults of the batch or of the loss leave it as it is.

    Raises UserError for a fault without effect, and for a model that is no transformer.
    """
    check_fault(fault, model.settings)
    if name := decoded_fault(fault):
        resolve_name(FAULTS[name])().plant(as_transformer(model))


def check_fault(fault: str | None, settings: ModelSettings) -> None:
    """Raise BadKey if a fault has no effect on a model. A hidden one is not refused for that,
    because the error would tell its name."""
    if name := openly_named_fault(fault):
        reason = resolve_name(FAULTS[name])().no_effect(settings)
        if reason:
            raise BadKey("fault", f"{name} {reason}")


def build_sound_model(settings: ModelSettings, vocabulary: Vocabulary) -> Seq2Seq:
    """The transformer with fresh weights, or the user's own model. Raises UserError where the
    user's code is not one."""
    if settings.class_ is not None:
        from toytrans.model.own import build_own_model

        return build_own_model(settings, settings.class_, len(vocabulary))
    return Transformer(settings, vocabulary)


def as_transformer(model: Seq2Seq) -> Transformer:
    """A model, for whoever asks for its layers. Raises UserError for one that is no transformer."""
    if not isinstance(model, Transformer):
        raise UserError(
            f"{shown(model.settings.class_ or '')}: a model of your own, whose layers this command "
            "does not know; train, eval, translate and check do without"
        )
    return model
