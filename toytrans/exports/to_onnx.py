"""A folder for ONNX runtimes: encoder.onnx, decoder.onnx and model.json.

encoder: src (B, S) -> memory (B, S, D)
decoder: tgt (B, T), memory (B, S, D), src (B, S) -> logits of the next token (B, V)

The decoder reads the whole prefix at every step. The graph is that of plain.py.
"""

import contextlib
import json
import logging
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from toytrans.data.pairs import pad_rows
from toytrans.exports import Rows
from toytrans.exports.plain import PlainTransformer
from toytrans.exports.to_safetensors import about, weights_of
from toytrans.tokens import BOS_ID, EOS_ID
from toytrans.training.run import Run


class _Part(nn.Module):
    """What encoder.onnx computes of one input, and decoder.onnx of three."""

    def __init__(self, model: PlainTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model.decode(*inputs)[:, -1] if len(inputs) > 1 else self.model.encode(*inputs)


def write(run: Run, path: Path) -> None:
    """Write the folder. The graphs take any number of rows and places."""
    path.mkdir(exist_ok=True)
    facts = about(run)
    model = PlainTransformer(weights_of(run), facts).eval()
    src, tgt = torch.full((2, 5), EOS_ID), torch.full((2, 3), BOS_ID)
    rows, sources, targets = (torch.export.Dim(name, min=1) for name in ("rows", "src", "tgt"))
    of_src, of_tgt = {0: rows, 1: sources}, {0: rows, 1: targets}
    parts = {
        "encoder": ("memory", {"src": (src, of_src)}),
        "decoder": (
            "logits",
            {"tgt": (tgt, of_tgt), "memory": (model.encode(src), of_src), "src": (src, of_src)},
        ),
    }
    # remarks on packages and axes that do not matter here
    with contextlib.ExitStack() as quiet, warnings.catch_warnings(action="ignore"), torch.no_grad():
        logging.disable(logging.WARNING)
        quiet.callback(logging.disable, logging.NOTSET)
        for name, (output, given) in parts.items():
            inputs, shapes = zip(*given.values(), strict=True)
            graph = torch.export.export(_Part(model).eval(), inputs, dynamic_shapes=(shapes,))
            torch.onnx.export(
                graph,
                f=path / f"{name}.onnx",
                input_names=list(given),
                output_names=[output],
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    (path / "model.json").write_text(json.dumps(facts, ensure_ascii=False, indent=1) + "\n")


def decode(path: Path, rows: Rows, most: int) -> Rows:
    """Decode with onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    encode, step = (
        onnxruntime.InferenceSession(path / f"{name}.onnx", options)
        for name in ("encoder", "decoder")
    )
    src = pad_rows(rows)[0].numpy()
    memory = encode.run(None, {"src": src})[0]
    tgt = np.full((len(src), 1), BOS_ID)
    while tgt.shape[1] <= most and not (tgt == EOS_ID).any(1).all():
        logits = step.run(None, {"tgt": tgt, "memory": memory, "src": src})[0]
        newest = logits[:, EOS_ID:].argmax(-1) + EOS_ID
        tgt = np.concatenate((tgt, newest[:, None]), 1)
    return tgt[:, 1:].tolist()
