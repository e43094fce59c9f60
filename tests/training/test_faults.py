"""Faults: every name has one record, and a fault without effect is refused."""

from typing import get_args

import pytest
import torch
from conftest import VOCABULARY, config_of, model_of

from toytrans.config.names import FaultName
from toytrans.errors import UserError
from toytrans.training.faults import FAULTS, build_model, check_fault, objective_of, plant
from toytrans.training.objective import SOUND


def test_every_fault_has_a_record():
    assert set(FAULTS) == set(get_args(FaultName))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_changes_the_model_or_the_objective(fault: FaultName):
    torch.manual_seed(0)
    model = model_of(VOCABULARY, positions="sinusoidal", n_heads=2)
    src, tgt_in = torch.tensor([[5, 6, 2, 0]]), torch.tensor([[1, 6, 5, 0]])
    before = model(src, tgt_in)
    plant(fault, model)
    changed = not torch.allclose(model(src, tgt_in), before)
    assert changed == (objective_of(fault) == SOUND), "one of them"


@pytest.mark.parametrize(
    ("fault", "model"), [("wrong_scale", {"n_heads": 1}), ("no_position", {"positions": "none"})]
)
def test_a_fault_without_effect_is_refused(fault: FaultName, model: dict):
    config = config_of(fault=fault, model=model)
    with pytest.raises(UserError, match=f"fault: {fault} "):
        build_model(config, VOCABULARY)
    check_fault(fault, config_of().model)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_whole_batches_need_one_process(fault: FaultName):
    model = config_of().model
    check_fault(fault, model, processes=1)
    if fault not in ("loss_on_pads", "batch_mean_of_means"):
        check_fault(fault, model, processes=2)
        return
    with pytest.raises(UserError, match="in one process"):
        check_fault(fault, model, processes=2)
