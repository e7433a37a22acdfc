"""Reward terms, their sum, and where it lands in the batch."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_reason.advantages import GroupRelative
from lit_reason.backbones import character_tokenizer
from lit_reason.batch import Prompt, Response, RolloutBatch
from lit_reason.errors import ConfigError
from lit_reason.judge import judge, nonfinite_share, reward
from lit_reason.rewards import (
    Correctness,
    Format,
    KimiLength,
    LanguageConsistency,
    Reward,
    SoftOverlong,
    StepCorrectness,
    TokenReward,
)
from lit_reason.tasks import MathProblems, PlanCount, Task
from lit_reason.tasks.plan_count import ALPHABET
from lit_reason.verdict import Status, Verdict
from tests.conftest import SMALL, fails, fit, tiny

PROMPT = Prompt(0, "q", "a")


def responses(*lengths, text="x"):
    return [Response(tuple(range(n)), text, truncated=False) for n in lengths]


def ready(term, task=None, budget=20, tokenizer=None):
    term.setup(task or PlanCount(), budget, tokenizer)
    return term


def scores(term, *lengths, correct=None):
    group = responses(*lengths)
    return term(PROMPT, group, [Verdict.of(c) for c in correct or [True] * len(group)])


# --- outcome terms --------------------------------------------------------------------------------


def test_correctness_is_the_verdict():
    assert scores(Correctness(), 1, 1, correct=[True, False]) == [1.0, -1.0]
    assert scores(Correctness(1.0, 0.0), 1, 1, correct=[True, False]) == [1.0, 0.0]


@pytest.mark.parametrize("cache", [5, 0.25])
def test_the_soft_overlong_ramp_as_tokens_and_as_a_share(cache):
    """B24: the ramp of 5 tokens before a limit of 20."""
    term = ready(SoftOverlong(cache))
    expected = [0, 0, -0.2, -0.6, -1.0, -1.0]
    assert scores(term, 1, 15, 16, 18, 20, 21) == pytest.approx(expected)
    assert ready(SoftOverlong(cache, max_length=20), budget=30).ramp == 5


def test_a_share_of_the_limit_is_the_nearest_number_of_tokens():
    assert 0.29 * 100 < 29
    assert ready(SoftOverlong(0.29), budget=100).ramp == 29


def test_setting_up_again_does_not_move_the_ramp():
    term = ready(ready(SoftOverlong(5)))
    assert scores(term, 16) == pytest.approx([-0.2])


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (SoftOverlong(25), r"SoftOverlong\.cache=25: .* data\.sampling\.max_new_tokens=20"),
        (SoftOverlong(0), r"SoftOverlong\.cache=0"),
        (SoftOverlong(-1), r"SoftOverlong\.cache=-1"),
        (SoftOverlong(0.01), r"SoftOverlong\.cache=0\.01"),
        (SoftOverlong(5, max_length=0), r"SoftOverlong\.max_length=0: must be at least 1"),
        (SoftOverlong(5, max_length=25), r"max_length=25: would have no effect.*max_new_tokens=20"),
    ],
)
def test_a_ramp_that_cannot_act_is_refused(term, message):
    """B24: a buffer longer than the limit punishes everything, one past the budget nothing."""
    with pytest.raises(ConfigError, match=message):
        ready(term)


@given(st.lists(st.tuples(st.integers(1, 99), st.booleans()), min_size=1, max_size=8))
def test_kimi_prefers_the_shorter_of_equal_verdicts_and_never_pays_wrong_answers(group):
    lengths, correct = (list(column) for column in zip(*group, strict=True))
    values = scores(KimiLength(), *lengths, correct=correct)
    for value, right in zip(values, correct, strict=True):
        assert -0.5 <= value <= (0.5 if right else 0.0)
    for i, a in enumerate(lengths):
        for j, b in enumerate(lengths):
            if a <= b and correct[i] == correct[j]:
                assert values[i] >= values[j]
    if len(set(lengths)) == 1:
        assert values == [0.0] * len(values)


@pytest.mark.parametrize(
    ("pattern", "text", "value"),
    [
        (None, "1+2=2+1=3", 1.0),
        (None, " 1+2=3\n", 1.0),
        (None, "so 1+2=3", 0.0),
        (None, "", 0.0),
        (r"<think>.*</think>\s*<answer>.*</answer>", "<think>a\nb</think>\n<answer>1</answer>", 1),
        (r"<think>.*</think>\s*<answer>.*</answer>", "<think>a</think>", 0.0),
    ],
)
def test_format_wants_the_whole_response(pattern, text, value):
    term = ready(Format(pattern))
    assert term(PROMPT, responses(3, text=text), [Verdict.of(False)]) == [value]


def test_format_without_a_usable_pattern_is_refused(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"problem": "q", "answer": "1"}))
    with pytest.raises(ConfigError, match=r"Format\.pattern=null: MathProblems .* give a pattern"):
        ready(Format(), MathProblems(str(path)))
    with pytest.raises(ConfigError, match=r"Format\.pattern=\(: not a regular expression"):
        ready(Format("("))


@pytest.mark.parametrize(
    ("script", "text", "share"),
    [
        ("LATIN", "only English words", 1.0),
        ("LATIN", "où est l'été", 1.0),
        ("LATIN", "two слова", 0.5),
        ("LATIN", "one 两个 two", 0.5),
        ("CJK", "两个字 word", 0.75),
        ("CJK", "两个字", 1.0),
        ("CYRILLIC", "два слова and", 2 / 3),
        ("HANGUL", "안녕 hello", 0.5),
        ("LATIN", "1 + 2 = 3", 0.0),
        ("LATIN", "", 0.0),
        ("LATIN", "x_1 = 2", 1.0),
    ],
)
def test_language_consistency_is_the_share_of_words_in_the_script(script, text, share):
    term = LanguageConsistency(script)
    assert term(PROMPT, responses(1, text=text), [Verdict.of(True)]) == [pytest.approx(share)]


@pytest.mark.parametrize("term", [Correctness, SoftOverlong, KimiLength, Format, StepCorrectness])
def test_a_term_of_weight_zero_is_refused(term):
    with pytest.raises(ConfigError, match=rf"{term.__name__}\.weight=0: .* set it to null"):
        term(weight=0)


def test_a_verification_that_failed_is_wrong_or_on_request_unscored():
    statuses = [Status.CORRECT, Status.WRONG, Status.NO_ANSWER, Status.TIMEOUT, Status.ERROR]
    verdicts = [Verdict(status) for status in statuses]
    group = responses(1, 1, 1, 1, 1)
    assert Correctness()(PROMPT, group, verdicts) == [1, -1, -1, -1, -1]
    term = Correctness(1.0, 0.0, unverified="unscored")
    assert term(PROMPT, group, verdicts) == [1, 0, 0, None, None]


# --- steps ----------------------------------------------------------------------------------------


def piece_tokenizer():
    """Tokens of one to five characters, some of which reach over the end of a step."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<eos>"], show_progress=False)
    core.train_from_iterator(["7+4=8+3=9+2=10+1=11", "0+2=1+1=2", "3+3=4+2=5+1=6"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")


@pytest.mark.parametrize("make", [piece_tokenizer, lambda: character_tokenizer(ALPHABET)])
def test_step_rewards_sit_on_the_token_that_completes_the_step(make):
    tokenizer = make()
    task = PlanCount(n_max=4)
    prompt = task[0]  # max(0,1)+2=
    term = ready(StepCorrectness(2.0, -3.0), task, tokenizer=tokenizer)
    wide = 0
    for text in ("1+2=2+1=3", "0+2=1+1=2", "1+2=9+9=3", "", "=", "1+2"):
        ids = (*tokenizer(text)["input_ids"], tokenizer.eos_token_id)
        wide += len(ids) <= len(text)
        (row,) = term(prompt, [Response(ids, text, truncated=False)], [Verdict.of(True)])
        assert len(row) == len(ids)
        expected = {}
        for end, valid in task.judge_steps(prompt, text):
            reached = [
                len(tokenizer.decode(ids[: t + 1], skip_special_tokens=True)) >= end
                for t in range(len(ids))
            ]
            expected[reached.index(True)] = 2.0 if valid else -3.0
        assert {t: v for t, v in enumerate(row) if v is not None} == expected
    assert (wide > 0) == (make is piece_tokenizer)


def test_steps_cannot_be_rewarded_where_the_task_judges_none(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"problem": "q", "answer": "1"}))
    with pytest.raises(ConfigError, match=r"StepCorrectness: MathProblems does not judge steps"):
        ready(StepCorrectness(), MathProblems(str(path)))


# --- the sum --------------------------------------------------------------------------------------


class Verdicts(Task):
    """Says that the responses with text "right" are right."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return PROMPT

    def verify(self, prompt, text):
        return text == "right"


def judged(responses, terms):
    (verdicts,) = judge([PROMPT], [responses], Verdicts())
    return reward(PROMPT, [1], responses, verdicts, terms)


def test_a_task_that_returns_too_few_verdicts_is_named():
    class Short(Verdicts):
        def judge(self, prompts, texts):
            return super().judge(prompts[1:], texts[1:])

    with pytest.raises(ConfigError, match=r"^data\.task: Short returned 1 verdicts for 2"):
        judge([PROMPT], [responses(3, 3)], Short())


def group_of(lengths, texts):
    return [
        Response(tuple(range(n)), text, truncated=False)
        for n, text in zip(lengths, texts, strict=True)
    ]


def test_the_weighted_terms_are_summed_before_the_group_is_normalised():
    """R = R_acc + w R_len, then the statistics of the group (DAPO Eq. 13)."""
    lengths, texts = (4, 18, 20, 20), ("right", "right", "wrong", "right")
    terms = {"correctness": Correctness(), "length": ready(SoftOverlong(5, weight=0.5))}
    group = judged(group_of(lengths, texts), terms)
    assert group.correct == [True, True, False, True]
    totals = torch.tensor([1.0, 1.0 - 0.3, -1.0 - 0.5, 1.0 - 0.5])
    assert group.rewards == pytest.approx(totals.tolist())
    assert group.terms["length"] == pytest.approx([0.0, -0.3, -0.5, -0.5])
    assert group.token_rewards is None

    batch = RolloutBatch.from_groups([group], pad_id=0)
    tokens = torch.zeros(batch.response_ids.shape)
    tokens[torch.arange(4), batch.lengths - 1] = batch.rewards
    advantages = GroupRelative()(batch, tokens, None).advantages[:, 0]
    expected = (totals - totals.mean()) / totals.std()
    torch.testing.assert_close(advantages, expected, atol=1e-4, rtol=1e-4)


class Token(TokenReward):
    """Rewards the second token of each response."""

    def __call__(self, prompt, responses, verdicts):
        return [[None, 3.0, *[None] * (r.length - 2)] for r in responses]


def test_token_terms_stay_on_their_tokens_and_the_outcome_is_a_step_too():
    terms = {"correctness": Correctness(), "a": Token(weight=0.5), "b": Token(weight=2.0)}
    group = judged(group_of((4, 2), ("right", "wrong")), terms)
    batch = RolloutBatch.from_groups([group], pad_id=0)
    assert batch.rewards.tolist() == [1.0, -1.0]
    assert batch.token_rewards.tolist() == [[0, 7.5, 0, 0], [0, 7.5, 0, 0]]
    assert batch.step_mask.tolist() == [
        [False, True, False, True],
        [False, True, False, False],
    ]
    assert group.terms["a"] == [1.5, 1.5]


def test_without_an_outcome_term_only_judged_tokens_are_steps():
    group = judged(group_of((4,), ("right",)), {"a": Token()})
    batch = RolloutBatch.from_groups([group], pad_id=0)
    assert batch.step_mask.tolist() == [[False, True, False, False]]
    assert batch.rewards.tolist() == [0.0]


class Returns(Reward):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def __call__(self, prompt, responses, verdicts):
        return self.value


class ReturnsTokens(Returns):
    per_token = True


class SizeAlone:
    def __len__(self):
        return 2


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (Returns([1.0]), "returned 1 values for 2 responses"),
        (Returns([]), "returned 0 values for 2 responses"),
        (Returns(None), "returned None, expected one value for each of 2 responses"),
        (Returns(0.5), "returned 0.5, expected one value"),
        (Returns([1.0, "good"]), "returned 'good', expected a number"),
        (Returns(["1", "1"]), "returned '1', expected a number"),
        (Returns([1.0, b"1"]), "returned b'1', expected a number"),
        (Returns("11"), "returned '11', expected one value for each of 2 responses"),
        (Returns({0: 1.0, 1: 0.0}), r"returned \{0: 1.0, 1: 0.0\}, expected one value"),
        (Returns({0.0, 1.0}), r"returned \{0.0, 1.0\}, expected one value"),
        (Returns([1.0, 1e18]), r"returned 1e\+18; rewards must be below 1e\+18 in size"),
        (
            Returns(torch.tensor([1.0, 0.0]).mean()),
            r"returned tensor\(0.5000\), expected one value",
        ),
        (Returns(np.array(0.5)), r"returned array\(0.5\), expected one value"),
        (Returns(SizeAlone()), "returned <.*SizeAlone object at .*, expected one value"),
        (Returns(10**5000), "returned int, expected one value"),
        (Returns([10**400, 10**5000]), r"returned inf; rewards must be below 1e\+18 in size"),
        (Returns([1.0, 2j]), "returned 2j, expected a number"),
        (Returns(torch.ones(2) + 1j), r"returned tensor\(1\.\+1\.j\), expected a number"),
        (Returns(torch.ones(2) + 0j), r"returned tensor\(1\.\+0\.j\), expected a number"),
        (Returns(np.ones(2) + 0j), r"returned .*1\+0j.*, expected a number"),
        (Returns(torch.ones(2, 2)), r"returned tensor\(\[1., 1.\]\), expected a number"),
        (ReturnsTokens(torch.ones(2)), r"returned tensor\(1.\), expected one value for each of a"),
        (ReturnsTokens([[1.0, 1.0, 1.0]]), "returned 1 values for 2 responses"),
        (ReturnsTokens([[1.0], [1.0]]), "returned 1 values for a response of 3 tokens"),
        (ReturnsTokens([None, None]), "returned None, expected one value for each of a response"),
    ],
)
def test_what_a_term_may_not_return_is_named_with_the_term(term, message):
    with pytest.raises(ConfigError, match=rf"^data\.rewards\.mine: Returns\w* {message}.*; "):
        judged(responses(3, 3), {"mine": term})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, torch.tensor(math.nan)])
def test_a_response_with_a_value_that_is_not_finite_is_unscored_whatever_others_say(bad):
    rewards = {"mine": Returns([1.0, bad]), "other": Returns([0.5, 0.5])}
    group = judged(responses(3, 3), rewards)
    assert (group.rewards, group.scored) == ([1.5, 0.0], [True, False])
    assert group.terms == {"mine": [1.0, None], "other": [0.5, 0.5]}
    assert group.nonfinite == {"mine": {1}}
    assert nonfinite_share([group]) == 0.5
    tokens = ReturnsTokens([[1.0, None, 2.0], [1.0, bad, 1.0]])
    group = judged(responses(3, 3), {"steps": tokens, "other": Returns([0.5, 0.5])})
    assert group.scored == [True, False]
    assert group.token_rewards == [[1.0, None, 2.0], [None, None, 0.0]]
    assert group.nonfinite == {"steps": {1}}


@pytest.mark.parametrize(
    "values",
    [[1, 0], [True, False], (1.0, 0.0), torch.tensor([1.0, 0.0]), torch.tensor([1, 0])],
    ids=lambda v: type(v).__name__,
)
def test_integers_booleans_and_tensors_are_numbers_too(values):
    """B02: a user's function returns what is natural to it."""
    group = judged(responses(3, 3), {"mine": Returns(values)})
    assert group.rewards == [1.0, 0.0]
    assert RolloutBatch.from_groups([group], pad_id=0).rewards.dtype == torch.float32


# --- through the command line ---------------------------------------------------------------------

OWN = """
from lit_reason.rewards import Reward

class Shorter(Reward):
    '''Prefers short responses.

    Args:
        scale: Tokens that cost one.
        weight: Multiplies the term.
    '''

    def __init__(self, scale: float = 10.0, weight: float = 1.0):
        super().__init__(weight)
        self.scale = scale

    def __call__(self, prompt, responses, verdicts):
        return [-r.length / self.scale for r in responses]

class Broken(Reward):
    def __call__(self, prompt, responses, verdicts):
        return ["good"] * len(responses)
"""


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    (tmp_path / "own_rewards_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def rows_of(run_dir):
    import csv

    with (run_dir / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row.get("reward")]


@pytest.mark.usefixtures("own_file")
def test_a_users_reward_is_named_by_its_dotted_path():
    run_dir = fit(
        *tiny("grpo"),
        *SMALL,
        "--data.rewards.shorter=own_rewards_of_a_user.Shorter",
        "--data.rewards.shorter.scale=5",
        "--data.rewards.shorter.weight=2",
    )
    for row in rows_of(run_dir):
        length = float(row["response_length"])
        assert float(row["reward/shorter"]) == pytest.approx(-2 * length / 5, rel=1e-5)
        total = float(row["reward/shorter"]) + float(row["reward/correctness"])
        assert float(row["reward"]) == pytest.approx(total, rel=1e-5)


@pytest.mark.usefixtures("own_file")
def test_a_users_broken_reward_ends_the_run_in_one_line(capsys):
    message = fails(
        capsys,
        "fit",
        *tiny("grpo"),
        *SMALL,
        "--data.rewards.broken=own_rewards_of_a_user.Broken",
        "--run_dir=run",
    )
    assert message.startswith("error: data.rewards.broken: Broken returned 'good', expected")


def test_steps_are_rewarded_in_a_run_whose_held_out_problems_are_others():
    """Process supervision reads the training task; evaluation must not look up its rows there."""
    run_dir = fit(
        *tiny("grpo"),
        *SMALL,
        "--data.task.limit=5",
        "--data.val_task.limit=12",
        "--data.rewards.steps=StepCorrectness",
        "--data.rewards.steps.weight=0.5",
    )
    for row in rows_of(run_dir):
        assert abs(float(row["reward/steps"])) > 0.1
        assert float(row["reward"]) == pytest.approx(float(row["reward/correctness"]), rel=1e-5)


def test_dropping_the_last_term_is_refused(capsys):
    message = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--data.rewards.correctness=null")
    assert message.startswith("error: data.rewards: no term is left")
