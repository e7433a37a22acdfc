"""Where problems come from and how responses to them are judged."""

import math
import random
import re
from pathlib import Path

import pytest

from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.tasks import PlanCount

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
    with pytest.warns(ConfigWarning, match=r"^task\.limit=1000000: has no effect with only"):
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
        ({"plans": 5}, r"task.plans=5"),
        ({"operands": "paired"}, r"task.operands=paired: needs task.plans of at least 2"),
        ({"chatter": 1.0}, r"task.chatter=1.0"),
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


def test_paired_operands_show_which_one_is_right():
    task = PlanCount(plans=3, operands="paired")
    chosen = {(c.right, c.other) for problem in task.problems for c in problem.choices}
    assert chosen == {(2, 1), (4, 3), (6, 5), (8, 7)}
    assert {c.a > c.b for problem in task.problems for c in problem.choices} == {True, False}


def test_several_plans_make_one_number_and_all_must_be_right():
    task = PlanCount(plans=2, operations=("max", "min"), wrong_plan=0.3, slip=0)
    assert len(task) > 4000
    assert len({task[i].text for i in range(len(task))}) == len(task)
    held_out = PlanCount("held_out", plans=2, operations=("max", "min"))
    assert not {task[i].text for i in range(len(task))} & {
        held_out[i].text for i in range(len(held_out))
    }
    right = 0
    for prompt, text in demonstrate(task, 1000):
        chosen = re.findall(r"(max|min)\((\d),(\d)\)", prompt.text)
        start = "".join({"max": max, "min": min}[op](a, b) for op, a, b in chosen)
        assert len(start) == 2
        assert prompt.answer == str(int(start) + int(prompt.text[:-1].rsplit("+", 1)[1]))
        assert re.fullmatch(task.response_pattern, text)
        steps = [valid for _, valid in task.judge_steps(prompt, text)]
        assert steps == [text.startswith(f"{start}+")] + [True] * (len(steps) - 1)
        assert task.verify(prompt, text) == steps[0]
        right += steps[0]
    assert abs(right / 1000 - 0.49) < 4 * math.sqrt(0.49 * 0.51 / 1000)


def test_chatter_stands_between_steps_and_means_nothing():
    task = PlanCount(wrong_plan=0, slip=0, chatter=0.5)
    letters = steps = 0
    for prompt, text in demonstrate(task, 500):
        assert task.verify(prompt, text)
        assert re.fullmatch(task.response_pattern, text)
        assert all(valid for _, valid in task.judge_steps(prompt, text))
        first, *between, last = text.split("=")
        assert (first + last).replace("+", "").isdigit()
        letters += sum(c.isalpha() for part in between for c in part)
        steps += len(between)
    assert abs(letters / steps - 1) < 0.15
    assert PlanCount().judge_steps(PlanCount()[0], "x1+2=2+1=3")[0] == (4, False)


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
