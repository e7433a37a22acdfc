"""Where problems come from and how responses to them are judged."""

import json
import math
import random
import re
from pathlib import Path

import pytest

from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.tasks import MathProblems, PlanCount

SHARED = Path(__file__).parents[2] / "shared" / "data"


# --- PlanCount ------------------------------------------------------------------------------------


def texts(task):
    return [task[i].text for i in range(len(task))]


@pytest.mark.parametrize("operations", [("max",), ("min",), ("max", "min")])
def test_the_splits_share_no_prompt_and_together_hold_every_problem(operations):
    train, held_out = (PlanCount(s, operations, 1, 20) for s in ("train", "held_out"))
    both = texts(train) + texts(held_out)
    assert len(set(both)) == len(both) == len(operations) * 90 * 20
    assert 0.05 < len(held_out) / len(both) < 0.15


def test_a_smaller_task_keeps_every_problem_in_its_split():
    large, small = set(texts(PlanCount(n_max=16))), texts(PlanCount(n_max=4))
    assert small
    assert set(small) <= large


@pytest.mark.parametrize("operation", ["max", "min"])
def test_the_gold_answer_is_that_of_python(operation):
    task = PlanCount(operations=(operation,))
    for i in range(len(task)):
        prompt = task[i]
        expression = prompt.text.removesuffix("=")
        assert eval(expression, {"max": max, "min": min}) == int(prompt.answer)
        assert prompt.index == i


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "11",
        "7+4",
        "7+4=",
        "=11x",
        "=011",
        "=11=",
        "= 11",
        "=\uff11\uff11",
        "=11\n",
        "=-11",
        "\x00=",
    ],
)
def test_odd_texts_are_wrong_and_never_raise(text):
    prompt = PlanCount()[0]
    prompt = type(prompt)(0, prompt.text, "11")
    assert PlanCount().verify(prompt, text) is False
    assert PlanCount().verify(prompt, "7+4=11") is True


def test_a_limit_spreads_its_problems_and_refuses_nonsense():
    task = PlanCount(limit=10)
    assert len(set(texts(task))) == 10
    assert len({PlanCount.difficulty(task, task[i]) for i in range(10)}) > 3
    assert len(PlanCount(limit=10**6)) == len(PlanCount())
    for wrong in (0, -1):
        with pytest.raises(ConfigError, match=rf"task\.limit={wrong}: must be at least 1"):
            PlanCount(limit=wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_min": 0}, r"n_min=0"),
        ({"n_min": 5, "n_max": 4}, r"n_max=4"),
        ({"n_max": 91}, r"n_max=91"),
        ({"wrong_plan": 1.5}, r"wrong_plan=1\.5"),
        ({"slip": -0.1}, r"slip=-0\.1"),
        ({"operations": ()}, r"operations"),
    ],
)
def test_impossible_problems_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        PlanCount(**arguments)


def demonstrate(task, count, seed=0):
    rng = random.Random(seed)
    prompts = [task[rng.randrange(len(task))] for _ in range(count)]
    return [(prompt, task.demonstration(prompt, rng)) for prompt in prompts]


def test_demonstrations_without_mistakes_are_right_in_every_step():
    task = PlanCount(operations=("max", "min"), wrong_plan=0, slip=0)
    for prompt, text in demonstrate(task, 300):
        assert task.verify(prompt, text)
        assert re.fullmatch(task.response_pattern, text)
        steps = task.judge_steps(prompt, text)
        assert all(valid for _, valid in steps)
        starts = [0, *(end + 1 for end, _ in steps[:-1])]
        parts = [text[a:b] for a, (b, _) in zip(starts, steps, strict=True)]
        assert parts == text.split("=")


def test_demonstrations_choose_the_wrong_plan_as_often_as_configured():
    task = PlanCount(wrong_plan=0.3, slip=0)
    judged = [
        (task.verify(prompt, text), task.judge_steps(prompt, text))
        for prompt, text in demonstrate(task, 2000)
    ]
    wrong = sum(not right for right, _ in judged) / len(judged)
    assert abs(wrong - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 2000)
    for right, steps in judged:
        # the plan is the only mistake, and it decides
        assert [valid for _, valid in steps] == [right] + [True] * (len(steps) - 1)


def test_demonstrations_slip_as_often_as_configured_and_slips_show_as_steps():
    task = PlanCount(wrong_plan=0, slip=0.1)
    steps = wrong = 0
    for prompt, text in demonstrate(task, 2000):
        valid = [v for _, v in task.judge_steps(prompt, text)]
        steps += len(valid) - 1  # the plan cannot slip
        wrong += valid.count(False)
        assert re.fullmatch(task.response_pattern, text)
    assert abs(wrong / steps - 0.1) < 0.01


def test_demonstrations_end_whatever_the_slips():
    for prompt, text in demonstrate(PlanCount(slip=1.0), 200):
        assert text.count("=") <= 16, prompt


def test_steps_after_the_answer_are_invalid():
    task = PlanCount(n_min=2, n_max=2)
    prompt = task[0]
    right = demonstrate(PlanCount(n_min=2, n_max=2, wrong_plan=0, slip=0), 1)[0][1]
    steps = task.judge_steps(prompt, right + "=1")
    assert steps[-1] == (len(right) + 2, False)
    assert task.judge_steps(prompt, "") == [(0, False)]


def test_difficulty_orders_by_the_number_of_steps():
    task = PlanCount(n_min=2, n_max=6)
    for i in range(len(task)):
        steps = int(task[i].text.rsplit("+", 1)[1].removesuffix("="))
        assert task.difficulty(task[i]) == (steps - 2) / 4
    assert PlanCount(n_min=3, n_max=3).difficulty(PlanCount(n_min=3, n_max=3)[0]) == 0


# --- MathProblems: reading ------------------------------------------------------------------------


ROWS = [
    {"problem": "1+1?", "answer": "2"},
    {"problem": "Half?", "answer": "\\frac{1}{2}"},
    {"problem": "Braces {x} and {question}?", "answer": "3"},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def save(tmp_path, kind, rows):
    import datasets

    path = tmp_path / f"problems.{kind}"
    if kind == "jsonl":
        return write(path, rows)
    if kind == "json":
        path.write_text(json.dumps(rows))
        return str(path)
    table = datasets.Dataset.from_list(rows)
    if kind == "parquet":
        table.to_parquet(str(path))
    elif kind == "folder":
        table.save_to_disk(str(path))
    else:
        datasets.DatasetDict({"train": table, "test": table.select([0])}).save_to_disk(str(path))
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "folder", "splits"])
def test_every_kind_of_file_gives_the_same_problems(tmp_path, kind):
    task = MathProblems(save(tmp_path, kind, ROWS))
    assert task.problems == [(r["problem"], r["answer"]) for r in ROWS]
    assert [task[i].index for i in range(len(task))] == [0, 1, 2]


def test_a_split_is_chosen_by_name_and_a_wrong_name_lists_the_others(tmp_path):
    path = save(tmp_path, "splits", ROWS)
    assert len(MathProblems(path, split="test")) == 1
    with pytest.raises(ConfigError, match=r"task\.split=dev: .* has train, test"):
        MathProblems(path, split="dev")


def test_the_prompt_asks_for_the_format_that_is_verified(tmp_path):
    """H09: a response that follows the prompt literally is right."""
    path = write(tmp_path / "p.jsonl", [{"problem": "1+1?", "answer": "2"}])
    for answer_format in ("boxed", "answer", "gsm8k"):
        task = MathProblems(path, answer_format=answer_format)
        prompt = task[0]
        for form in ("\\boxed{}", "`Answer: VALUE`", "`#### NUMBER`"):
            if form in prompt.text:
                literal = form.strip("`").replace("{}", "{2}")
                literal = literal.replace("VALUE", "2").replace("NUMBER", "2")
        assert task.verify(prompt, f"I add.\n{literal}")
        assert not task.verify(prompt, "2")


def test_braces_in_a_problem_survive_the_template(tmp_path):
    task = MathProblems(write(tmp_path / "p.jsonl", ROWS), template="Q: {question}")
    assert task[2].text == "Q: Braces {x} and {question}?"
    with pytest.raises(ConfigError, match=r"task\.template='Q'.*\{question\}"):
        MathProblems(str(tmp_path / "p.jsonl"), template="Q")


def test_worked_solutions_give_the_number_behind_the_marker(tmp_path):
    """H03: raw GSM8K columns, calculator marks and grouped digits."""
    row = {"question": "q", "answer": "work <<2*3=6>>6\n#### 1,450"}
    task = MathProblems(
        write(tmp_path / "p.jsonl", [row]), question="question", answer_format="gsm8k"
    )
    assert task[0].answer == "1450"
    assert task.verify(task[0], "so\n#### 1,450")
    assert not task.verify(task[0], "so\n#### 6")


def test_a_solution_column_gives_its_last_box(tmp_path):
    """H06: the last box of a solution; an answer column as it is."""
    row = {
        "problem": "q",
        "solution": "First \\boxed{90}, in total \\boxed{\\frac{205}{2}}.",
        "answer": "205",
    }
    path = write(tmp_path / "p.jsonl", [row])
    assert MathProblems(path, answer="solution")[0].answer == "\\frac{205}{2}"
    assert MathProblems(path)[0].answer == "205"


def test_nested_columns_and_chat_messages(tmp_path):
    """H01: the schema of DAPO's training file."""
    row = {
        "prompt": [{"role": "user", "content": "1+1?"}],
        "reward_model": {"ground_truth": "2", "style": "rule"},
    }
    path = save(tmp_path, "parquet", [row])
    columns = {"question": "prompt", "answer": "reward_model.ground_truth"}
    task = MathProblems(path, **columns, template="{question}", chat=True)
    assert task[0].messages == ({"role": "user", "content": "1+1?"},)
    with pytest.raises(ConfigError, match=r"task\.answer=reward_model\.gold: .* has prompt, rewa"):
        MathProblems(path, question="prompt", answer="reward_model.gold")


def test_repeated_problems_are_merged_in_stable_order(tmp_path):
    """H01, H02: each problem once; the same text with another answer is another problem."""
    rows = [ROWS[i] for i in (0, 1, 2)] * 30 + [{"problem": "1+1?", "answer": "3"}]
    random.Random(0).shuffle(rows)
    first = list(dict.fromkeys((r["problem"], r["answer"]) for r in rows))
    assert MathProblems(write(tmp_path / "p.jsonl", rows)).problems == first
    assert len(first) == 4
    assert MathProblems(str(tmp_path / "p.jsonl"), limit=2).problems == first[:2]


@pytest.mark.parametrize(
    ("given", "gold"),
    [(27.0, "27"), (27, "27"), (0.5, "0.5"), (-3.0, "-3"), ("27.0", "27"), (1e6, "1000000")],
)
def test_numeric_answers_are_written_as_a_person_would(tmp_path, given, gold):
    """A47: integers stored as floats."""
    path = write(tmp_path / "p.jsonl", [{"problem": "q", "answer": given}])
    task = MathProblems(path)
    assert task[0].answer == gold
    assert task.verify(task[0], f"\\boxed{{{gold}}}")


def test_golds_that_no_response_could_match_are_left_out_and_counted(tmp_path):
    """H07, A46: an unusable gold must not pay reward, nor train on a certain failure."""
    rows = [*ROWS, {"problem": "q", "answer": ""}, {"problem": "r", "answer": None}]
    path = write(tmp_path / "p.jsonl", rows)
    with pytest.warns(ConfigWarning, match=r"2 of 5 gold answers .*answer_format=boxed"):
        assert len(MathProblems(path)) == 3
    write(tmp_path / "p.jsonl", rows[3:])
    with pytest.warns(ConfigWarning), pytest.raises(ConfigError, match="holds no problem"):
        MathProblems(path)


def test_a_column_that_does_not_exist_names_those_that_do(tmp_path):
    path = write(tmp_path / "p.jsonl", [{"question": "q", "answer": "2"}])
    with pytest.raises(ConfigError, match=r"task\.question=problem: .* has answer, question"):
        MathProblems(path)


@pytest.mark.parametrize("name", ["missing.jsonl", "missing.json", "missing.parquet", "a/b/c"])
def test_a_path_that_does_not_exist_says_what_would(name):
    with pytest.raises(ConfigError, match=rf"^task\.path={name}: .*\.?") as error:
        MathProblems(name)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_says_why_in_one_line(tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text("{not json")
    with pytest.raises(ConfigError, match=r"task\.path=.*broken\.jsonl: cannot be loaded") as error:
        MathProblems(str(path))
    assert "\n" not in str(error.value)


# --- data sets of other people, read where they lie -----------------------------------------------


def shared(name):
    if not (SHARED / name).exists():
        pytest.skip(f"{name} does not lie beside the repository")
    return str(SHARED / name)


@pytest.mark.parametrize(
    ("name", "size", "columns"),
    [
        ("gsm8k_test.jsonl", 1319, {"question": "question", "answer_format": "gsm8k"}),
        ("gsm8k_all", 8792, {"answer_format": "gsm8k"}),
        (
            "aime-2024.parquet",
            30,
            {
                "question": "prompt",
                "answer": "reward_model.ground_truth",
                "answer_format": "answer",
            },
        ),
        ("math500.json", 500, {"question": "prompt", "answer": "final_answer"}),
        ("amc23.jsonl", 40, {"answer_format": "boxed"}),
    ],
)
def test_published_data_sets_load_and_every_gold_verifies_against_itself(name, size, columns):
    """H02, H03, H07: no gold is left out, each is right about itself and wrong about another."""
    task = MathProblems(shared(name), **columns)
    # two of GSM8K's problems occur twice
    assert size - 5 <= len(task) <= size
    forms = {"boxed": "\\boxed{%s}", "answer": "Answer: %s", "gsm8k": "#### %s"}
    form = forms[columns.get("answer_format", "boxed")]
    for i in range(0, len(task), max(len(task) // 100, 1)):
        prompt = task[i]
        assert prompt.text.strip()
        assert "<<" not in prompt.answer
        assert task.verify(prompt, form % prompt.answer), prompt.answer
        assert not task.verify(prompt, form % "31415.92"), prompt.answer
