"""Configurations and responses that nobody thought of: one line, or a run; never a traceback."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lit_reason.__main__ import main
from lit_reason.backbones import Pretrained
from lit_reason.callbacks.samples import COLUMNS
from lit_reason.jsonl import append_rows
from lit_reason.report.history import read_run
from lit_reason.report.page import write_page
from lit_reason.tasks import MathProblems, PlanCount
from tests.conftest import SMALL, tiny
from tests.test_ablations import parser

FEW = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "derandomize": True,  # the same examples on every machine
}

# --- configurations -------------------------------------------------------------------------------

# what would start processes, and what says where to write
ELSEWHERE = ("devices", "num_nodes", "strategy", "plugins", "default_root_dir", "profiler")
ODD = ["-1", "0", "1", "3", "1e9", "0.5", "nan", "-inf", "1e400", "null", "None", "[]", "{}", "''"]
ODD += ["true", "GAE", "nowhere.Thing", "[1,2]", "{a: 1}", "\u00e9", "a b", "--x", "=", "os.system"]


def keys():
    """Every key of `fit` that a value may be given for."""
    subcommand = parser()._subcommands_action._name_parser_map["fit"]
    names = [a.dest for a in subcommand._actions if "." in a.dest and "help" not in a.dest]
    return [n for n in names if n.split(".")[-1] not in ELSEWHERE]


def overlay(folder, key, value):
    """The flag of a file that holds one setting."""
    *sections, name = key.split(".")
    path = Path(folder) / f"{key}.yaml"
    opened = "".join(f"{section}: {{" for section in sections)
    path.write_text(f"{opened}{name}: {value}{'}' * len(sections)}\n", encoding="utf-8")
    return f"--config={path}"


@pytest.fixture
def no_model(monkeypatch):
    def build(*_, **__):
        raise Loaded

    monkeypatch.setattr(Pretrained, "_build", build)


class Loaded(BaseException):
    """The configuration was found to be good."""


@pytest.mark.slow
@pytest.mark.usefixtures("no_model")
@pytest.mark.filterwarnings("ignore::lit_reason.errors.ConfigWarning")
def test_odd_values_are_one_line_or_a_run(capsys):
    known = keys()
    assert len(known) > 60

    @settings(max_examples=12, **FEW)
    @given(
        st.dictionaries(st.sampled_from(known), st.sampled_from(ODD), min_size=1, max_size=2),
        st.booleans(),
    )
    def check(values, from_files):
        os.environ.pop("PL_GLOBAL_SEED", None)
        with tempfile.TemporaryDirectory() as folder:
            if from_files:
                flags = [overlay(folder, *pair) for pair in values.items()]
            else:
                flags = [f"--{key}={value}" for key, value in values.items()]
            with pytest.raises((SystemExit, Loaded)) as stop:
                main(["fit", *tiny("vapo"), *SMALL, *flags, f"--run_dir={folder}/run"])
        error = capsys.readouterr().err
        if stop.type is SystemExit:
            assert stop.value.code == 2, flags
            assert len([x for x in error.splitlines() if x.startswith("error: ")]) == 1, flags
            assert "Traceback" not in error

    check()


VALID = st.fixed_dictionaries(
    {
        "data.group_size": st.sampled_from([2, 4]),
        "data.groups_per_rollout": st.sampled_from([2, 4]),
        "data.group_filter": st.sampled_from(["null", "DropUniform"]),
        "model.update.epochs": st.integers(1, 2),
        "model.update.minibatch_size": st.sampled_from([1, 2, 4]),
        "model.update.micro_batch_size": st.just(1),
        "model.update.max_grad_norm": st.sampled_from(["null", "0.1", "1e-9"]),
        "model.policy.clip_high": st.floats(0.01, 10),
        "model.policy.aggregation": st.sampled_from(["TokenMean", "SequenceMean", "PromptMean"]),
        "model.kl_in_reward": st.sampled_from([0, 0.1]),
        "model.actor_optimizer.lr": st.sampled_from([0.0, 1e-9, 1e-3, 1.0]),
        "data.sampling.temperature": st.sampled_from([0.01, 1, 100]),
        "data.sampling.max_new_tokens": st.integers(1, 20),
        "seed_everything": st.integers(0, 2**32 - 1),
    }
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::lit_reason.errors.ConfigWarning")
def test_every_valid_configuration_runs():
    @settings(max_examples=3, **FEW)
    @given(st.sampled_from(["ppo", "grpo", "dapo", "vapo"]), VALID)
    def check(name, values):
        flags = [f"--{key}={value}" for key, value in values.items()]
        dapo = ["--data.rewards.soft_overlong=null"] if name == "dapo" else []
        os.environ.pop("PL_GLOBAL_SEED", None)
        with tempfile.TemporaryDirectory() as folder:
            last = ["--trainer.limit_val_batches=0", f"--run_dir={folder}/run"]
            one = ["--data.rollouts_per_epoch=1"]
            main(["fit", *tiny(name), *SMALL, *flags, *dapo, *one, *last])
            rows = (Path(folder) / "run" / "metrics.csv").read_text().splitlines()
            assert len(rows) == 2

    check()


# --- responses ------------------------------------------------------------------------------------


@settings(max_examples=60, **FEW)
@given(st.text(max_size=40))
def test_any_text_passes_the_tokenizer(backbone, text):
    tokenizer = backbone.tokenizer
    ids = tokenizer(text)["input_ids"]
    assert isinstance(tokenizer.decode(ids), str)
    assert all(0 <= i < len(tokenizer) for i in ids)


@settings(max_examples=60, **FEW)
@given(st.text(max_size=40))
def test_any_text_is_judged(text):
    task = PlanCount(n_max=3)
    (verdict,) = task.judge([task[0]], [text])
    assert verdict.correct == (verdict.answer == task[0].answer)


def test_any_text_is_compared_with_a_gold_answer():
    """In one batch, because the processes that compare take a while to start."""
    pytest.importorskip("math_verify")
    texts: list[str] = []

    @settings(max_examples=60, **FEW)
    @given(st.text(max_size=20))
    def collect(text):
        texts.extend((text, f"\\boxed{{{text}}}"))

    collect()
    Path("rows.jsonl").write_text(json.dumps({"problem": "1+1?", "answer": "2"}) + "\n")
    task = MathProblems("rows.jsonl")
    verdicts = task.judge([task[0]] * len(texts), texts)
    right = [text for text, verdict in zip(texts, verdicts, strict=True) if verdict.correct]
    assert all("2" in text or any(c.isnumeric() for c in text) for text in right)


@settings(max_examples=40, **FEW)
@given(st.text(max_size=40))
def test_any_text_comes_back_from_the_sample_table_and_stands_in_the_report(text):
    row = dict.fromkeys(COLUMNS, 0) | {"prompt": text, "response": text, "reward": 1.0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "metrics.csv").write_text("step,rollout,reward\n0,1,0.5\n")
        append_rows(folder / "samples.jsonl", [row])
        run = read_run(folder)
        assert [sample["response"] for sample in run.samples] == [text]
        (folder / "report.png").write_bytes(b"")
        write_page([run], folder / "report.png", folder / "report.html")
        page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<script") == 0
    assert page.count("<article") == 1
