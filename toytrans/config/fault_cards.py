"""The catalogue of faults: what each is, its symptom, the checks that fail, and reports of it.

The symptoms were measured with five seeds each; docs/teaching.md has the table.
"""

from typing import NamedTuple

TRAIN = "toytrans train --config textbook"
MIXED = (
    f"{TRAIN} --set data.symbols=4 --set data.train_examples=512 --set data.train_length=[1,8] "
    "--set data.batch_tokens=10240 --set train.max_steps=60 --break FAULT"
)
"""All lengths in one batch, which is full of pads."""
PLANTED = "toytrans check RUN --break FAULT, of a sound RUN"
"""The symptoms are those of sound textbook runs whose weights are read with the fault, as after a
faulty port. Training with the fault does little harm."""


class FaultCard(NamedTuple):
    """checks: those that fail. threads: public reports, repository#number. shown_by: a command
    that shows the harm of FAULT."""

    what: str
    symptom: str
    checks: tuple[str, ...]
    threads: str
    shown_by: str = f"{TRAIN} --break FAULT"

    def rows(self, name: str) -> dict[str, str]:
        """What there is to say of the fault of a name, by heading."""
        return {
            "what": self.what,
            "shown by": self.shown_by.replace("FAULT", name),
            "symptom": self.symptom,
            "found by": ", ".join(self.checks),
            "met in": self.threads,
            "ranges": "of five seeds; another seed can lie outside",
        }


CARDS: dict[str, FaultCard] = {
    "no_causal": FaultCard(
        "the decoder's self-attention masks pads but not the future",
        "at the last step (`toytrans eval RUN --checkpoint last`) losses are 0.001 to 0.002 and "
        "token accuracy is 1.000, as in a sound run; but exact match is 0.000 to 0.009: decoding "
        "has no future to copy from",
        ("future", "steps"),
        "jadore801120/attention-is-all-you-need-pytorch#19, pytorch/tutorials#719, "
        "lucidrains/x-transformers#102",
    ),
    "triangle_off_by_one": FaultCard(
        "output t may attend to decoder inputs 0 .. t + 1; the last one is its own label",
        "loss 0.12 to 0.23 after a quarter of the steps (sound runs 0.7 to 1.0), token "
        "accuracy 1.000, exact match 0.000 to 0.002: decoding has no label to copy",
        ("future", "steps"),
        "pytorch/tutorials#2250, TransformerLensOrg/TransformerLens#284, pytorch/pytorch#103082",
    ),
    "pad_visible": FaultCard(
        "pads are not masked in encoder, decoder and cross-attention",
        "the training loss looks sound (0.004 to 0.009). Exact match is 0.98 to 1.00 on "
        "validation pairs, but 0.740 to 0.849 on test pairs, whose batches have more pads",
        ("pads",),
        "OpenNMT/OpenNMT-py#137, facebookresearch/fairseq#3078, huggingface/transformers#22707",
    ),
    "mask_flipped": FaultCard(
        "every mask is inverted: visible where it should be masked",
        "loss 0.01 to 0.03 after a quarter of the steps (sound runs 0.7 to 1.0), token "
        "accuracy 1.000, exact match 0.000: the decoder reads only the future",
        ("pads", "future", "steps", "order", "sublayers", "source", "target"),
        "pytorch/pytorch#29546, pytorch/pytorch#120488, lucidrains/x-transformers#253",
    ),
    "labels_not_shifted": FaultCard(
        "the label at place t is the decoder input at place t, not the next one",
        "training loss 0.001 after a quarter of the steps, validation loss 11, exact match "
        "0.000; decoding repeats one token",
        ("labels",),
        "pytorch/tutorials#719, lucidrains/x-transformers#102",
    ),
    "pad_is_eos": FaultCard(
        "pad and end share an id, so the loss ignores the end like a pad",
        "the training loss looks sound (0.006 to 0.011), validation loss is 1.4 to 1.5 and "
        "exact match 0.000: outputs never end; token accuracy 0.82, only the ends are wrong",
        ("labels",),
        "huggingface/trl#6357, mlabonne/llm-course#33, huggingface/alignment-handbook#127",
    ),
    "wrong_start": FaultCard(
        "training starts targets with EOS, decoding with BOS",
        "the training loss looks sound (0.004 to 0.008), validation loss is 1.3 to 2.8 and "
        "exact match 0.018 to 0.293",
        ("labels",),
        "huggingface/transformers#14439, harvardnlp/annotated-transformer#127",
    ),
    "wrong_scale": FaultCard(
        "scores are divided by the root of d_model, not of the head's width",
        "planted after training: exact match 0.664 to 0.956 (sound 0.996 to 1.000). Training "
        "with it does no harm, since the weights compensate",
        ("scale",),
        "lucidrains/vit-pytorch#65, karpathy/ng-video-lecture#6, "
        "jadore801120/attention-is-all-you-need-pytorch#42",
        PLANTED,
    ),
    "no_scale": FaultCard(
        "scores are not divided at all",
        "with one head of width 64: exact match 0.250 to 0.327 (sound 0.996 to 1.000), since "
        "softmax saturates. With narrow heads the weights compensate",
        ("scale",),
        "delzac/cntkx#10",
        f"{TRAIN} --set model.n_heads=1 --break FAULT",
    ),
    "no_position": FaultCard(
        "the encoder has no information about the order of its tokens",
        "the loss stays at 0.6 to 0.9, token accuracy 0.64, exact match 0.131 to 0.172: only "
        "short sources, whose order matters little, are right",
        ("order",),
        "wenliangdai/Multimodal-End2end-Sparse#16, DaoyuanLi2816/Molecule-Generator#23",
    ),
    "loss_on_pads": FaultCard(
        "the loss counts pad labels and divides by all places",
        "the training loss reads half of the validation loss (0.49 to 0.53; sound 0.87 to "
        "1.00), since pads are easy",
        ("loss",),
        "lucidrains/DALLE-pytorch#57, 01-ai/Yi#110",
        MIXED,
    ),
    "batch_mean_of_means": FaultCard(
        "the loss is the mean over rows of each row's mean, so short rows weigh more",
        "the training loss reads 0.69 to 0.79 of the validation loss (sound 0.87 to 1.00), "
        "since short rows weigh more",
        ("loss",),
        "OpenNMT/OpenNMT-py#2209, huggingface/transformers#34191",
        MIXED,
    ),
    "no_residual": FaultCard(
        "sub-layers replace their input; x is not added",
        "the loss stays at 1.3 to 1.7 and exact match at 0.000",
        ("sublayers",),
        "kyegomez/BitNet#32",
    ),
    "no_norm": FaultCard(
        "the model has no layer normalization",
        "planted after training: exact match 0.024 to 0.187. Training without norms does "
        "little harm with two layers; with six the model learns nothing",
        ("sublayers",),
        "iCog-Labs-Dev/PC-Transformers#46",
        PLANTED,
    ),
    "no_feed_forward": FaultCard(
        "layers have only attention",
        "planted after training: exact match 0.000 to 0.020. Training without them does "
        "little harm, since reversing only moves tokens",
        ("sublayers",),
        "fredzzhang/upt#13",
        PLANTED,
    ),
}
