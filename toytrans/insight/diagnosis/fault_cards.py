"""The catalogue of faults: what each is, its symptom, the proofs that fail, and reports of it.

Symptoms were measured with `toytrans train --break FAULT` on configs/reverse_sinusoidal.yaml (and
on configs/reverse.yaml where named) with three seeds each; EXPERIMENTS.md lists the runs.
"""

from dataclasses import dataclass

from toytrans.choices import FaultName


@dataclass(frozen=True)
class FaultCard:
    """proofs: letters of the proofs that fail. threads: public reports, repository#number."""

    what: str
    symptom: str
    proofs: tuple[str, ...]
    threads: str


CARDS: dict[FaultName, FaultCard] = {
    "no_causal": FaultCard(
        "the decoder's self-attention masks pads but not the future",
        "training and validation loss fall to 0.0000 (0.01 to 0.02 after a quarter of the "
        "steps, sound runs 0.6 to 1.2), token accuracy 1.000, exact match 0.000: decoding has "
        "no future to copy from",
        ("b", "e", "f"),
        "jadore801120/attention-is-all-you-need-pytorch#19, pytorch/tutorials#719, "
        "lucidrains/x-transformers#102",
    ),
    "triangle_off_by_one": FaultCard(
        "output t may attend to decoder inputs 0 .. t + 1; the last one is its own label",
        "as without a causal mask: loss 0.0000 to 0.0002, token accuracy 1.000, exact match "
        "0.000; the answer is one place ahead",
        ("b", "e", "f"),
        "pytorch/tutorials#2250, TransformerLensOrg/TransformerLens#284, pytorch/pytorch#103082",
    ),
    "pad_visible": FaultCard(
        "pads are not masked in encoder, decoder and cross-attention",
        "the training loss looks sound (0.0007 to 0.0017), validation loss is 0.7 to 0.9 and "
        "exact match 0.73 to 0.78, because other batches have other pads. The anchored model "
        "of `reverse` attends near its anchor, away from pads, and reaches 1.000",
        ("a", "c", "d", "e"),
        "OpenNMT/OpenNMT-py#137, facebookresearch/fairseq#3078, huggingface/transformers#22707",
    ),
    "mask_flipped": FaultCard(
        "every mask is inverted: visible where it should be masked",
        "loss 0.0000 earlier than in any sound run, token accuracy 1.000, exact match 0.000: "
        "the decoder reads only the future",
        ("a", "b", "c", "d", "e", "f"),
        "pytorch/pytorch#29546, pytorch/pytorch#120488, lucidrains/x-transformers#253",
    ),
    "labels_not_shifted": FaultCard(
        "the label at place t is the decoder input at place t, not the next one",
        "training loss 0.0000 within a quarter of the steps, validation loss 22, exact match "
        "0.000; decoding repeats one token",
        ("l", "m"),
        "pytorch/tutorials#719, lucidrains/x-transformers#102",
    ),
    "pad_is_eos": FaultCard(
        "pad and end share an id, so the loss ignores the end like a pad",
        "the training loss looks sound (0.0004 to 0.0007), exact match is 0.000: outputs never "
        "end; token accuracy 0.91, only the ends are wrong",
        ("m",),
        "huggingface/trl#6357, mlabonne/llm-course#33, huggingface/alignment-handbook#127",
    ),
    "wrong_start": FaultCard(
        "training starts targets with EOS, decoding with BOS",
        "the training loss looks sound (0.0004 to 0.0008), validation loss 3.2 to 3.4, exact "
        "match 0.000. The anchored model of `reverse` does not need the start and reaches "
        "1.000",
        ("m",),
        "huggingface/transformers#14439, harvardnlp/annotated-transformer#127",
    ),
    "wrong_scale": FaultCard(
        "scores are divided by the root of d_model, not of the head's width",
        "none here: loss 0.0004 to 0.0012, exact match 1.000; the weights learn to compensate",
        ("k",),
        "lucidrains/vit-pytorch#65, karpathy/ng-video-lecture#6, "
        "jadore801120/attention-is-all-you-need-pytorch#42",
    ),
    "no_scale": FaultCard(
        "scores are not divided at all",
        "slower at first (loss 1.7 to 1.9 after a quarter of the steps, sound runs 0.6 to "
        "1.2), then compensated: exact match 0.992 to 0.999",
        ("k",),
        "delzac/cntkx#10",
    ),
    "no_position": FaultCard(
        "the encoder has no information about the order of its tokens",
        "the loss stays at 2.0 to 2.2, token accuracy 0.34, exact match 0.09: only short "
        "sources, whose order matters little, are right",
        ("j",),
        "wenliangdai/Multimodal-End2end-Sparse#16, DaoyuanLi2816/Molecule-Generator#23",
    ),
    "loss_on_pads": FaultCard(
        "the loss counts pad labels and divides by all places",
        "none here except a lower initial loss in `reverse`, since pads are easy: exact match "
        "0.999 to 1.000; batches of similar lengths have few pads",
        ("g", "h"),
        "lucidrains/DALLE-pytorch#57, 01-ai/Yi#110",
    ),
    "batch_mean_of_means": FaultCard(
        "the loss is the mean over rows of each row's mean, so short rows weigh more",
        "none here: loss 0.0005 to 0.0013, exact match 0.997 to 0.999; rows of a batch have "
        "similar lengths, so the mean of means is near the mean",
        ("n",),
        "OpenNMT/OpenNMT-py#2209, huggingface/transformers#34191",
    ),
    "no_residual": FaultCard(
        "sub-layers replace their input; x is not added",
        "the loss stays at 3.4 to 3.7 and exact match at 0.000. The anchored model of "
        "`reverse` knows where to attend and reaches 1.000",
        ("o",),
        "kyegomez/BitNet#32",
    ),
    "no_norm": FaultCard(
        "the model has no layer normalization",
        "little with two layers: exact match 0.998 to 0.999; with six (scripts/lessons.py) the "
        "model learns nothing",
        ("p",),
        "iCog-Labs-Dev/PC-Transformers#46",
    ),
    "no_feed_forward": FaultCard(
        "layers have only attention",
        "little, since reversing only moves tokens: exact match 0.997",
        ("q",),
        "fredzzhang/upt#13",
    ),
}
