"""The train section of a config: steps, learning rate, limits, precision."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from toytrans.config_section import Positive, Proportion, Section, refusal


class TrainConfig(Section):
    """The training."""

    max_steps: Annotated[int, Field(ge=0, le=10**9)] = Field(
        1000, description="Number of optimiser steps."
    )
    max_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Stop after so many seconds of training. null means no limit."
    )
    lr: Annotated[float, Field(gt=0)] = Field(
        3e-3, description="Learning rate at its peak, after warm-up."
    )
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = Field(
        "linear",
        description="Course of the learning rate after warm-up. linear and cosine end at 2% of lr.",
    )
    warmup_steps: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Steps of linear warm-up. null means 100, or a third of max_steps if that is "
        "less.",
    )
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        1.0, description="Largest norm of the gradient; larger ones are scaled down. null: no clip."
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Weight decay of AdamW on matrices."
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of the label's probability that is spread over the vocabulary."
    )
    accumulate: Annotated[int, Field(ge=1, le=2**16)] = Field(
        1, description="Number of batches whose gradients are added up for one step."
    )
    eval_every: Positive | None = Field(
        None, description="Steps between two evaluations. null means a quarter of max_steps."
    )
    log_every: Positive = Field(10, description="Steps between two records in metrics.jsonl.")
    stop_at_exact_match: Proportion | None = Field(
        None, description="Stop when the exact match on validation data is this high. null: never."
    )
    patience: Positive | None = Field(
        None,
        description="Stop after so many evaluations without a better one. null means never.",
    )
    keep_checkpoints: Annotated[int, Field(ge=1, le=10**4)] = Field(
        2,
        description="Number of newest checkpoints to keep. The best one is kept as well. Reports "
        "show attention at each.",
    )
    precision: Literal["auto", "fp32", "bf16", "fp64"] = Field(
        "auto",
        description="Precision of matrix products. auto takes bf16 if the device has instructions "
        "for it, except on a CPU up to d_model 64; else fp32.",
    )
    cuda_graphs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Record a step once for each shape of a batch, and replay it with one launch. "
        "For a CUDA device. auto means off until it has been measured on a GPU.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_compile(cls, values: Any) -> Any:
        """Runs of earlier versions have `compile: false` in their config.yaml."""
        if not isinstance(values, dict) or "compile" not in values:
            return values
        if values["compile"] is not False:
            raise refusal("compile", "no longer exists; leave it out, and see train.cuda_graphs")
        return {key: value for key, value in values.items() if key != "compile"}

    def _derived(self) -> dict[str, Any]:
        return self._defaults(
            warmup_steps=min(100, self.max_steps // 3), eval_every=max(1, self.max_steps // 4)
        )

    def _check(self) -> None:
        if self.warmup_steps is not None and self.warmup_steps > self.max_steps:
            raise refusal(
                "warmup_steps",
                f"{self.warmup_steps} steps of warm-up are more than "
                f"train.max_steps {self.max_steps}; lower it or leave it out",
            )
