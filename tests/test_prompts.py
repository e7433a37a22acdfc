"""Prompts without gold answers: what judges them, what is reported, what is refused."""

import csv
import json
from pathlib import Path

import pytest

from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.judge import verdict_shares
from lit_reason.rewards import FunctionReward
from lit_reason.tasks import MathProblems, Prompts
from lit_reason.verdict import Status
from tests.conftest import SMALL, fails, fit, tiny

OWN = """
def short(completions, **kwargs):
    return [-len(c) / 10 for c in completions]

def wants_gold(completions, answer):
    return [0.0] * len(completions)

def wants_level(completions, level):
    return [float(x) for x in level]
"""


def write(*rows):
    Path("p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "p.jsonl"


@pytest.fixture(autouse=True)
def _own_file(tmp_path, monkeypatch):
    (tmp_path / "functions_of_prompts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def test_texts_and_conversations_are_prompts_as_they_are():
    turns = [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "A poem."}]
    task = Prompts(write({"prompt": turns, "level": 2}), chat=True, columns=["level"])
    assert len(task) == 1
    assert task[0].messages == tuple(turns)
    assert (task[0].text, task[0].answer, task[0].source) == ("Rhyme.\n\nA poem.", "", "p")
    assert task[0].columns == {"level": 2}
    assert task.question(task[0]) == "A poem."
    assert not task.verify(task[0], "x")
    for column in ("problem", "question", "Problem"):
        assert Prompts(write({column: "A poem."}))[0].text == "A poem."
    assert Prompts(write({"q": "A poem."}), question="q", template="Q: {question}")[0].text == (
        "Q: A poem."
    )


def test_rows_are_merged_limited_and_left_out_as_elsewhere(caplog):
    rows = [{"prompt": text} for text in ("a", "a", "", "b", "c")]
    with caplog.at_level("INFO"), pytest.warns(ConfigWarning, match="1 of 4 rows are left out"):
        assert [p.question for p in Prompts(write(*rows)).problems] == ["a", "b", "c"]
    assert "1 rows repeat a prompt" in caplog.text
    assert len(Prompts(write(*rows), limit=1)) == 1
    with pytest.raises(ConfigError, match=r"holds no prompt \(1 row: the problem is empty"):
        Prompts(write({"prompt": ""}))
    for settings, message in (
        ({"question": "q"}, r"task\.question=q: no such column in p\.jsonl; it has text"),
        ({}, r"task\.question=None: no such column"),
        ({"template": ""}, r"task\.template='': neither"),
    ):
        with pytest.raises(ConfigError, match=message):
            Prompts(write({"text": "a"}), **settings)
    with pytest.raises(ConfigError, match="without gold answers take class_path Prompts"):
        MathProblems(write({"prompt": "a"}))


def test_nobody_judges_the_responses():
    task = Prompts(write({"prompt": "a"}))
    assert [v.status for v in task.judge([task[0]] * 2, ["x", "y"])] == [Status.UNJUDGED] * 2
    assert verdict_shares([], task) == {}
    term = FunctionReward("functions_of_prompts.wants_gold")
    with pytest.raises(ConfigError, match=r"asks for answer, which data\.task=Prompts does not"):
        term.check(task, "data.task")
    term.check(Prompts(write({"prompt": "a", "answer": "3"}), columns=["answer"]), "data.task")


ON_PROMPTS = [
    *("--data.task=Prompts", "--data.task.path=p.jsonl"),
    *("--data.val_task=Prompts", "--data.val_task.path=q.jsonl"),
    *(
        "--data.rewards.short=FunctionReward",
        "--data.rewards.short.path=functions_of_prompts.short",
    ),
]
OF_RUN = [x for x in SMALL if "task." not in x]


def write_both():
    for name, numbers in (("p", range(8)), ("q", range(8, 11))):
        rows = [json.dumps({"prompt": f"max(1,{n})+2="}) for n in numbers]
        Path(f"{name}.jsonl").write_text("\n".join(rows))


def test_a_run_is_trained_by_functions_alone_and_reports_no_accuracy():
    write_both()
    run_dir = fit(*tiny("grpo"), *OF_RUN, *ON_PROMPTS, "--data.rewards.correctness=null")
    rows = list(csv.DictReader((run_dir / "metrics.csv").open()))
    assert all(row["accuracy"] in ("", "nan") for row in rows)
    assert all(row["entropy"] for row in rows if row["reward"])
    assert not {"entropy/correct", "entropy/wrong"} & set(rows[0])
    samples = [json.loads(x) for x in Path(run_dir, "samples.jsonl").read_text().splitlines()]
    assert {sample["correct"] for sample in samples} == {None}
    assert not any("verify/" in key for key in rows[0])
    measured = {key for key in rows[0] if key.startswith("val/")}
    assert {"val/reward", "val/length", "val/truncated"} <= measured
    of_verdicts = ("accuracy", "pass_at", "maj_at", "no_answer", "unverified")
    assert not any(name in key for key in measured for name in of_verdicts)
    trained = [row for row in rows if row["reward"]]
    assert len(trained) == 2
    assert all(float(row["reward"]) < 0 for row in trained)


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("grpo", [], "data.rewards.correctness=Correctness: needs verdicts, and data.task=Prompts"),
        (
            "dapo",
            ["--data.rewards.correctness=null"],
            "data.group_filter=DropUniform: needs verdicts, and data.task=Prompts",
        ),
        (
            "vapo",
            ["--data.rewards.correctness=null"],
            "PositiveExampleLM: needs verdicts, and data.task=Prompts",
        ),
    ],
)
def test_what_needs_to_know_what_is_right_is_refused(capsys, algorithm, settings, message):
    write_both()
    line = fails(capsys, "fit", *tiny(algorithm), *OF_RUN, *ON_PROMPTS, *settings, "--run_dir=run")
    assert message in line


def test_predictions_say_that_nobody_judged_them():
    from lit_reason.__main__ import main

    write_both()
    args = [*tiny("grpo"), *OF_RUN, *ON_PROMPTS, "--data.rewards.correctness=null"]
    main(["predict", *args, "--run_dir=run"])
    rows = [json.loads(x) for x in Path("run/predictions.jsonl").read_text().splitlines()]
    for row in rows:
        assert (row["status"], row["correct"], row["gold"]) == ("unjudged", None, "")
    assert all(row["reward"] <= 0 for row in rows)
