"""Evaluation from end to end: canned responses, several data sets, predictions, rescoring."""

import copy
import json
import math
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

from lit_reason.__main__ import main
from lit_reason.backbones import Bundled
from lit_reason.batch import Prompt, Response
from lit_reason.callbacks import PredictionWriter
from lit_reason.data import RolloutDataModule
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.prediction_files import read_predictions, what_is_missing
from lit_reason.rescoring import judge_again, measure, scorer
from lit_reason.rewards import Correctness
from lit_reason.rollout import RolloutEngine, Sampling, ValSampling
from lit_reason.scores import BLANK, answer_classes
from lit_reason.tasks import MathProblems, PlanCount, Task
from lit_reason.verdict import Status, Verdict
from lit_reason.verifier import Verifier
from scripts.rescore import main as rescore
from tests.conftest import ROOT, SMALL, tiny
from tests.test_data import module_of


@pytest.fixture(scope="module")
def policy():
    return Bundled()


MESSAGES = ({"role": "user", "content": "1+1="},)


class Canned(RolloutEngine):
    """Answers each prompt with the texts that stand in a table, in any alphabet."""

    def __init__(self, table, truncated=False):
        self.table, self.truncated = table, truncated

    def generate(self, prompts, samples, sampling, seed):
        tokenizer = self.module.backbone.tokenizer
        end = () if self.truncated else (tokenizer.eos_token_id,)
        texts = [self.table[tokenizer.decode(ids)][:samples] for ids in prompts]
        return [[Response((5, *end), t, self.truncated) for t in row] for row in texts]


def evaluate(policy, task, table, samples, subcommand="validate", truncated=False, **settings):
    """What `validate` measures of canned responses."""
    data = RolloutDataModule(
        task,
        {"correctness": Correctness()},
        Canned(table, truncated),
        sampling=Sampling(max_new_tokens=8),
        val_samples=samples,
        val_groups_per_batch=3,
        seed=0,
        **settings,
    )
    module = module_of(policy)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        accelerator="cpu", callbacks=[PredictionWriter()], default_root_dir="run", **quiet
    )
    if subcommand == "predict":
        trainer.predict(module, data, return_predictions=False)
        return read_predictions([Path("run/predictions.jsonl")])
    getattr(trainer, subcommand)(module, data, verbose=False)
    return module.last_evaluation


def math_task(tmp_path, problems, **settings):
    path = tmp_path / "problems.jsonl"
    rows = [{"problem": q, "answer": a} for q, a in problems]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)  # these prompts ask for no format
        return MathProblems(str(path), template="{question}", **settings)


class Sums(Task):
    """Problems with a text, a gold answer and a data set; the answer stands behind `=`."""

    answer_format = "plan_count"

    def __init__(self, *problems):
        self.problems = problems

    def __len__(self):
        return len(self.problems)

    def __getitem__(self, index):
        text, gold, source = self.problems[index]
        return Prompt(index, text, gold, source=source)

    def verify(self, prompt, text):
        return text.endswith(f"={prompt.answer}")

    def judge(self, prompts, texts):
        return [
            Verdict.of(self.verify(p, t), t.rsplit("=", 1)[1])
            if "=" in t
            else Verdict(Status.NO_ANSWER)
            for p, t in zip(prompts, texts, strict=True)
        ]

    def same_answers(self, pairs):
        return [float(a) == float(b) for a, b in pairs]


# --- through the entry point ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer_format", "stated"), [("boxed", r"so \boxed{{{}}}."), ("answer", "so\nAnswer: {}")]
)
def test_j07_right_responses_in_the_documented_format_are_all_right(
    policy, tmp_path, answer_format, stated
):
    """J07: what is extracted from the gold answer is extracted from the response too."""
    problems = [(f"{i}+{i}=", str(2 * i)) for i in range(10)]
    table = {question: [stated.format(gold)] for question, gold in problems}
    task = math_task(tmp_path, problems, answer_format=answer_format)
    values = evaluate(policy, task, table, 1)
    assert values["val/accuracy"] == values["val/accuracy_low"] == 1
    assert values["val/no_answer"] == 0


def test_j07_nothing_right_is_a_warning_with_the_likely_reason(policy):
    """J07, once a run and not at every validation."""
    task = Sums(("1+1=", "2", ""), ("1+2=", "3", ""))
    silent, cut = {"1+1=": ["two"], "1+2=": ["three"]}, {"1+1=": ["=3"], "1+2=": ["=2"]}
    with pytest.warns(ConfigWarning, match=r"^val/accuracy=0: .*100% .* state no answer"):
        values = evaluate(policy, task, silent, 1)
    assert values["val/no_answer"] == 1
    with pytest.warns(ConfigWarning, match=r"^test/accuracy=0: .* cut off: raise data\.val_sampl"):
        values = evaluate(policy, task, cut, 1, "test", truncated=True)
    assert values["test/truncated"] == 1


def test_j05_two_problems_with_the_same_text_stay_two(policy):
    """J05: the key is the row, so golds 1 and 2 are two problems of two samples."""
    task = Sums(("1+1=", "1", ""), ("1+1=", "2", ""))
    values = evaluate(policy, task, {"1+1=": ["=2", "=2"]}, 2)
    assert values["val/accuracy"] == values["val/pass_at_2"] == 0.5
    assert (values["val/accuracy_low"], values["val/accuracy_high"]) == (0, 1)


def test_j02_j04_votes_count_equal_answers_as_one_and_every_sample_is_scored(policy):
    task = Sums(("1+1=", "2", ""), ("1+2=", "3", ""))
    table = {"1+1=": ["=4", "=2", "=4.0", "=2"], "1+2=": ["=1", "=3", "=5", "none"]}
    values = evaluate(policy, task, table, 4, val_pass_k=[2, 4])
    # 4 and 4.0 tie with 2 and 2; of three different answers one is right
    assert values["val/maj_at_4"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert values["val/accuracy"] == 3 / 8
    assert values["val/pass_at_2"] == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert "val/pass_at_1" not in values
    assert values["val/no_answer"] == 1 / 8


def test_data_sets_are_reported_by_name(policy):
    task = Sums(("1+1=", "2", "a/b"), ("1+2=", "3", "c"), ("1+3=", "4", "c"))
    table = {"1+1=": ["=2"], "1+2=": ["=3"], "1+3=": ["=5"]}
    values = evaluate(policy, task, table, 1)
    assert values["val/accuracy"] == pytest.approx(2 / 3)
    assert (values["val/a_b/accuracy"], values["val/c/accuracy"]) == (1, 0.5)
    assert values["val/c/accuracy_low"] == 0


def test_data_sets_whose_names_look_alike_stay_two(policy):
    task = Sums(("1+1=", "2", "a/b"), ("1+2=", "3", "a b"), ("1+3=", "4", "a b"))
    table = {"1+1=": ["=2"], "1+2=": ["=3"], "1+3=": ["=5"]}
    values = evaluate(policy, task, table, 1)
    assert (values["val/a_b_2/accuracy"], values["val/a_b/accuracy"]) == (1, 0.5)
    rows = evaluate(policy, task, table, 1, "predict")
    again = measure(rows, [Verdict.of(row["correct"]) for row in rows], [[-1]] * 3, 1)
    assert (again["a_b_2/accuracy"], again["a_b/accuracy"]) == (1, 0.5)


def test_what_a_task_says_of_answers_is_asked_once_and_blamed_by_name(policy):
    class Broken(Sums):
        def same_answers(self, pairs):
            raise RuntimeError("no")

    with pytest.raises(ConfigError, match=r"^data\.val_task: Broken raised RuntimeError: no"):
        evaluate(policy, Broken(("1+1=", "2", "")), {"1+1=": ["=1", "=3"]}, 2)


def test_the_built_in_task_says_what_was_answered():
    task = PlanCount()
    prompt = task[0]  # max(0,1)+2=
    texts = ["1+2=2+1=3", "0+2=1+1=2", "1+2=", "3"]
    assert task.judge([prompt] * 4, texts) == [
        Verdict(Status.CORRECT, "3"),
        Verdict(Status.WRONG, "2"),
        Verdict(Status.NO_ANSWER),
        Verdict(Status.NO_ANSWER),
    ]


def test_classes_join_correct_answers_and_do_not_compare_what_failed():
    asked = []

    def same(pairs):
        asked.extend(pairs)
        return [float(a) == float(b) for a, b in pairs]

    status = {"c": Status.CORRECT, "w": Status.WRONG, "t": Status.TIMEOUT, "n": Status.NO_ANSWER}
    kinds = "c 1/2", "w 3", "c 0.5", "n", "w 3.0", "t 9", "w 4"
    first = [Verdict(status[kind[0]], kind[2:] or None) for kind in kinds]
    second = [Verdict(Status.WRONG, "3"), Verdict(Status.WRONG, "3"), Verdict(Status.TIMEOUT, "9")]
    classes = answer_classes([first, second], same)
    assert classes == [[0, 1, 0, -1, 1, 4, 3], [1, 1, 2]]
    assert asked == [("3", "4"), ("3", "3.0")]


def test_classes_do_not_depend_on_the_order_of_the_responses():
    """0.25 = 25% = 25, and 0.25 is not 25."""
    equal = {frozenset(pair) for pair in [("0.25", "25%"), ("25", "25%")]}
    answers = ["0.25", "25", "25%", "25%"]
    seen = set()
    for order in permutations(answers):
        group = [Verdict.of(False, answer) for answer in order]
        (numbers,) = answer_classes([group], lambda ps: [frozenset(p) in equal for p in ps])
        classes = zip(numbers, order, strict=True)
        seen.add(frozenset(frozenset(a for n, a in classes if n == m) for m in set(numbers)))
    assert len(seen) == 1


def test_an_answer_that_nobody_can_compare_is_asked_of_once():
    asked = []

    def same(pairs):
        asked.extend(pairs)
        return [None if "9^9" in pair else False for pair in pairs]

    group = [Verdict.of(False, answer) for answer in ("1", "2", "9^9", "3", "9^9")]
    assert answer_classes([group], same) == [[1, 3, 2, 4, 2]]
    assert [pair for pair in asked if "9^9" in pair] == [("1", "9^9")]


def test_an_empty_answer_casts_no_vote(policy):
    group = [Verdict.of(True, "2"), Verdict.of(False, ""), Verdict.of(False, "")]
    assert answer_classes([group], lambda pairs: []) == [[0, BLANK, BLANK]]
    task = Sums(("1+1=", "2", ""))
    values = evaluate(policy, task, {"1+1=": ["=", "=", "=2"]}, 3)
    assert values["val/maj_at_3"] == 1


# --- predictions ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    """The folder of a real `predict`, and of `test` with the same seeds."""
    folder = tmp_path_factory.mktemp("predicted")
    args = [*tiny("grpo"), *SMALL, "--data.val_samples=3", "--data.val_task.limit=5"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        main(["predict", *args, "--run_dir=run"])
    return folder / "run" / "predictions.jsonl"


def test_predictions_say_all_there_is_to_say(predicted, policy):
    rows = read_predictions([predicted])
    assert [(row["prompt_index"], row["sample"]) for row in rows] == [
        (i, s) for i in range(5) for s in range(3)
    ]
    task = PlanCount("held_out", n_max=3, limit=5)
    tokenizer, actor = policy.tokenizer, policy.actor().eval()
    for row in rows:
        prompt = task[row["prompt_index"]]
        assert (row["prompt"], row["gold"]) == (prompt.text, prompt.answer)
        (verdict,) = task.judge([prompt], [row["response"]])
        assert (row["status"], row["answer"]) == (str(verdict.status), verdict.answer)
        assert row["correct"] == verdict.correct
        assert row["reward"] == (1 if verdict.correct else -1)
        assert row["logprob_mean"] == pytest.approx(row["logprob"] / row["length"], abs=1e-5)
        if row["truncated"]:
            continue
        ids = [*tokenizer(prompt.text)["input_ids"], *tokenizer(row["response"])["input_ids"], 1]
        assert row["length"] == len(row["response"]) + 1
        with torch.no_grad():
            scores = actor(torch.tensor([ids])).logits.log_softmax(-1)[0]
        start = len(ids) - row["length"]
        own = sum(scores[t - 1, ids[t]].item() for t in range(start, len(ids)))
        assert row["logprob"] == pytest.approx(own, abs=1e-3)
    assert len({row["logprob"] for row in rows}) > 5


def test_the_prompt_is_what_the_model_was_asked(policy, tmp_path):
    class Chat(Sums):
        def __getitem__(self, index):
            return replace(super().__getitem__(index), messages=MESSAGES)

    policy = copy.deepcopy(policy)
    policy.tokenizer.chat_template = "{{ messages[0].content }}"
    rows = evaluate(policy, Chat(("asked", "2", "")), {"1+1=": ["=2"]}, 1, "predict")
    assert rows[0]["prompt"] == list(MESSAGES)


def test_log_probs_are_those_of_the_model_whatever_the_sampling(policy):
    task = Sums(("1+1=", "2", ""), ("1+2=", "3", ""))
    table = {"1+1=": ["=2"], "1+2=": ["=3"]}
    greedy = ValSampling(temperature=0)
    rows = evaluate(policy, task, table, 1, "predict", val_sampling=greedy)
    Path("run/predictions.jsonl").unlink()
    again = evaluate(policy, task, table, 1, "predict")
    assert [row["logprob"] for row in rows] == [row["logprob"] for row in again]
    assert all(math.isfinite(row["logprob"]) and row["logprob"] < 0 for row in rows)


# --- rescoring ------------------------------------------------------------------------------------


def shown(capsys, *args):
    rescore([str(a) for a in args])
    return capsys.readouterr().out


def test_rescoring_prints_what_validation_measured(predicted, capsys, tmp_path):
    out = shown(capsys, predicted, "--output", tmp_path / "changed.jsonl")
    assert "5 problems, 3 responses each" in out
    assert "0 of 15 verdicts changed" in out
    assert (tmp_path / "changed.jsonl").read_text() == ""
    rows = read_predictions([predicted])
    values = measure(rows, *judge_again(rows))
    args = [*tiny("grpo"), *SMALL, "--data.val_samples=3", "--data.val_task.limit=5"]
    main(["validate", *args, "--run_dir=again"])
    printed = capsys.readouterr().out
    for name in ("accuracy", "accuracy_low", "accuracy_high", "maj_at_3", "pass_at_2", "length"):
        (line,) = [x for x in printed.splitlines() if f" val/{name} " in x]
        assert float(line.strip("│ \n").split()[-1]) == pytest.approx(values[name], abs=1e-6)
    (line,) = [x for x in out.splitlines() if x.startswith("accuracy ")]
    low, high = values["accuracy_low"], values["accuracy_high"]
    assert line.split()[1:] == [f"{values['accuracy']:.4f}", f"[{low:.4f},", f"{high:.4f}]"]


def test_rescoring_is_light_and_needs_no_model(predicted):
    code = (
        "import sys, runpy; sys.argv = ['rescore.py', sys.argv[1]]\n"
        f"runpy.run_path({str(ROOT / 'scripts' / 'rescore.py')!r}, run_name='__main__')\n"
        "heavy = {'lightning', 'transformers', 'datasets', 'torchmetrics', 'jsonargparse'}\n"
        "sys.exit(len(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(predicted)],
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_rescoring_finds_what_the_recorded_verdicts_missed(policy, tmp_path, capsys):
    """A verdict that was wrong when it was recorded changes, and the change is written."""
    problems = [("1+1=", "2"), ("(1)=", "0.5")]
    table = {"1+1=": [r"\boxed{2}", "2"], "(1)=": [r"\boxed{\frac{1}{2}}", r"\boxed{3}"]}
    task = math_task(tmp_path, problems)
    rows = evaluate(policy, task, table, 2, "predict")
    assert {row["answer_format"] for row in rows} == {"boxed"}
    file = Path("run/predictions.jsonl")
    for row in rows:
        row["status"] = "wrong"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = shown(capsys, file, "--output", "changed.jsonl", "--pass_k", 2)
    assert "3 of 4 verdicts changed\n  wrong -> correct: 2\n  wrong -> no_answer: 1" in out
    assert "pass_at_2" in out
    assert "pass_at_1" not in out
    changed = [json.loads(x) for x in Path("changed.jsonl").read_text().split("\n") if x]
    assert [(row["status_before"], row["status"], row["answer"]) for row in changed] == [
        ("wrong", "correct", "2"),
        ("wrong", "no_answer", None),
        ("wrong", "correct", "\\frac{1}{2}"),
    ]
    out = shown(capsys, file, "--answer_format", "answer")
    assert "wrong -> no_answer: 4" in out


def test_an_own_function_judges_the_files_of_all_ranks(predicted, tmp_path, monkeypatch):
    (tmp_path / "own_judge_of_a_user.py").write_text(
        "from lit_reason.verdict import Verdict\n"
        "def judge(golds, texts): return [Verdict.of(g in t, t) for g, t in zip(golds, texts)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    lines = predicted.read_text().splitlines(keepends=True)
    parts = [tmp_path / f"predictions_{rank}.jsonl" for rank in range(2)]
    for rank, path in enumerate(parts):
        chosen = [x for x in lines if json.loads(x)["prompt_index"] % 2 == rank]
        path.write_text("".join(chosen))
    rows = read_predictions(parts[::-1])
    assert rows == read_predictions([predicted])
    verdicts, _, k = judge_again(rows, "own_judge_of_a_user.judge")
    assert k == 3
    assert [v.correct for v in verdicts] == [row["gold"] in row["response"] for row in rows]


def test_other_line_separators_in_a_response_do_not_cut_its_row(tmp_path):
    file = tmp_path / "p.jsonl"
    row = {"prompt_index": 0, "sample": 0, "gold": "1", "status": "wrong", "length": 3}
    row |= {"truncated": False, "response": "a\u2028b\x85=1", "answer_format": "plan_count"}
    file.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    (verdict,), _, _ = judge_again(read_predictions([file]))
    assert verdict == Verdict(Status.CORRECT, "1")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda lines: lines[:-1], r"problem 4 has the samples \[0, 1\], another has 3; give all"),
        (lambda lines: [*lines, lines[0]], "problem [01] has the samples"),
        (lambda lines: ["{", *lines], r"p\.jsonl:1: not a JSON object"),
        (lambda lines: ["3\n", *lines], r"p\.jsonl:1: not a JSON object"),
        (lambda lines: ['{"sample": 0}\n'], r"p\.jsonl:1: has no prompt_index; is it a file that"),
        (lambda lines: [], "not a JSON object"),
        (None, r"p\.jsonl: no such file"),
    ],
)
def test_files_that_cannot_be_scored_are_refused(predicted, tmp_path, capsys, edit, message):
    file = tmp_path / "p.jsonl"
    if edit is not None:
        file.write_text("".join(edit(predicted.read_text().splitlines(keepends=True))))
    with pytest.raises(ConfigError, match=message):
        read_predictions([file])
    with pytest.raises(SystemExit) as stop:
        rescore([str(file)])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")


ROW = {"prompt_index": 0, "sample": 0, "gold": "1", "status": "wrong", "length": 3}
ROW |= {"truncated": False, "response": "=1", "answer_format": "plan_count", "source": None}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("response", None, "response is null, expected a text"),
        ("length", None, "length is null, expected a whole number"),
        ("length", "26", 'length is "26", expected a whole number'),
        ("prompt_index", "0", 'prompt_index is "0", expected a whole number'),
        ("prompt_index", None, "prompt_index is null"),
        ("prompt_index", -1, "prompt_index is -1"),
        ("sample", True, "sample is true"),
        ("truncated", "no", 'truncated is "no", expected true or false'),
        ("gold", 3, "gold is 3, expected a text"),
        ("source", 3, "source is 3, expected a text"),
        ("scoring", "A:", 'scoring is "A:", expected an object'),
    ],
)
def test_rows_that_were_edited_are_refused_by_line_and_key(tmp_path, key, value, message):
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW | {"sample": 1, key: value}))
    with pytest.raises(ConfigError, match=re.escape(f"p.jsonl:2: {message}")):
        read_predictions([file])


def test_files_that_are_no_predictions_are_refused_in_one_line(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps(" ".join(ROW)))
    with pytest.raises(ConfigError, match=r"p\.jsonl:1: not a JSON object"):
        read_predictions([file])
    file.write_bytes(b'{"response": "caf\xe9"}')
    with pytest.raises(ConfigError, match=r"p\.jsonl: not UTF-8, from byte 17 on"):
        read_predictions([file])


def test_a_file_that_lost_problems_says_so(predicted, tmp_path, capsys):
    lines = predicted.read_text().splitlines(keepends=True)
    file = tmp_path / "p.jsonl"
    file.write_text("".join(lines[:9]))
    rescore([str(file)])
    assert capsys.readouterr().err == (
        "warning: no row of 2 of 5 problems; give all files of one `predict`, or mind what limited "
        "it\n"
    )
    rows = read_predictions([predicted])
    assert what_is_missing(rows) is None
    for row in rows:
        del row["problems"]
    assert "no row of problem 1 and 1 more" in what_is_missing(rows[:3] + rows[9:])


def test_a_source_that_nobody_named_is_one_without_a_name(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps(ROW))
    rows = read_predictions([file])
    assert measure(rows, *judge_again(rows))["accuracy"] == 1


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_judged(
    predicted, capsys, monkeypatch
):
    monkeypatch.setattr("scripts.rescore.judge_again", None)
    for output, message in (("no/where.jsonl", "there is no folder no"), (".", "is a folder")):
        with pytest.raises(SystemExit):
            rescore([str(predicted), "--output", output])
        assert capsys.readouterr().err.startswith(f"error: output={output}: {message}")


def test_changed_rows_are_written_whatever_their_characters(tmp_path):
    file, output = tmp_path / "p.jsonl", tmp_path / "changed.jsonl"
    file.write_text(json.dumps(ROW | {"response": "\ud800=1"}))
    rescore([str(file), "--output", str(output)])
    assert json.loads(output.read_text())["response"] == "\ud800=1"


def test_a_pipe_that_is_closed_is_no_error(predicted):
    code = (
        "import sys; from scripts.rescore import main\n"
        "sys.stdin.readline(); main([sys.argv[1]]); sys.exit(5)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(predicted)],
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    process.stdin.write("\n")
    process.stdin.close()
    assert process.stderr.read() == ""
    assert process.wait() == 5
    process.stderr.close()


OWN_JUDGES = """
from lit_reason.verdict import Verdict

def short(golds, texts): return [Verdict.of(True)]
def bools(golds, texts): return [True for _ in texts]
def nothing(golds, texts): pass
def broken(golds, texts): return golds["x"]
fine = lambda golds, texts: [Verdict.of(True) for _ in texts]
number = 3
"""


def test_an_own_function_lies_in_the_current_folder_and_is_checked(predicted, capsys):
    Path("own_judges.py").write_text(OWN_JUDGES)
    Path("own_broken.py").write_text("1 / 0")
    out = shown(capsys, predicted, "--answer_format", "own_judges.fine")
    assert "accuracy                     1.0000" in out
    for name, message in {
        "own_judges.short": "returned 1 verdicts for 15 responses",
        "own_judges.bools": "returned True, expected a lit_reason.verdict.Verdict",
        "own_judges.nothing": "returned None, expected a lit_reason.verdict.Verdict",
        "own_judges.broken": "function raised TypeError",
        "own_judges.number": "is 3, expected a function",
        "own_broken.judge": "cannot be imported (ZeroDivisionError: division by zero)",
    }.items():
        with pytest.raises(SystemExit):
            rescore([str(predicted), "--answer_format", name])
        assert capsys.readouterr().err.startswith(f"error: answer_format={name}: {message}")


def test_a_marker_is_written_beside_predictions_and_used_again(policy, tmp_path, capsys):
    table = {"1+1=": ["A: 2", "#### 2"]}
    settings = {"answer_format": "gsm8k", "verifier": Verifier(marker="A:")}
    task = math_task(tmp_path, [("1+1=", "2")], **settings)
    rows = evaluate(policy, task, table, 2, "predict")
    assert [row["scoring"] for row in rows] == [{"marker": "A:"}] * 2
    assert "0 of 2 verdicts changed" in shown(capsys, "run/predictions.jsonl")
    assert [v.answer for v in judge_again(rows, "gsm8k")[0]] == ["2", None]
    assert [v.answer for v in judge_again(rows, "boxed")[0]] == [None, None]


@pytest.mark.parametrize("name", ["nowhere", "", None, "nowhere.judge", "json.missing"])
def test_a_format_that_is_not_known_is_refused(name):
    with pytest.raises(ConfigError, match=r"^answer_format=.*: not known; give one of boxed, "):
        scorer(name)


def test_settings_of_rescoring_that_cannot_be_are_refused(predicted):
    rows = read_predictions([predicted])
    judged = judge_again(rows)
    with pytest.raises(ConfigError, match=r"pass_k=\[4\]: each must lie between 1 and the 3"):
        measure(rows, *judged, [4])
    rows[0]["answer_format"] = "boxed"
    with pytest.raises(ConfigError, match=r"several answer formats, boxed, plan_count; give --ans"):
        judge_again(rows)
