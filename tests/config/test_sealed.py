"""Sealed faults: what is sealed can be opened, and nothing else."""

import hashlib
from base64 import urlsafe_b64encode
from typing import get_args

import pytest
from conftest import TINY, config_of

from toytrans.config.load import check_config
from toytrans.config.names import FaultName
from toytrans.config.sealed import fault_remark, is_sealed, opened, seal
from toytrans.config.yaml import Tree
from toytrans.errors import UserError
from toytrans.training.faults import check_fault, objective_of

NONCE = b"12345678"


@pytest.mark.parametrize("fault", [*get_args(FaultName), None])
def test_a_seal_opens_and_hides_the_name(fault):
    sealed = seal(fault, NONCE)
    assert opened(sealed) == fault and opened(fault) == fault
    assert is_sealed(sealed) and not is_sealed(fault)
    assert str(fault) not in sealed + fault_remark(sealed)
    assert len(sealed) == len(seal("no_scale", b"abcdefgh")), "its length tells nothing"
    assert objective_of(sealed) == objective_of(fault)


def test_every_changed_character_is_noticed():
    sealed = seal("no_norm", NONCE)
    wrong = [sealed[:-4], sealed + "AAAA", "sealed-", "sealed-é", f"{sealed[:10]}!{sealed[10:]}"]
    for place in range(len("sealed-"), len(sealed)):
        other = "A" if sealed[place] != "A" else "B"
        wrong.append(sealed[:place] + other + sealed[place + 1 :])
    name = b"\xff" * 24  # no text, under a right checksum
    inner = name + hashlib.sha256(NONCE + name).digest()[:4]
    stream = hashlib.shake_256(b"toytrans" + NONCE).digest(len(inner))
    crafted = NONCE + bytes(a ^ b for a, b in zip(inner, stream, strict=True))
    wrong.append(f"sealed-{urlsafe_b64encode(crafted).decode()}")
    for text in wrong:
        with pytest.raises(UserError, match="this seal was changed"):
            opened(text)


def test_a_config_takes_a_seal_and_refuses_a_changed_one():
    sealed = seal("no_norm", NONCE)
    assert config_of(fault=sealed).fault == sealed
    with pytest.raises(UserError, match="c.yaml: fault: .*: this seal was changed"):
        check_config(Tree("c.yaml", TINY | {"fault": sealed[:-4] + "AAAA"}))
    with pytest.raises(UserError, match="fault: found 'no_nrm'; did you mean no_norm\\?"):
        check_config(Tree("c.yaml", TINY | {"fault": "no_nrm"}))


def test_errors_treat_all_sealed_faults_alike():
    """An error about one fault alone would tell which it is."""
    model = config_of(model={"n_heads": 1}).model
    with pytest.raises(UserError, match="wrong_scale is no fault with one head"):
        check_fault("wrong_scale", model)
    for fault in (*get_args(FaultName), None):
        check_fault(seal(fault, NONCE), model)
        with pytest.raises(UserError, match="^a sealed exercise: trains in one process"):
            check_fault(seal(fault, NONCE), model, processes=2)
