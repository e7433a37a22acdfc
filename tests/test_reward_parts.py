"""Reward terms that come from elsewhere: a user's function, a reward model."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from lit_reason.backbones import character_tokenizer
from lit_reason.batch import Prompt, Response
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.judge import reward
from lit_reason.rewards import Correctness, FunctionReward, RewardModel
from lit_reason.tasks import PlanCount, Task
from lit_reason.verdict import Verdict
from tests.conftest import SMALL, fails, fit, tiny
from tests.test_rewards import rows_of

PLAIN = Prompt(3, "1+1=", "2", source="sums", columns={"level": 4})
CHAT = Prompt(3, "1+1=", "2", messages=({"role": "user", "content": "1+1="},))
ANSWERS = [Response((7, 8, 1), "1+1=2", False), Response((7, 1), "3", False)]

OWN = """
import functools

def seen(prompts, completions, completion_ids, **columns):
    seen.calls.append(dict(prompts=prompts, completions=completions, ids=completion_ids, **columns))
    return [1.0] * len(prompts)

seen.calls = []

def right(completions, answer):
    return [float(c.endswith(a)) for c, a in zip(completions, answer)]

def sometimes(completions, **kwargs):
    return [None if i % 2 else -len(c) for i, c in enumerate(completions)]

def wants(completions, level, colour="red"):
    return [0.0] * len(completions)

def broken(completions, **kwargs):
    return 1 / 0

def by_place(completions, /, **kwargs):
    return [0.0] * len(completions)

async def later(completions, **kwargs):
    return [0.0]

class Later:
    async def __call__(self, completions, **kwargs):
        return [0.0]

later_object = Later()
later_part = functools.partial(later, level=1)

def later_result(completions, **kwargs):
    return later(completions)

number = 3
"""


@pytest.fixture(autouse=True)
def _own_file(tmp_path, monkeypatch):
    (tmp_path / "own_functions.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


class OneProblem(Task):
    """PLAIN, and responses that state its answer behind `=`."""

    def __init__(self, prompt=PLAIN):
        self.prompt = prompt

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.prompt

    def verify(self, prompt, text):
        return text.endswith(prompt.answer)


def call(term, prompt=PLAIN):
    return term(prompt, ANSWERS, [Verdict.of(True), Verdict.of(False)])


# --- functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["own_functions.py:seen", "own_functions.seen"])
def test_a_function_gets_what_trl_gives_it(path):
    term = FunctionReward(path)
    term.check(OneProblem(), "data.task")
    assert call(term) == [1.0, 1.0]
    gold = ["2", "2"]
    assert term.function.calls.pop() == {
        "prompts": ["1+1=", "1+1="],
        "completions": ["1+1=2", "3"],
        "ids": [[7, 8, 1], [7, 1]],
        "answer": gold,
        "solution": gold,
        "ground_truth": gold,
        "source": ["sums", "sums"],
        "level": [4, 4],
    }
    call(term, CHAT)
    got = term.function.calls.pop()
    assert got["prompts"] == [[{"role": "user", "content": "1+1="}]] * 2
    assert got["completions"] == [
        [{"role": "assistant", "content": "1+1=2"}],
        [{"role": "assistant", "content": "3"}],
    ]


def test_a_function_without_kwargs_gets_only_what_it_asks_for():
    assert call(FunctionReward("own_functions.right")) == [1.0, 0.0]


def test_a_column_of_the_data_set_comes_before_the_gold_answer():
    prompt = Prompt(0, "q", "gold", columns={"answer": "3"})
    assert call(FunctionReward("own_functions.right"), prompt) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_functions.missing", r"own_functions has no function 'missing'; give module\."),
        ("own_functions.number", r"own_functions has no function 'number'"),
        ("own_functions.py:missing", r"own_functions has no function 'missing'"),
        ("elsewhere.py:fn", r"no such file elsewhere\.py"),
        ("elsewhere.fn", r"cannot be imported \(ModuleNotFoundError: .*elsewhere"),
        ("fn", r"names no module; give module\.function or FILE\.py:function"),
        ("own_functions.by_place", r"takes completions by position only, .* drop the /"),
        ("builtins.dict", r"its parameters are not known"),
        ("own_functions.later_object", r"an async function"),
        ("own_functions.later_part", r"an async function"),
        ("own_functions.later", r"an async function; wrap it in one that runs it"),
        ("broken_file.py:fn", r"cannot be imported \(SyntaxError"),
    ],
)
def test_a_path_that_names_no_function_is_refused(path, message, tmp_path):
    (tmp_path / "broken_file.py").write_text("def")
    with pytest.raises(ConfigError, match=rf"^FunctionReward\.path={path}: {message}"):
        FunctionReward(path)


def test_a_function_that_returns_what_is_to_be_waited_for_is_refused():
    with pytest.raises(ConfigError, match=r"later_result: an async function; wrap it") as error:
        call(FunctionReward("own_functions.later_result"))
    assert "\n" not in str(error.value)


def test_a_column_that_the_task_does_not_have_is_missed_at_set_up():
    term = FunctionReward("own_functions.wants")
    term.check(OneProblem(), "data.task")
    with pytest.raises(ConfigError, match=r"for level, which data\.val_task=PlanCount does not"):
        term.check(PlanCount(), "data.val_task")


@pytest.mark.filterwarnings("ignore:.*does not apply")  # of sizes of the built-in task
@pytest.mark.parametrize("short", ["task", "val_task"])
def test_a_column_that_one_of_the_tasks_does_not_have_is_missed_before_anything_runs(capsys, short):
    (Path("columns.py")).write_text(
        "from lit_reason.tasks import PlanCount\n"
        "from dataclasses import replace\n"
        "class Levels(PlanCount):\n"
        "    def __getitem__(self, index):\n"
        "        return replace(super().__getitem__(index), columns={'level': 1})\n"
    )
    other = {"task": "val_task", "val_task": "task"}[short]
    message = fails(
        capsys,
        "fit",
        *tiny("grpo"),
        *SMALL,
        f"--data.{other}=columns.Levels",
        "--data.rewards.mine=FunctionReward",
        "--data.rewards.mine.path=own_functions.py:wants",
        "--run_dir=run",
    )
    assert f"asks for level, which data.{short}=PlanCount does not give" in message
    assert f"data.{short}.columns" in message


def test_a_users_function_trains_a_run_and_counts_what_it_leaves_out():
    run_dir = fit(
        *tiny("grpo"),
        *SMALL,
        "--data.rewards.correctness=null",
        "--data.rewards.mine=FunctionReward",
        "--data.rewards.mine.path=own_functions.py:sometimes",
        "--trainer.limit_val_batches=0",
    )
    rows = rows_of(run_dir)
    assert len(rows) == 2
    for row in rows:
        assert float(row["reward/unscored"]) == float(row["reward/mine/unscored"]) == 0.5
        assert float(row["reward"]) == pytest.approx(float(row["reward/mine"]), rel=1e-5)
        assert float(row["reward"]) < 0


def test_a_function_whose_none_must_not_train_is_required():
    Path("nothing.py").write_text(
        "def odd(completions, **_): return [None, 1.0] * (len(completions) // 2)\n"
    )
    answers, verdicts = [ANSWERS[0]] * 2, [Verdict.of(True)] * 2
    for required in (False, True):
        mine = FunctionReward("nothing.py:odd", required=required)
        group = reward(PLAIN, [1], answers, verdicts, {"right": Correctness(), "mine": mine})
        assert group.scored == [not required, True]


def test_a_term_that_scores_nothing_beside_another_is_warned_of_once():
    Path("silent.py").write_text("def never(completions, **_): return [None] * len(completions)\n")
    mine = ["--data.rewards.mine=FunctionReward", "--data.rewards.mine.path=silent.py:never"]
    message = r"^data\.rewards\.mine=silent\.py:never: gave no value to any of the \d+ resp.* None$"
    with pytest.warns(ConfigWarning, match=message) as caught:
        run_dir = fit(*tiny("grpo"), *SMALL, *mine, "--trainer.limit_val_batches=0")
    assert sum("gave no value" in str(w.message) for w in caught) == 1
    for row in rows_of(run_dir):
        assert float(row["reward/mine/unscored"]) == 1
        assert float(row["reward/correctness/unscored"]) == float(row["reward/unscored"]) == 0


def test_what_a_function_may_not_return_is_told_with_its_name():
    Path("odd.py").write_text("def one(completions, **_): return [1.0]\n")
    term = FunctionReward("odd.py:one")
    message = r"^data\.rewards\.mine: odd\.py:one returned 1 values for 2 responses; return 2"
    with pytest.raises(ConfigError, match=message):
        reward(PLAIN, [1], [ANSWERS[0]] * 2, [Verdict.of(True)] * 2, {"mine": term})


def test_a_users_broken_function_ends_the_run_in_one_line(capsys):
    message = fails(
        capsys,
        "fit",
        *tiny("grpo"),
        *SMALL,
        "--data.rewards.mine=FunctionReward",
        "--data.rewards.mine.path=own_functions.py:broken",
        "--run_dir=run",
    )
    expected = "FunctionReward raised ZeroDivisionError: division by zero (at own_functions.py:"
    assert expected in message
    assert message.startswith("error: data.rewards.mine: ")


# --- reward models --------------------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}{{ '(' if m.role == 'user' else ')' }}{{ m.content }}{% endfor %}"
)


def saved(folder, labels=1, cls=LlamaForSequenceClassification, template=None, **settings):
    torch.manual_seed(0)
    tokenizer = character_tokenizer("0123456789+=(),")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=labels,
        initializer_range=0.5,
        bos_token_id=None,
        **{"pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": 24, **settings},
    )
    cls(config).save_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


def model_of(folder, **settings):
    term = RewardModel(folder, **settings)
    term.setup(OneProblem(), 8, None)
    return term


def expected(folder, *texts):
    """Scores one by one, without padding."""
    model = LlamaForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        ids = [torch.tensor([tokenizer(text)["input_ids"]]) for text in texts]
        return [model(row).logits.item() for row in ids]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_a_reward_model_scores_prompt_and_response_in_batches_of_any_size(tmp_path, batch_size):
    folder = saved(tmp_path / "rm")
    scores = call(model_of(folder, batch_size=batch_size))
    want = expected(folder, "1+1=1+1=2", "1+1=3")
    assert scores == pytest.approx(want, abs=1e-5)
    assert abs(want[0] - want[1]) > 1e-3


def test_half_a_surrogate_pair_in_a_response_is_scored(tmp_path):
    """Tokenizers take nothing that UTF-8 has no place for."""
    term = model_of(saved(tmp_path / "rm"))
    (score,) = term(PLAIN, [Response((1, 2), "2\ud800", False)], [])
    assert score is not None


def test_a_chat_goes_through_the_models_own_template(tmp_path):
    folder = saved(tmp_path / "rm", template=TEMPLATE)
    want = expected(folder, "(1+1=)1+1=2", "(1+1=)3")
    assert call(model_of(folder), CHAT) == pytest.approx(want, abs=1e-5)
    plain = saved(tmp_path / "plain")
    want = expected(plain, "1+1=1+1=2", "1+1=3")
    assert call(model_of(plain), CHAT) == pytest.approx(want, abs=1e-5)


def test_the_score_is_read_at_the_end_token_also_where_it_pads(tmp_path):
    """C02: a tokenizer without a padding token, and a template that ends with the end token."""
    template = TEMPLATE + "<eos>"
    folder = saved(tmp_path / "rm", template=template, pad_token_id=None)
    want = expected(folder, "(1+1=)1+1=2<eos>", "(1+1=)3<eos>")
    assert call(model_of(folder), CHAT) == pytest.approx(want, abs=1e-5)
    before = expected(folder, "(1+1=)1+1=2", "(1+1=)3")
    assert all(abs(a - b) > 1e-3 for a, b in zip(want, before, strict=True))


def test_a_text_without_a_token_is_unscored(tmp_path):
    term = model_of(saved(tmp_path / "rm"))
    empty = Prompt(0, "", "2")
    assert term(empty, [Response((1,), "", False)], [Verdict.of(True)]) == [None]


def test_a_text_that_does_not_fit_is_unscored_and_not_cut(tmp_path):
    folder = saved(tmp_path / "rm")
    long = [Response((1,), "1" * 20, False), Response((1,), "1" * 21, False), ANSWERS[0]]
    scores = model_of(folder)(PLAIN, long, [Verdict.of(True)] * 3)
    assert scores[1] is None
    assert scores[::2] == pytest.approx(expected(folder, "1+1=" + "1" * 20, "1+1=1+1=2"), abs=1e-5)
    assert call(model_of(folder, max_length=5))[0] is None


def test_a_reward_model_follows_the_device_of_the_policy(tmp_path):
    term = model_of(saved(tmp_path / "rm"))

    class Module:
        device = torch.device("meta")

    term.bind(Module())
    with pytest.raises((NotImplementedError, RuntimeError)):  # meta tensors hold no numbers
        call(term)
    assert term.model.device.type == "meta"


def test_weights_are_loaded_once_and_in_the_type_asked_for(tmp_path):
    term = model_of(saved(tmp_path / "rm"), dtype="bfloat16")
    model = term.model
    assert model.dtype == torch.bfloat16
    assert not any(p.requires_grad for p in model.parameters())
    term.setup(OneProblem(), 8, None)
    assert term.model is model


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (lambda f: saved(f, labels=2), {}, r"\.path=.*: has 2 labels; give a reward model"),
        (lambda f: saved(f, cls=LlamaForCausalLM), {}, r"\.path=.*: lacks weights, .*score\.wei"),
        (str, {}, r"\.path=.*: cannot be loaded .*; give a folder"),
        (saved, {"batch_size": 0}, r"\.batch_size=0: must be at least 1"),
        (saved, {"max_length": 0}, r"\.max_length=0: must be at least 1"),
        (saved, {"max_length": 25}, r"\.max_length=25: the model at .* has a context of 24 tokens"),
    ],
)
def test_a_model_that_cannot_reward_is_refused(tmp_path, make, settings, message):
    with pytest.raises(ConfigError, match=rf"^RewardModel{message}"):
        model_of(make(tmp_path / "rm"), **settings)


def test_a_reward_model_trains_a_run_and_stays_out_of_its_checkpoint(tmp_path):
    folder = saved(tmp_path / "rm", pad_token_id=None, max_position_embeddings=64)
    run_dir = fit(
        *tiny("grpo"),
        *SMALL,
        "--data.rewards.model=RewardModel",
        f"--data.rewards.model.path={folder}",
        "--data.rewards.model.max_length=null",
        "--data.rewards.model.batch_size=3",
        "--trainer.limit_val_batches=0",
    )
    for row in rows_of(run_dir):
        total = float(row["reward/model"]) + float(row["reward/correctness"])
        assert float(row["reward/model"]) != 0
        assert float(row["reward"]) == pytest.approx(total, rel=1e-4)
    state = torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert all(key.startswith("actor.") for key in state)
