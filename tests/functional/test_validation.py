"""Bad input is refused with a `ValueError` that names the argument and its shape."""

import re
from functools import partial
from inspect import signature

import oracles
import pytest
import torch

from lit_reason import functional as F

X, M = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
IDS, R = torch.zeros(2, dtype=torch.long), torch.zeros(2)
SHORT, INT = torch.zeros(2, 2), torch.ones(2, 3, dtype=torch.long)
NAN, INF_R = torch.full((2, 3), float("nan")), torch.tensor([0.0, float("inf")])
N, INF = float("nan"), float("inf")
NEGATIVE, EMPTY, NO_IDS = torch.tensor([3, -1]), torch.zeros(0), torch.zeros(0, dtype=torch.long)
LOGITS, WRONG_ID = torch.zeros(2, 3, 4), torch.tensor([[0, 1, 2], [3, 4, -1]])
LOSSES = {
    "clipped_surrogate": (F.clipped_surrogate, ["logprobs", "old_logprobs", "advantages"]),
    "clip_masks": (F.clip_masks, ["logprobs", "old_logprobs", "advantages"]),
    "value_loss": (partial(F.value_loss, clip=0.2), ["values", "returns", "old_values"]),
    "kl_k1": (F.kl_k1, ["logprobs", "ref_logprobs"]),
    "kl_k2": (F.kl_k2, ["logprobs", "ref_logprobs"]),
    "kl_k3": (F.kl_k3, ["logprobs", "ref_logprobs"]),
    "nll": (F.nll, ["logprobs"]),
}

SHAPES = {
    "masked_mean": (lambda: F.masked_mean(X, M[:, :2]), "mask"),
    "masked_whiten": (lambda: F.masked_whiten(X, M[:1]), "mask"),
    "explained_variance": (lambda: F.explained_variance(SHORT, X, M), "values"),
    "outcome": (lambda: F.outcome_to_tokens(torch.zeros(3), M), "rewards"),
    "outcome mask": (lambda: F.outcome_to_tokens(R, M[0]), "mask"),
    "gae values": (lambda: F.gae(X, SHORT, M), "values"),
    "gae rewards": (lambda: F.gae(R, R, M[0]), "rewards"),
    "gae lam": (lambda: F.gae(X, X, M, lam=torch.zeros(3)), "lam"),
    "gae bootstrap": (lambda: F.gae(X, X, M, bootstrap=torch.zeros(3)), "bootstrap"),
    "groups": (lambda: F.group_relative(R, torch.zeros(3).long()), "group_ids"),
    "groups 2d": (lambda: F.group_relative(X, IDS), "rewards"),
    "process": (lambda: F.group_relative_process(X, M[:, :2], M, IDS), "step_mask"),
    "kl reward": (lambda: F.kl_penalised_rewards(X, SHORT, X, M, 0.1), "logprobs"),
    "surrogate old": (lambda: F.clipped_surrogate(X, SHORT, X), "old_logprobs"),
    "surrogate adv": (lambda: F.clipped_surrogate(X, X, R), "advantages"),
    "clip masks": (lambda: F.clip_masks(X, X, SHORT, 0.2, 0.2), "advantages"),
    "value": (lambda: F.value_loss(X, SHORT), "returns"),
    "value old": (lambda: F.value_loss(X, X, SHORT, 0.2), "old_values"),
    "k3": (lambda: F.kl_k3(X, SHORT), "ref_logprobs"),
    "aggregate": (lambda: F.aggregate(X, SHORT, 1), "weights"),
    "token_weights": (lambda: F.token_weights(M[0]), "mask"),
    "prompt_weights": (lambda: F.prompt_weights(M, torch.zeros(3).long()), "group_ids"),
    "position_ids": (lambda: F.position_ids(M[0]), "attention_mask"),
    "response_mask": (lambda: F.response_mask(IDS, [1]), "ids"),
    "lengths": (lambda: F.response_mask(INT, [1], torch.zeros(3)), "lengths"),
    "logprobs": (lambda: F.logprobs_and_entropy(X, torch.zeros(3).long()), "ids"),
    "hidden": (lambda: F.hidden_logprobs_and_entropy(X, lambda x: x, IDS[:1]), "ids"),
    "kimi": (lambda: F.kimi_length(R, M[0]), "correct"),
    "count": (lambda: F.aggregate(X, X, R), "count"),
    # group ids that do not tile the batch: too few, in two dimensions, groups of another size
    "ids for fewer rows": (lambda: F.group_relative(R, IDS[:1]), "group_ids"),
    "ids of two dimensions": (lambda: F.prompt_weights(M, INT), "group_ids"),
    "groups of other sizes": (
        lambda: F.group_relative(torch.zeros(3), torch.tensor([4, 4, 9]), group_size=2),
        "group_ids",
    ),
    "process ids": (lambda: F.group_relative_process(X, M, M, IDS[:1]), "group_ids"),
    "no group": (lambda: F.group_relative(EMPTY, NO_IDS), "group_ids"),
    "no group to weigh": (lambda: F.prompt_weights(M[:0], NO_IDS), "group_ids"),
    "no group of steps": (
        lambda: F.group_relative_process(X[:0], M[:0], M[:0], NO_IDS),
        "group_ids",
    ),
    "no length": (lambda: F.kimi_length(EMPTY, EMPTY.bool()), "correct"),
    "no sample": (lambda: F.mean_at_k(M[:, :0]), "correct"),
    "verdict dtype": (lambda: F.mean_at_k(X), "correct"),
    "id dtype": (lambda: F.logprobs_and_entropy(LOGITS, X), "ids"),
    "hidden id dtype": (lambda: F.hidden_logprobs_and_entropy(LOGITS, lambda x: x, X), "ids"),
    "response id dtype": (lambda: F.response_mask(X, [1]), "ids"),
    "group id dtype": (lambda: F.prompt_weights(M, R), "group_ids"),
}

OTHERS = {
    "int mask": (lambda: F.masked_mean(X, INT), "mask.*bool"),
    "float mask": (lambda: F.gae(X, X, M.float()), "mask.*bool"),
    "int weights": (lambda: F.sequence_weights(INT), "mask.*bool"),
    "int step mask": (lambda: F.group_relative_process(X, INT, M, IDS), "step_mask.*bool"),
    "float ids": (lambda: F.group_relative(R, R), "group_ids.*integers"),
    "nan reward": (lambda: F.group_relative(INF_R, IDS), "rewards.*1 non-finite"),
    "inf outcome": (lambda: F.outcome_to_tokens(INF_R, M), "rewards.*non-finite"),
    "nan value": (lambda: F.gae(X, NAN, M), r"values.*\(2, 3\).*6 non-finite"),
    "nan logprob": (lambda: F.kl_penalised_rewards(X, NAN, X, M, 0.1), "logprobs.*non-finite"),
    "nan bootstrap": (lambda: F.gae(X, X, M, bootstrap=INF_R), "bootstrap.*non-finite"),
    "gamma": (lambda: F.gae(X, X, M, gamma=1.1), "gamma"),
    "lam": (lambda: F.gae(X, X, M, lam=torch.tensor([0.5, 1.5])), "lam"),
    "lam nan": (lambda: F.gae(X, X, M, lam=float("nan")), "lam"),
    "gamma nan": (lambda: F.gae(X, X, M, gamma=N), "gamma.*=nan"),
    "lam tensor nan": (lambda: F.gae(X, X, M, lam=INF_R * 0), r"lam.*\(2,\).*1 value"),
    "alpha": (lambda: F.length_adaptive_lambda(R, 0.0), "alpha"),
    "alpha nan": (lambda: F.length_adaptive_lambda(R, N), "alpha"),
    "alpha inf": (lambda: F.length_adaptive_lambda(R, INF), "alpha"),
    "lambda_min nan": (lambda: F.length_adaptive_lambda(R, 0.1, N), "lambda_min"),
    "negative length": (
        lambda: F.length_adaptive_lambda(NEGATIVE, 0.1),
        r"lengths.*\(2,\).*1 value\(s\) outside",
    ),
    "length nan": (lambda: F.length_adaptive_lambda(INF_R * 0, 0.1), "lengths.*not whole"),
    "overlong length": (lambda: F.soft_overlong(NEGATIVE, 9, 3), r"lengths.*\(2,\)"),
    "overlong cache": (lambda: F.soft_overlong(R, 9, N), "cache"),
    "kimi length": (lambda: F.kimi_length(NEGATIVE, M[0, :2]), r"lengths.*\(2,\)"),
    "generated length": (lambda: F.response_mask(INT, [1], NEGATIVE), r"lengths.*\(2,\)"),
    "beta nan": (lambda: F.kl_penalised_rewards(X, X, X, M, N), "coef"),
    "beta negative": (lambda: F.kl_penalised_rewards(X, X, X, M, -0.1), "coef"),
    "group eps": (lambda: F.group_relative(R, IDS, eps=N), "eps"),
    "group ddof": (lambda: F.group_relative(R, IDS, ddof=-1), "ddof"),
    "group tolerance": (lambda: F.group_relative(R, IDS, tolerance=N), "tolerance"),
    "step reward nan": (
        lambda: F.group_relative_process(NAN, M, M, IDS),
        r"step_rewards.*\(2, 3\).*6 non-finite",
    ),
    "whiten eps": (lambda: F.masked_whiten(X, M, eps=N), "eps"),
    "whiten nan": (lambda: F.masked_whiten(NAN, M), r"x.*\(2, 3\).*6 non-finite"),
    "returns nan": (lambda: F.explained_variance(X, NAN, M), "returns.*non-finite"),
    "values nan": (lambda: F.explained_variance(NAN, X, M), "values.*non-finite"),
    "weights nan": (lambda: F.aggregate(X, NAN, 1), r"weights.*\(2, 3\)"),
    "count nan": (lambda: F.aggregate(X, X, N), "count.*nan"),
    "count negative": (lambda: F.aggregate(X, X, -1), "count.*-1"),
    "clip_high nan": (lambda: F.clipped_surrogate(X, X, X, 0.2, N), "clip_high"),
    "clip_low nan": (lambda: F.clip_masks(X, X, X, N), "clip_low"),
    "dual_clip nan": (lambda: F.clipped_surrogate(X, X, X, dual_clip=N), "dual_clip"),
    "value clip nan": (lambda: F.value_loss(X, X, X, N), "clip"),
    "value clip negative": (lambda: F.value_loss(X, X, X, -0.1), "clip"),
    "length setting nan": (lambda: F.constant_weights(M, N), "length"),
    "temperature nan": (lambda: F.logprobs_and_entropy(LOGITS, INT, N), "temperature"),
    "temperature inf": (lambda: F.logprobs_and_entropy(LOGITS, INT, INF), "temperature"),
    "id": (
        lambda: F.logprobs_and_entropy(LOGITS, WRONG_ID),
        r"ids.*\(2, 3\).*2 value\(s\) outside \[0, 3\]",
    ),
    "hidden id": (
        lambda: F.hidden_logprobs_and_entropy(LOGITS, lambda x: x, WRONG_ID, chunk=2),
        r"ids.*\(2, 3\).*2 value\(s\) outside \[0, 3\]",
    ),
    "lambda_min": (lambda: F.length_adaptive_lambda(R, 0.1, 1.0), "lambda_min"),
    "clip_low": (lambda: F.clipped_surrogate(X, X, X, -0.1), "clip_low"),
    "dual_clip": (lambda: F.clipped_surrogate(X, X, X, dual_clip=1.0), "dual_clip"),
    "value clip": (lambda: F.value_loss(X, X, clip=0.2), "old_values"),
    "length": (lambda: F.constant_weights(M, 0), "length"),
    "temperature": (lambda: F.logprobs_and_entropy(X, IDS, -1.0), "temperature"),
    "entropy": (lambda: F.logprobs_and_entropy(X, IDS, 1.0, "yes"), "entropy"),
    "chunk": (lambda: F.logprobs_and_entropy(X, IDS, chunk=0), "chunk"),
}


@pytest.mark.parametrize("case", list(SHAPES))
def test_mismatched_shapes_are_named(case):
    call, name = SHAPES[case]
    with pytest.raises(ValueError, match=rf"`{name}`.*\("):
        call()


@pytest.mark.parametrize("case", list(OTHERS))
def test_bad_values_are_named(case):
    call, message = OTHERS[case]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("bad", [N, INF, -INF])
@pytest.mark.parametrize("function", list(LOSSES))
def test_losses_refuse_what_is_not_finite_in_any_of_their_tensors(function, bad):
    call, names = LOSSES[function]
    for i, name in enumerate(names):
        tensors = [torch.zeros(2, 3) for _ in names]
        tensors[i][1, 2] = bad
        with pytest.raises(ValueError, match=rf"`{name}` of shape \(2, 3\) has 1 non-finite"):
            call(*tensors)


def test_what_tensors_hold_is_not_read_where_the_caller_checks_itself():
    with F.unchecked_values():
        assert F.kl_k3(NAN, X).isnan().all()
        assert F.clipped_surrogate(X, X, NAN).isnan().all()
        with pytest.raises(ValueError, match="old_logprobs"):
            F.clipped_surrogate(X, SHORT, X)  # shapes are checked all the same
        with pytest.raises(ValueError, match="clip_high"):
            F.clipped_surrogate(X, X, X, 0.2, N)
    with pytest.raises(ValueError, match="logprobs"):
        F.kl_k3(NAN, X)


def test_checks_come_back_after_an_error_inside():
    with pytest.raises(RuntimeError), F.unchecked_values():
        raise RuntimeError
    with pytest.raises(ValueError, match="logprobs"):
        F.nll(NAN)


@pytest.mark.parametrize("call", [
    lambda: F.gae(X, X, M, 1.0, R, R),
    lambda: F.clipped_surrogate(X, X, X),
    lambda: F.aggregate(X, X, 1),
    lambda: F.group_relative(R, IDS, group_size=2),
    lambda: F.masked_whiten(X, M),
    lambda: F.hidden_logprobs_and_entropy(LOGITS, lambda x: x, INT, chunk=2),
])  # fmt: skip
def test_what_tensors_hold_is_read_once_a_call(call, monkeypatch):
    """On an accelerator each reading waits for it."""
    reads, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: reads.append(x) or tolist(x))
    call()
    assert len(reads) == 1
    with F.unchecked_values():
        call()
    assert len(reads) == 1


def test_a_rank_refuses_what_another_holds():
    """Raised on every rank after the reduction, so that none waits for the others."""
    with pytest.raises(ValueError, match=r"`x`.*1 non-finite"):
        F.masked_whiten(X, M, reduce=lambda total: total + torch.tensor([0.0, 0.0, 1.0]))


def test_non_finite_numbers_at_masked_positions_are_fine():
    mask = M & False
    assert (F.gae(NAN, NAN, mask) == 0).all()
    assert (F.kl_penalised_rewards(NAN, NAN, NAN, mask, 0.1) == 0).all()
    assert (F.masked_whiten(NAN, mask) == 0).all()


def test_every_function_is_exported_and_indexed():
    """The package docstring is the index: one entry a function."""
    for name in F.__all__:
        if callable(getattr(F, name)) and name.islower():
            assert f":func:`{name}`" in F.__doc__, name


PARTS = [r":math:|\.\. math::", "Args:", "Shapes:|Returns:", "Raises:", ">>> "]
PAPER, NO_PAPER = r"arXiv:\d|Schulman|Efron|Ionides", {"zero_outside", "masked_sum", "masked_mean"}
UNITS = {
    "nats": {"logprobs", "logits", "hidden"},
    "unit|standard deviations": {"rewards", "step_rewards", "values"},
    "tokens": {"lengths", "length", "max_length"},
}


@pytest.mark.parametrize("name", [n for n in F.__all__ if n.islower() and n != "unchecked_values"])
def test_every_function_says_what_it_computes_takes_returns_and_refuses(name):
    """Equation, paper, arguments, shapes, units, errors, and an example that doctest runs."""
    function = getattr(F, name)
    arguments, text = set(signature(function).parameters), " ".join(function.__doc__.split())
    units = [unit for unit, of in UNITS.items() if of & arguments]
    paper = [] if name in {*NO_PAPER, "position_ids"} else [PAPER]
    assert [part for part in PARTS + units + paper if not re.search(part, text)] == []


def test_every_function_has_an_oracle_of_its_name():
    names = [n for n in F.__all__ if n.islower() and n != "unchecked_values"]
    assert len(names) > 30
    assert [n for n in names if not callable(getattr(oracles, n, None))] == []
