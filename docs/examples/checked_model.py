# checked_model.py
import torch


def build():
    table = torch.nn.Embedding(50, 50)

    def model(src, tgt_in):  # (B, S), (B, T) -> (B, T, V), batch first
        weights = 1.0 / torch.arange(1, src.shape[1] + 1)
        source = (table(src) * (src != 0)[..., None] * weights[:, None]).sum(1, keepdim=True)
        return table(tgt_in).cumsum(1) + source  # each place sees itself and its past

    return {"model": model, "pad_id": 0, "vocabulary_size": 50}
