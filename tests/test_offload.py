"""A reference whose weights wait on the CPU."""

from contextlib import contextmanager

import pytest
import torch

from lit_reason import module as module_file
from lit_reason.errors import ConfigWarning
from lit_reason.offload import lent, offload
from tests.conftest import SMALL, fails, fit, tiny
from tests.test_configs import train_rows

OFFLOAD = "--model.reference_offload=true"
ELSEWHERE = torch.float64  # stands in for a device, which `Tensor.to` takes in the same place
ONE = [*SMALL, "--data.rollouts_per_epoch=1", "--trainer.limit_val_batches=0"]


def test_weights_are_lent_and_come_back_as_they_were():
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).eval()
    network.requires_grad_(False)
    offload(network)
    before = [(p, p.data_ptr(), p.clone()) for p in network.parameters()]
    with lent(network, ELSEWHERE):
        assert {p.dtype for p in network.parameters()} == {ELSEWHERE}
        assert network[1].running_mean.dtype == torch.float32
    for (p, place, value), after in zip(before, network.parameters(), strict=True):
        assert p is after
        assert p.data_ptr() == place
        assert torch.equal(p, value)
    with pytest.raises(RuntimeError, match="in use"), lent(network, ELSEWHERE):
        raise RuntimeError("in use")
    assert [p.data_ptr() for p in network.parameters()] == [place for _, place, _ in before]


def test_the_reference_is_lent_for_scoring_only_and_scores_as_ever(monkeypatch):
    plain = train_rows(fit(*tiny("grpo"), *ONE, run_dir="plain"))
    events = []

    @contextmanager
    def watched(network, device):
        events.append("lent")
        with lent(network, device):
            yield
        events.append("home")

    def scored(network, *args):
        events.append("reference" if not next(network.parameters()).requires_grad else "actor")
        return policy_outputs(network, *args)

    policy_outputs = module_file.policy_outputs
    monkeypatch.setattr(module_file, "lent", watched)
    monkeypatch.setattr(module_file, "policy_outputs", scored)
    with pytest.warns(ConfigWarning, match="reference_offload=true: has no effect on a CPU"):
        again = train_rows(fit(*tiny("grpo"), *ONE, OFFLOAD, run_dir="offloaded"))
    assert again[0]["loss/kl"] == plain[0]["loss/kl"]
    assert again[0]["grad_norm/actor"] == plain[0]["grad_norm/actor"]
    first, last = events.index("lent"), events.index("home")
    assert "reference" in events[first:last]
    assert "reference" not in events[:first] + events[last:]
    assert "actor" in events[last:]


def test_an_offload_without_a_reference_is_warned_of():
    with pytest.warns(ConfigWarning, match="has no effect without a term or reward"):
        fit(*tiny("dapo"), *ONE, OFFLOAD)


def test_an_offload_of_a_sharded_reference_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("lit_reason.offload.parts", lambda network: [network])
    line = fails(capsys, "fit", *tiny("grpo"), *ONE, OFFLOAD)
    assert "model.reference_offload=true: not available with fsdp2" in line
