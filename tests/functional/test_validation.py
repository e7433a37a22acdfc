"""Bad input is refused with a `ValueError` that names the argument and its shape."""

import pytest
import torch

from lit_reason import functional as F

X, M = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
IDS, R = torch.zeros(2, dtype=torch.long), torch.zeros(2)
SHORT, INT = torch.zeros(2, 2), torch.ones(2, 3, dtype=torch.long)
NAN, INF_R = torch.full((2, 3), float("nan")), torch.tensor([0.0, float("inf")])

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
    "alpha": (lambda: F.length_adaptive_lambda(R, 0.0), "alpha"),
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
