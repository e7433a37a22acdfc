"""Every argument of every public function: of another dtype, shape, rank or range it is refused.

`CALLS` holds one good call of each function and says what each argument is; the bad ones follow
from that. A function or argument that is missing here fails the first test.
"""

import inspect

import pytest
import torch

from lit_reason import functional as F

NAN, INF = float("nan"), float("inf")
X, R, L = torch.full((2, 3), -0.5), torch.tensor([1.0, 0.0]), torch.tensor([3, 2])
M, G = torch.ones(2, 3, dtype=torch.bool), torch.tensor([7, 7])
IDS, V, LOGITS = torch.tensor([[0, 1, 2], [3, 0, 1]]), torch.eye(4), torch.zeros(2, 3, 4)

FRACTION = [NAN, -0.1, 1.1, "0.5", True]
NEGATIVE = [NAN, -0.1, "0.5", True]
POSITIVE = [*NEGATIVE, 0.0, INF]
COUNT = [NAN, -1, 1.5, "2", True]
FREE = ()  # a flag, a seed, anything hashable

SURROGATE = (
    {"logprobs": X, "old_logprobs": X, "advantages": X},
    {"logprobs": "floats", "old_logprobs": "floats", "advantages": "numbers",
     "clip_low": NEGATIVE, "clip_high": NEGATIVE, "dual_clip": [NAN, 1.0, -2.0, "3", True]},
)  # fmt: skip
KL = {"logprobs": X, "ref_logprobs": X}, {"logprobs": "floats", "ref_logprobs": "floats"}
GROUP = {"scale_by_std": FREE, "ddof": COUNT, "eps": NEGATIVE, "tolerance": NEGATIVE}
BY_MASK = {"mask": M}, {"mask": "mask"}
LOSS = {"loss": X, "mask": M}, {"loss": "any", "mask": "mask"}
SCORING = {
    "temperature": [NAN, INF, -1.0, 1e-38, "1", True, None],
    "entropy": ["yes", None],
    "chunk": [0, -1, 1.5],
}

SHAKY = [2, -3, (0, 1), 1.0, True]  # as a dimension

GAE = (
    {"rewards": X, "values": X, "mask": M, "lam": R, "bootstrap": R},
    {"rewards": "numbers", "values": "numbers", "mask": "mask", "bootstrap": "numbers",
     "lam": [*FRACTION, R + 0.1, R * NAN, X], "gamma": FRACTION},
)  # fmt: skip

CALLS = {
    "advantage_parts": GAE,
    "aggregate": (
        {"loss": X, "weights": X, "count": 1.0},
        {"loss": "any", "weights": "numbers", "count": [NAN, INF, -1.0, R, "1", None, True]},
    ),
    "bootstrap_interval": (
        {"values": X},
        {"values": "any", "resamples": [0, *COUNT], "level": [0, 1, NAN, "0.9"],
         "seed": ["a", 1.5, True]},
    ),
    "clip_masks": SURROGATE,
    "clipped_surrogate": SURROGATE,
    "constant_mean": ({**LOSS[0], "length": 4}, {**LOSS[1], "length": [*POSITIVE, 1e-50]}),
    "constant_weights": ({**BY_MASK[0], "length": 4}, {**BY_MASK[1], "length": [*POSITIVE, 1e-50]}),
    "effective_horizon": (
        {"lengths": L, "lam": R},
        {"lengths": "lengths", "lam": [*FRACTION, R + 0.1, R * NAN, X], "gamma": FRACTION},
    ),
    "explained_variance": (
        {"values": X, "returns": X, "mask": M},
        {"values": "numbers", "returns": "numbers", "mask": "mask", "reduce": FREE},
    ),
    "gae": GAE,
    "group_relative": (
        {"rewards": R, "group_ids": G, "valid": M[:, 0], "group_size": 2},
        {"rewards": "numbers", "group_ids": "integers", "valid": "mask",
         "group_size": [3, *COUNT], **GROUP},
    ),
    "group_relative_process": (
        {"step_rewards": X, "step_mask": M, "mask": M, "group_ids": G},
        {"step_rewards": "numbers", "step_mask": "mask", "mask": "mask", "group_ids": "integers",
         **GROUP},
    ),
    "hidden_logprobs_and_entropy": (
        {"hidden": LOGITS, "head": lambda h: h @ V, "ids": IDS},
        {"hidden": "scores", "ids": "ids", **SCORING,
         "head": [lambda h: h @ V[0], lambda h: (h @ V)[:1], lambda h: (h @ V).long(),
                  lambda h: (h,)]},
    ),
    "importance_weights": (
        {"logprobs": X, "sampled_logprobs": X, "mask": M},
        {"logprobs": "floats", "sampled_logprobs": "floats", "mask": "mask", "cap": POSITIVE,
         "level": ["row", None], "cut": ["drop", None]},
    ),
    "kimi_length": (
        {"lengths": L, "correct": M[:, 0]}, {"lengths": "lengths", "correct": "mask"},
    ),
    "kl_k1": KL,
    "kl_k2": KL,
    "kl_k3": KL,
    "kl_penalised_rewards": (
        {"token_rewards": X, **KL[0], "mask": M, "coef": 0.1},
        {"token_rewards": "numbers", **KL[1], "mask": "mask", "coef": [NAN, INF, -0.1]},
    ),
    "last_token": BY_MASK,
    "length_adaptive_lambda": (
        {"lengths": L, "alpha": 0.05},
        {"lengths": "lengths", "alpha": POSITIVE, "lambda_min": [NAN, -0.1, 1.0, "0", None]},
    ),
    "logprobs_and_entropy": (
        {"logits": LOGITS, "ids": IDS}, {"logits": "scores", "ids": "ids", **SCORING},
    ),
    "majority_at_k": ({"answers": ["3"], "gold": "3"}, {"answers": ["37", b"37"], "gold": FREE}),
    "majority_of_classes": (
        {"classes": IDS, "correct": M}, {"classes": "integers", "correct": "mask"},
    ),
    "masked_mean": ({"x": X, "mask": M}, {"x": "any", "mask": "mask", "dim": SHAKY}),
    "masked_sum": ({"x": X, "mask": M}, {"x": "any", "mask": "mask", "dim": SHAKY}),
    "masked_whiten": (
        {"x": X, "mask": M},
        {"x": "numbers", "mask": "mask", "ddof": COUNT, "eps": NEGATIVE, "reduce": FREE,
         "shift_mean": FREE},
    ),
    "mean_at_k": ({"correct": M}, {"correct": "mask"}),
    "nll": ({"logprobs": X}, {"logprobs": "floats"}),
    "outcome_to_tokens": ({"rewards": R, "mask": M}, {"rewards": "numbers", "mask": "mask"}),
    "pass_at_k": (
        {"n": 4, "c": 2, "k": 2}, {"n": [1, *COUNT], "c": [5, *COUNT], "k": [0, 5, *COUNT]},
    ),
    "position_ids": (
        {"attention_mask": M}, {"attention_mask": [M.float(), torch.tensor([[2]]), M[0]]},
    ),
    "prompt_mean": ({**LOSS[0], "group_ids": G}, {**LOSS[1], "group_ids": "integers"}),
    "prompt_weights": ({**BY_MASK[0], "group_ids": G}, {**BY_MASK[1], "group_ids": "integers"}),
    "relative_position": ({**BY_MASK[0], "parts": 2}, {**BY_MASK[1], "parts": [0, 2**62, *COUNT]}),
    "response_mask": (
        {"ids": IDS, "eos_ids": [2], "lengths": L},
        {"ids": "integers", "eos_ids": [2, [2.5], "2", [None]], "lengths": "lengths"},
    ),
    "reward_share": (
        {"from_rewards": X, "from_values": X, "mask": M},
        {"from_rewards": "numbers", "from_values": "numbers", "mask": "mask", "reduce": FREE},
    ),
    "sequence_mean": LOSS,
    "sequence_weights": BY_MASK,
    "soft_overlong": (
        {"lengths": L, "max_length": 9, "cache": 3},
        {"lengths": "lengths", "max_length": POSITIVE, "cache": [*POSITIVE, 10]},
    ),
    "token_mean": LOSS,
    "token_weights": BY_MASK,
    "value_loss": (
        {"values": X, "returns": X, "old_values": X, "clip": 0.2},
        {"values": "numbers", "returns": "numbers", "old_values": "numbers", "clip": NEGATIVE},
    ),
    "zero_outside": ({"x": X, "mask": M}, {"x": "any", "mask": "mask"}),
}  # fmt: skip

DTYPES = {
    "any": [torch.complex64],
    "numbers": [torch.complex64],
    "floats": [torch.long, torch.bool, torch.complex64],
    "scores": [torch.long, torch.bool, torch.complex64],
    "mask": [torch.float32, torch.long, torch.uint8, torch.complex64],
    "integers": [torch.float32, torch.bool, torch.complex64],
    "ids": [torch.float32, torch.bool, torch.uint8, torch.int32, torch.complex64],
    "lengths": [torch.bool, torch.complex64],
}
VALUES = {
    "numbers": [NAN, INF, -INF],
    "floats": [NAN, INF, -INF],
    "ids": [-1, 4],
    "lengths": [-1, 0.5, 2.5, NAN, INF, -INF],
}
ANY_RANK = {
    "aggregate", "clip_masks", "clipped_surrogate", "explained_variance", "kl_k1", "kl_k2", "kl_k3",
    "hidden_logprobs_and_entropy", "length_adaptive_lambda", "logprobs_and_entropy",
    "majority_of_classes", "masked_mean", "masked_sum", "masked_whiten", "mean_at_k", "nll",
    "reward_share", "soft_overlong", "value_loss", "zero_outside",
}  # fmt: skip
MUST_NOT_BE_EMPTY = {
    "group_relative", "group_relative_process", "prompt_mean", "prompt_weights", "kimi_length",
}  # fmt: skip


def with_value(x, value):
    x = x.clone().to(torch.float32) if isinstance(value, float) else x.clone()
    x[(0,) * x.ndim] = value
    return x


def of_kind(kind):
    """(function, argument, good tensor) of every argument of this kind."""
    for name, (good, kinds) in CALLS.items():
        yield from ((name, arg, good[arg]) for arg, k in kinds.items() if k == kind)


def cases(table):
    """(function, argument, bad entry of `table`), with an identifier."""
    return [
        pytest.param(name, arg, x, entry, id=f"{name}-{arg}-{entry}")
        for kind, entries in table.items()
        for name, arg, x in of_kind(kind)
        for entry in entries
    ]


def call(name, **changed):
    return getattr(F, name)(**{**CALLS[name][0], **changed})


def test_every_function_and_argument_is_here():
    functions = {n for n in F.__all__ if n.islower() and n != "unchecked_values"}
    assert set(CALLS) == functions
    for name, (_, kinds) in CALLS.items():
        assert set(kinds) == set(inspect.signature(getattr(F, name)).parameters), name


@pytest.mark.parametrize("name", list(CALLS))
def test_the_good_calls_are_good(name):
    call(name)


@pytest.mark.parametrize(("name", "arg", "x", "dtype"), cases(DTYPES))
def test_another_dtype_is_refused_also_where_values_are_not_read(name, arg, x, dtype):
    message = rf"`{arg}`.*{dtype} of shape \({x.shape[0]},"
    with pytest.raises(ValueError, match=message):
        call(name, **{arg: x.to(dtype)})
    with F.unchecked_values(), pytest.raises(ValueError, match=message):
        call(name, **{arg: x.to(dtype)})


@pytest.mark.parametrize(("name", "arg", "x", "value"), cases(VALUES))
def test_a_value_that_is_not_finite_or_out_of_range_is_refused(name, arg, x, value):
    with pytest.raises(ValueError, match=rf"`{arg}` of shape \({x.shape[0]},.*has 1 .*value"):
        call(name, **{arg: with_value(x, value)})


SETTINGS = [
    pytest.param(name, arg, value, id=f"{name}-{arg}-{i}")
    for name, (_, kinds) in CALLS.items()
    for arg, values in kinds.items()
    if isinstance(values, list)
    for i, value in enumerate(values)
]


@pytest.mark.parametrize(("name", "arg", "value"), SETTINGS)
def test_a_setting_out_of_range_is_refused(name, arg, value):
    named = {"group_size": "group_size|group_ids", "n": "n|c"}.get(arg, arg)
    with pytest.raises(ValueError, match=rf"`({named})`"):
        call(name, **{arg: value})


def tensors(name):
    return {k: v for k, v in CALLS[name][0].items() if isinstance(v, torch.Tensor)}


PARTNERS = [
    (name, arg)
    for name, (_, kinds) in CALLS.items()
    for arg in tensors(name)
    if len(tensors(name)) > 1 and isinstance(kinds[arg], str)
]


@pytest.mark.parametrize(("name", "arg"), PARTNERS, ids=lambda x: x)
def test_a_tensor_that_does_not_fit_the_others_is_refused(name, arg):
    """By the name of an argument, the one that is wrong or one that does not fit it."""
    x, names = tensors(name)[arg], "|".join(tensors(name))
    for bad in (x[:1], x[None], x.flatten()[0]):
        with pytest.raises(ValueError, match=rf"`({names})`.*\("):
            call(name, **{arg: bad})


@pytest.mark.parametrize("name", [n for n in CALLS if tensors(n) and n not in ANY_RANK])
def test_tensors_of_another_rank_are_refused(name):
    for other in (lambda x: x[None], lambda x: x[0]):
        with pytest.raises(ValueError, match=r"`\w+` .*\("):
            call(name, **{k: other(x) for k, x in tensors(name).items()})


@pytest.mark.parametrize("name", list(CALLS))
def test_no_row_at_all_is_refused_where_there_is_no_answer(name):
    nothing = {k: x[:0] for k, x in tensors(name).items()}
    if name in MUST_NOT_BE_EMPTY:
        with pytest.raises(ValueError, match=r"`(group_ids|correct)`.*\(0,\)"):
            call(name, **nothing)
    else:
        call(name, **nothing)


def test_old_values_have_to_fit_even_where_nothing_is_clipped():
    with pytest.raises(ValueError, match=r"`old_values` has shape \(2, 2\), expected \(2, 3\)"):
        F.value_loss(X, X, X[:, :2])
    assert torch.equal(F.value_loss(X, X, X * NAN), torch.zeros(2, 3))  # not read


def test_end_ids_beyond_a_narrow_type_are_not_wrapped():
    """258 is 2 in eight bits; the id 2 must not end the response."""
    mask, truncated = F.response_mask(torch.tensor([[1, 2, 3]], dtype=torch.uint8), [258])
    assert mask.all()
    assert truncated.all()


def test_end_ids_that_no_tensor_holds_end_nothing():
    mask, truncated = F.response_mask(torch.tensor([[1, 2, 3]]), [2**63, 2**70])
    assert mask.all()
    assert truncated.all()


# ---- what is too large to be squared in its own precision ---------------------------------------

LARGE = torch.tensor([1.0, 3.0, 5.0, -1.0])
ALL = torch.ones(4, dtype=torch.bool)
ONE_GROUP = torch.zeros(4, dtype=torch.long)
BY_SCALE = {
    "masked_whiten": lambda x: F.masked_whiten(x, ALL, eps=0.0),
    "masked_whiten, scale": lambda x: F.masked_whiten(x, ALL, False, eps=0.0),
    "explained_variance": lambda x: F.explained_variance(0.5 * x, x, ALL),
    "group_relative": lambda x: F.group_relative(x, ONE_GROUP, eps=0.0, tolerance=0.0),
    "group_relative_process": lambda x: F.group_relative_process(
        x[:, None], ALL[:, None], ALL[:, None], ONE_GROUP, eps=0.0, tolerance=0.0
    ),
}


@pytest.mark.parametrize("scale", [1e-30, 1e10, 1e20, 1e37])
@pytest.mark.parametrize("name", list(BY_SCALE))
def test_statistics_do_not_overflow_in_float32(name, scale):
    """1e20 squared is infinite in float32: the result would be 0 or nan, without a word."""
    want = BY_SCALE[name](LARGE.double())
    got = BY_SCALE[name]((LARGE.double() * scale).float())
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 5e37), (torch.float64, 1e160)])
@pytest.mark.parametrize("name", list(BY_SCALE))
def test_what_no_type_can_square_is_refused(name, dtype, scale):
    with pytest.raises(ValueError, match=r"has [1-4] non-finite value\(s\), or beyond"):
        BY_SCALE[name]((LARGE.double() * scale).to(dtype))
