"""One file of weights with all that is needed to rebuild the model: see plain.py."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from toytrans import __version__
from toytrans.data.pairs import pad_rows
from toytrans.exports import Rows, plain
from toytrans.training.run import Run


def weights_of(run: Run) -> dict[str, Tensor]:
    """The weights in fp32 by name, a tied table once; and the places of random positions."""
    weights = {
        name: values.detach().float().cpu().contiguous()
        for name, values in run.model.named_parameters()
    }
    if run.settings.model.random_positions:
        weights["positions.fixed"] = run.model.get_buffer("positions.fixed").cpu()
    return weights


def about(run: Run) -> dict[str, Any]:
    """What plain.py needs besides weights."""
    return {
        "toytrans": __version__,
        "step": run.step,
        "model": run.settings.model.model_dump(mode="json"),
        "symbols": run.vocabulary.symbols,
        "separators": run.vocabulary.separator_ids,
        "source_bos": run.settings.model.source_bos,
        "target_growth": run.facts.target_growth,
    }


def write(run: Run, path: Path) -> None:
    """Write the file."""
    metadata = {"format": "pt", "toytrans": json.dumps(about(run), ensure_ascii=False)}
    path.write_bytes(safetensors.torch.save(weights_of(run), metadata))


def decode(path: Path, src: Rows, most: int) -> Rows:
    """Decode with plain.py."""
    model = plain.load(str(path))
    return plain.greedy(model, pad_rows(src)[0], most).tolist()
