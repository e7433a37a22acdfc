"""Log-probabilities and entropy: values, gradients, shift, temperature and memory."""

import math
import weakref

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY
from torch.utils._python_dispatch import TorchDispatchMode

from lit_reason.functional import (
    clip_masks,
    clipped_surrogate,
    hidden_logprobs_and_entropy,
    kl_k3,
    logprobs_and_entropy,
    masked_mean,
)


def plain(logits, ids, temperature=1.0):
    logp = (logits / temperature).log_softmax(-1)
    return logp.gather(-1, ids[..., None]).squeeze(-1), -(logp.exp() * logp).sum(-1)


def problem(rows, steps, vocab, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, steps, vocab, generator=g, dtype=torch.float64)
    ids = torch.randint(0, vocab, (rows, steps), generator=g)
    return logits.to(dtype).requires_grad_(), ids


shapes = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 9))
chunks = st.sampled_from([None, 1, 2, 3, 5, 8, 100])


@pytest.mark.parametrize("way", ["logits", "hidden"])
def test_at_the_vocabulary_of_a_real_model_float32_is_within_1e_6_of_float64(way):
    """Relative to the size of the numbers: a log-probability of -11 is rounded to 1e-6 itself."""
    exact, ids = problem(2, 8, 49_152)
    want = plain(exact, ids)
    (want_grad,) = torch.autograd.grad((want[0] + 0.1 * want[1]).sum(), exact)
    logits = exact.detach().float().requires_grad_()
    if way == "logits":
        got = logprobs_and_entropy(logits, ids, entropy="grad", chunk=5)
    else:
        got = hidden_logprobs_and_entropy(logits, lambda h: h, ids, entropy="grad", chunk=5)
    (grad,) = torch.autograd.grad((got[0] + 0.1 * got[1]).sum(), logits)
    for found, exactly in zip(got, want, strict=True):
        torch.testing.assert_close(found.double(), exactly, rtol=1e-6, atol=0)
    torch.testing.assert_close(grad.double(), want_grad, rtol=0, atol=1e-6)


@PROPERTY
@given(shapes, st.integers(0, 99), st.sampled_from([0.5, 1.0, 2.0]), chunks)
def test_values_equal_the_definition(shape, seed, temperature, chunk):
    logits, ids = problem(*shape, seed)
    logp, entropy = logprobs_and_entropy(logits, ids, temperature, "detached", chunk)
    for i in range(shape[0]):
        for t in range(shape[1]):
            want = oracles.logprobs_and_entropy(logits[i, t].tolist(), int(ids[i, t]), temperature)
            got = (logp[i, t].item(), entropy[i, t].item())
            assert got == pytest.approx(want, abs=1e-12)


@PROPERTY
@given(shapes, st.integers(0, 99), st.sampled_from([0.5, 1.0]), chunks, st.booleans())
def test_gradients_equal_the_plain_computation(shape, seed, temperature, chunk, with_entropy):
    logits, ids = problem(*shape, seed)
    g = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(shape[:2], generator=g, dtype=torch.float64) for _ in range(2))
    mode = "grad" if with_entropy else "detached"
    mine = logprobs_and_entropy(logits, ids, temperature, mode, chunk)
    want = plain(logits, ids, temperature)
    total = [(a * x[0]).sum() + ((b * x[1]).sum() if with_entropy else 0) for x in (mine, want)]
    grads = [torch.autograd.grad(t, logits)[0] for t in total]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-12)


def test_gradcheck():
    logits, ids = problem(2, 3, 5)
    assert torch.autograd.gradcheck(lambda x: logprobs_and_entropy(x, ids, 0.7, "grad", 2), logits)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_logits_are_scored_in_float32(dtype, temperature):
    """Also divided by the temperature: logits / 0.7 is no number of half precision."""
    logits, ids = problem(2, 4, 50, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logp, entropy = logprobs_and_entropy(logits, ids, temperature, "grad")
    want = plain(logits.double(), ids, temperature)
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp.double(), want[0], rtol=0, atol=2e-6)
    torch.testing.assert_close(entropy.double(), want[1], rtol=0, atol=2e-6)
    (grad,) = torch.autograd.grad((logp + entropy).sum(), logits)
    assert grad.dtype == dtype
    (exact,) = torch.autograd.grad((want[0] + want[1]).sum(), logits)
    step = torch.finfo(dtype).eps  # of the rounding to the type of the logits, which comes last
    torch.testing.assert_close(grad, exact, rtol=step, atol=2e-6)


def test_strided_logits_and_other_ranks():
    logits, ids = problem(3, 5, 7)
    whole = plain(logits[:, :-1], ids[:, 1:])[0]
    torch.testing.assert_close(logprobs_and_entropy(logits[:, :-1], ids[:, 1:], chunk=3)[0], whole)
    flat = logprobs_and_entropy(logits.flatten(0, 1), ids.flatten(), chunk=4)[0]
    torch.testing.assert_close(flat.view(3, 5), plain(logits, ids)[0])
    scalar = logprobs_and_entropy(logits[0, 0], ids[0, 0])[0]
    torch.testing.assert_close(scalar, plain(logits, ids)[0][0, 0])
    empty = logprobs_and_entropy(logits[:, :0], ids[:, :0], 1.0, "grad")
    assert [tuple(x.shape) for x in empty] == [(3, 0), (3, 0)]


def test_b13_logits_of_the_previous_position_predict_a_token():
    """Logits put 20 on (token + 1) mod 8; prompt [0, 1], response [2, 3, 4]."""
    sequence = torch.tensor([[0, 1, 2, 3, 4]])
    logits = 20.0 * torch.nn.functional.one_hot((sequence + 1) % 8, 8).float()
    right = logprobs_and_entropy(logits[:, 1:-1], sequence[:, 2:])[0]
    assert right.shape == (1, 3)
    assert (right > -1e-6).all()
    wrong = logprobs_and_entropy(logits[:, 2:], sequence[:, 2:])[0]
    torch.testing.assert_close(wrong, torch.full((1, 3), -20.0), rtol=0, atol=1e-4)


def test_b15_one_path_gives_equal_log_probs_whatever_the_chunk():
    """Ratio exactly 1, clip fraction 0, k3 exactly 0 on unchanged weights, also in bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        logits, ids = problem(3, 5, 40, dtype=dtype)
        old = logprobs_and_entropy(logits.detach(), ids, 0.7, chunk=4)[0]
        new = logprobs_and_entropy(logits, ids, 0.7, "grad", chunk=15)[0]
        assert torch.equal(old, new)
        assert torch.equal(clipped_surrogate(new, old, torch.ones(3, 5)), -torch.ones(3, 5))
        assert not any(m.any() for m in clip_masks(new, old, torch.ones(3, 5)))
        assert (kl_k3(new, old) == 0).all()


@pytest.mark.parametrize(
    ("temperature", "want"), [(1.0, -0.40761), (0.5, -0.14293), (2.0, -0.68027), (0.0, -0.40761)]
)
def test_c07_temperature(temperature, want):
    """C07; temperature 0 is greedy sampling, scored at 1 without a division."""
    got = logprobs_and_entropy(torch.tensor([[[2.0, 1, 0]]]), torch.tensor([[0]]), temperature)[0]
    assert got.item() == pytest.approx(want, abs=5e-6)


@pytest.mark.parametrize("vocab", [8, 151936])
def test_b25_entropy_of_a_uniform_distribution(vocab):
    want = {8: 2.07944, 151936: 11.931215}[vocab]
    logits = torch.zeros(1, 2, vocab)
    entropy = logprobs_and_entropy(logits, torch.zeros(1, 2).long(), 1.0, "detached")[1]
    assert entropy.tolist() == [pytest.approx([want] * 2, abs=5e-6)]


@pytest.mark.parametrize("width", [5, 50])
@pytest.mark.parametrize("padding", [0.0, 1e4, float("nan")])
def test_b25_padding_does_not_enter_the_mean_entropy(width, padding):
    mask = torch.arange(width) < torch.tensor([[2], [5]])
    logits = torch.where(mask[..., None], torch.zeros(2, width, 8), padding)
    logits[..., 0] = torch.where(mask, 0.0, 50.0)
    entropy = logprobs_and_entropy(logits, torch.zeros(2, width).long(), 1.0, "detached")[1]
    assert masked_mean(entropy, mask).item() == pytest.approx(2.07944, abs=1e-5)


def test_forbidden_tokens_do_not_poison_entropy_or_gradient():
    logits = torch.tensor([[[0.0, 0.0, -math.inf]]], requires_grad=True)
    logp, entropy = logprobs_and_entropy(logits, torch.tensor([[1]]), 1.0, "grad")
    (logp + entropy).sum().backward()
    assert entropy.item() == pytest.approx(math.log(2))
    torch.testing.assert_close(logits.grad, torch.tensor([[[-0.5, 0.5, 0.0]]]))


def test_f04_entropy_is_computed_only_when_asked_for():
    logits, ids = problem(1, 2, 5)
    assert logprobs_and_entropy(logits, ids)[1] is None
    logp, entropy = logprobs_and_entropy(logits, ids, 1.0, "detached")
    assert logp.requires_grad
    assert not entropy.requires_grad


def test_f03_only_the_last_positions_are_needed():
    logits, ids = problem(1, 504, 11)
    whole = logprobs_and_entropy(logits[:, :-1], ids[:, 1:])[0][:, -4:]
    last = logprobs_and_entropy(logits[:, -5:-1], ids[:, -4:])[0]
    torch.testing.assert_close(last, whole, rtol=0, atol=1e-6)
    assert last.shape == (1, 4)


# ---- from hidden states -------------------------------------------------------------------------


@PROPERTY
@given(shapes, st.integers(0, 99), st.sampled_from([0.5, 1.0, 2.0]), st.integers(1, 30))
def test_hidden_states_equal_the_definition(shape, seed, temperature, chunk):
    hidden, _ = problem(*shape[:2], 4, seed)
    head, ids = torch.nn.Linear(4, shape[2], bias=False).double(), problem(*shape, seed)[1]
    logp, h = hidden_logprobs_and_entropy(hidden, head, ids, temperature, "detached", chunk)
    weight = head.weight.tolist()
    for i in range(shape[0]):
        for t in range(shape[1]):
            state, token = hidden[i, t].tolist(), int(ids[i, t])
            want = oracles.hidden_logprobs_and_entropy(state, weight, token, temperature)
            assert (logp[i, t].item(), h[i, t].item()) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("entropy", ["none", "detached", "grad"])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_hidden_states_give_the_same_values_and_gradients(entropy, chunk):
    g = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(6, 13, bias=False, dtype=torch.float64)
    hidden = torch.randn(3, 5, 6, generator=g, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 13, (3, 5), generator=g)
    mine = hidden_logprobs_and_entropy(hidden, head, ids, 0.7, entropy, chunk)
    want = plain(head(hidden), ids, 0.7)
    torch.testing.assert_close(mine[0], want[0])
    losses = [x[0].square().sum() + (x[1].sum() if entropy == "grad" else 0) for x in (mine, want)]
    grads = [torch.autograd.grad(x, (hidden, head.weight)) for x in losses]
    torch.testing.assert_close(grads[0], grads[1])
    if entropy == "none":
        assert mine[1] is None
    else:
        torch.testing.assert_close(mine[1], want[1])


# ---- memory -------------------------------------------------------------------------------------


class Peak(TorchDispatchMode):
    """Bytes of tensor storage alive at once, counted from where the mode starts."""

    def __init__(self, *known):
        super().__init__()
        self.live = {t.untyped_storage()._cdata for t in known}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage())
        return out

    def count(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.live:
            self.live.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.drop, key, size)

    def drop(self, key, size):
        self.live.discard(key)
        self.now -= size


@pytest.mark.parametrize("entropy", ["none", "detached", "grad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_f01_f04_peak_extra_memory_is_under_a_quarter_of_the_logits(entropy, dtype):
    """2 x 128 x 10000, a slice as a model yields it; the gradient itself is one more copy."""
    whole = torch.randn(2, 129, 10000).to(dtype).requires_grad_()
    logits, ids = whole[:, :-1], torch.randint(0, 10000, (2, 128))
    size = logits.numel() * logits.element_size()
    with Peak(whole) as forward:
        logp, h = logprobs_and_entropy(logits, ids, 0.9, entropy)
    assert forward.peak < 0.25 * size
    loss = logp.sum() + (h.sum() if entropy == "grad" else 0)
    with Peak(whole) as backward:
        torch.autograd.grad(loss, logits)
    assert size <= backward.peak < 1.25 * size


def test_f01_the_gauge_sees_the_plain_computation():
    whole, ids = torch.randn(2, 64, 10000, requires_grad=True), torch.randint(0, 10000, (2, 64))
    with Peak(whole) as forward:
        plain(whole, ids)
    assert forward.peak >= 2 * whole.numel() * 4


def test_hidden_path_never_holds_the_logits_of_all_positions():
    head = torch.nn.Linear(8, 5000, bias=False)
    hidden, ids = torch.randn(1, 512, 8, requires_grad=True), torch.randint(0, 5000, (1, 512))
    with Peak(head.weight, hidden) as gauge:
        logp, h = hidden_logprobs_and_entropy(hidden, head, ids, 1.0, "grad", 32)
        torch.autograd.grad(logp.sum() + h.sum(), (hidden, head.weight))
    assert gauge.peak < 0.25 * ids.numel() * 5000 * 4
