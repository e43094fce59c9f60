"""Faults: every name has one record, and a fault without effect is refused."""

import pytest
from conftest import config_of

from toytrans.config.names import FaultName
from toytrans.errors import UserError
from toytrans.training.faults import FAULTS, check_fault


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_whole_batches_need_one_process(fault: FaultName):
    model = config_of().model
    check_fault(fault, model, processes=1)
    if fault not in ("loss_on_pads", "batch_mean_of_means"):
        check_fault(fault, model, processes=2)
        return
    with pytest.raises(UserError, match="in one process"):
        check_fault(fault, model, processes=2)
