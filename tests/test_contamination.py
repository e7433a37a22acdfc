"""Training problems that are held out too are found, reported and left out."""

import json
import re

import pytest

from lit_reason.batch import Prompt
from lit_reason.contamination import normalise, unlabelled, without_overlap
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.tasks import MathProblems, PlanCount, Task
from tests.conftest import fails
from tests.test_configs import arguments
from tests.test_layouts import shared


class Texts(Task):
    def __init__(self, *texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return Prompt(index, self.texts[index], "")

    def verify(self, prompt, text):
        return False


def encoded(task):
    return [(task[i], [i]) for i in range(len(task))]


def clean(task, val_task, remove=True):
    kept = without_overlap(encoded(task), encoded(val_task), task, val_task, remove)
    return [prompt.index for prompt, _ in kept]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 1 + 1?", "what is  1+1 ?\n"),
        ("Let $x\\,=\\,2$.", "Let x=2"),
        ("\\left( 1, 2 \\right)", "(1,2)"),
        ("Find \\dfrac{1}{2}.", "find \\frac{1}{2}"),
        ("Janet\u2019s 1,450 eggs", "Janet's 1450 eggs"),
        ("a \u2212 b", "a - b"),
        ("\\quad x\\ y~z", "xyz"),
        ("1\\,450 and 1{,}450", "1450 and 1450"),
        ("A train, at 3:15.", "a train at 3:15"),
        ("x\u00b2", "x^2"),
        ("LET x be .5", "let x be .5."),
        ("LET X BE IN $\\FRAC{A}{B}$", "Let x be in $\\frac{a}{b}$"),
        ("one\u2014two \u2013 three\u2010four", "one-two - three-four"),
        ("one---two -- three", "one-two - three"),
        ("``Why\u2032s \u201ethat\u201c?''", "\"why's 'that'?\"".replace("'that'", '"that"')),
    ],
)
def test_copies_of_a_problem_are_equal(one, other):
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1.5", "15"),
        ("1, 5", "15"),
        ("5!", "5"),
        ("3:4", "34"),
        ("x - 1", "x + 1"),
        ("\\leftarrow x", "arrow x"),
        ("f'(x)", "f(x)"),
        ("3\u00b2", "32"),
        ("a\u2082", "a2"),
        (".5+1", "5+1"),
        ("is .5", "is 5"),
        ("1 2 3", "12 3"),
        ("1\\,2", "12"),
        ("(1;2)", "(12)"),
        ("f(1,234)", "f(1234)"),
        ("f(x, 1,234)", "f(x, 1234)"),
        ("5--3", "5-3"),
        ("f''(x)", "f(x)"),
    ],
)
def test_different_problems_stay_different(one, other):
    assert normalise(one) != normalise(other)


BOXED = "put your final answer within \\boxed{}."
AROUND = [
    "{}\nPlease reason step by step, and " + BOXED,
    "{} Please reason step by step, and " + BOXED,
    "{} Let's think step by step.",
    "{}\n\nLet\u2019s think step by step and output the final answer within \\boxed{{}}.",
    "{}\nPlease reason step by step. P" + BOXED[1:],
    "{} Solve the problem step by step.",
    "{}\nPlease " + BOXED,
    "Question: {}",
    "Question: {}\nAnswer:",
    "Q: {}\nA: Let's think step by step.",
    "**Question:** {}",
    "**{}**",
    "### Problem: **{}**\nThink step by step.",
]


@pytest.mark.parametrize("around", AROUND)
def test_a_copy_is_found_behind_what_evaluations_put_around_it(around):
    copy = around.replace("{}", QUESTION, 1).replace("{{}}", "{}")
    assert normalise(copy) == normalise(QUESTION)


QUESTION = "How many eggs do 3 hens lay if each lays $2**3$?"


@pytest.mark.parametrize(
    "text",
    [
        "Let's build a tower step by step. How many steps are there?",
        "2**3**2 = ?",
        "They walk step by step.",
        "Give your final answer as a fraction.",
        "What follows from \\boxed{3}?",
    ],
)
def test_what_belongs_to_a_problem_stays(text):
    assert unlabelled(text) == text


def test_overlap_is_left_out_and_its_share_is_logged(caplog):
    train, held_out = Texts("1+1?", "2+2?", "3 + 3?", "4+4?"), Texts("3+3?", "9+9?", "1+1 ?", "8?")
    with caplog.at_level("INFO"):
        assert clean(train, held_out) == [1, 3]
    assert "2 of 4 problems of data.val_task (50.0%) are also in data.task" in caplog.text
    assert "2 of 4 training problems (50.0%) are left out" in caplog.text


def test_held_out_problems_are_counted_as_often_as_they_are_there(caplog):
    with caplog.at_level("INFO"):
        assert clean(Texts("1+1?", "2+2?"), Texts("1+1?", "1 + 1?", "9?")) == [1]
    assert "2 of 3 problems of data.val_task (66.7%)" in caplog.text


def test_without_removal_it_is_a_warning():
    train, held_out = Texts("1+1?", "2+2?"), Texts("1+1?")
    with pytest.warns(ConfigWarning, match=r"remove_overlap=false: 1 of 1 .*\(100\.0%\) are also"):
        assert clean(train, held_out, remove=False) == [0, 1]


def test_nothing_left_to_train_on_is_refused():
    with pytest.raises(ConfigError, match=r"data\.task: every problem is also in data\.val_task"):
        clean(Texts("1+1?"), Texts("1+1?", "2+2?"))


def test_validation_on_the_training_task_is_no_overlap():
    task = Texts("1+1?")
    assert clean(task, task) == [0]


def test_the_built_in_splits_do_not_overlap(caplog):
    train, held_out = PlanCount(), PlanCount("held_out")
    with caplog.at_level("INFO"):
        assert len(clean(train, held_out)) == len(train)
    assert "are also in" not in caplog.text


def test_the_question_counts_not_the_prompt_around_it(tmp_path):
    for name, question in (("a", "What is 1+1?"), ("b", "what is 1 + 1")):
        row = {"problem": question, "answer": "2"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    train = MathProblems(str(tmp_path / "a.jsonl"), template="dapo")
    held_out = MathProblems(str(tmp_path / "b.jsonl"), template="r1", chat=True)
    with pytest.raises(ConfigError, match="every problem"):
        clean(train, held_out)


def test_earlier_turns_are_a_part_of_the_question(tmp_path):
    for name, first in (("a", "1+1?"), ("b", "2+2?")):
        turns = [("system", "Be brief."), ("user", first), ("assistant", "Yes."), ("user", "And?")]
        row = {"prompt": [{"role": r, "content": c} for r, c in turns], "answer": "2"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    one, other = (MathProblems(str(tmp_path / f"{name}.jsonl")) for name in "ab")
    assert one.question(one[0]) == "1+1?\n\nYes.\n\nAnd?"
    assert clean(one, other) == [0]


def test_every_leaked_test_problem_of_gsm8k_is_caught(caplog):
    train = MathProblems(shared("gsm8k_all"))
    held_out = MathProblems(shared("gsm8k_test.jsonl"), template="gsm8k")
    with caplog.at_level("INFO"):
        assert len(clean(train, held_out)) == 8792 - 1319
    assert "1319 of 1319 problems" in caplog.text


def _long_dashes(text):
    return re.sub("(?<!-)-(?!-)", "\u2014", text)


class Respelled(Texts):
    def __init__(self, task, change):
        super().__init__(*(change(task.question(task[i])) for i in range(len(task))))


@pytest.mark.parametrize("name", ["gsm8k_test.jsonl", "math500.json", "amc23.jsonl"])
def test_copies_in_another_case_or_with_other_dashes_are_caught(name):
    """And no two problems of a published set are taken for one."""
    task = MathProblems(shared(name))
    for change in (str.upper, str.lower, str.title, _long_dashes):
        copies = Respelled(task, change)
        with pytest.raises(ConfigError, match=f"{len(task)} of {len(task)} there"):
            clean(copies, task)
    assert len({normalise(task.question(task[i])) for i in range(len(task))}) == len(task)


def test_a_run_looks_for_overlap_at_set_up(capsys):
    """The same split for training and evaluation."""
    args = [*arguments("grpo"), "--data.val_task.split=train", "--data.val_task.limit=null"]
    line = fails(capsys, "fit", *args, "--data.task.n_max=3", "--data.val_task.n_max=3")
    assert "data.task: every problem is also in data.val_task" in line
