"""Where problems come from and how responses to them are judged."""

import json
import math
import random
import re
import threading
import time
from pathlib import Path

import pytest

from lit_reason.errors import ConfigError
from lit_reason.tasks import PlanCount
from lit_reason.tasks.math_problems import equivalent, extract

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


# --- MathProblems: verdicts -----------------------------------------------------------------------

RIGHT_AND_WRONG = [
    # (format, response, accepted golds, refused golds)
    ("boxed", r"So it is \boxed{\frac{3}{8}}.", ["3/8"], ["3"]),
    ("boxed", r"\boxed{\frac{6}{\sqrt{3}}}", [r"2\sqrt{3}"], ["2"]),
    ("boxed", r"\boxed{\frac{1}{1+\frac{1}{1+\frac{1}{2}}}}", ["3/5"], []),
    ("boxed", r"\boxed{\dfrac{5}{6}}", ["5/6", r"\tfrac{5}{6}"], ["5"]),
    ("boxed", r"\boxed{\frac34}", ["3/4"], ["34"]),
    ("boxed", r"\boxed{12,600}", ["12600", "12,600"], ["12", "600"]),
    ("boxed", r"\boxed{2,5}", ["2,5"], ["25"]),
    ("boxed", r"\boxed{7{,}250}", ["7250"], ["250"]),
    ("boxed", r"\boxed{3,\!141,\!592}", ["3141592"], []),
    ("boxed", r"\boxed{25%}", [r"25\%"], []),
    ("boxed", r"\boxed{0.25}", [], ["25"]),
    ("boxed", r"\boxed{48\text{ cm}}", ["48"], ["480"]),
    ("boxed", r"\boxed{\left(-\infty,4\right)}", [r"(-\infty,4)"], [r"(-\infty,4]"]),
    ("boxed", r"\boxed{-\infty}", [], [r"\infty"]),
    ("boxed", r"\boxed{(3,8]}", [r"\left(3, 8\right]"], ["(3,8)", "(3,9]"]),
    ("boxed", r"\boxed{[0,6]}", [], ["0<x<6"]),
    ("boxed", r"\boxed{\{9,1,4\}}", [r"\{1,4,9\}"], []),
    ("boxed", r"\boxed{(4,1)}", ["(4, 1)"], ["(1,4)"]),
    ("boxed", r"\boxed{1,4}", ["4,1"], [r"\{1,4,9\}"]),
    ("boxed", r"remainder \boxed{007}, i.e. \boxed{007}", ["7"], ["007007", "77"]),
    ("boxed", r"Try \boxed{12}. I forgot one: \boxed{13}.", ["13"], ["12"]),
    ("boxed", "\\boxed{\N{MINUS SIGN}7}", ["-7"], ["7"]),
    ("boxed", r"\boxed{\frac{3}{-4}}", ["-3/4", "-0.75"], ["3/4"]),
    ("boxed", r"\boxed{2\frac{1}{2}}", ["5/2"], ["1"]),
    ("boxed", r"\boxed{4 3/5}", ["23/5", "4.6"], ["4", "43/5"]),
    ("boxed", r"\boxed{1 2}", [], ["12"]),
    ("boxed", r"\boxed{\text{Friday}}", ["Friday", r"\text{Friday}"], ["Monday"]),
    ("boxed", r"\boxed{45^{\circ}}", ["45", r"45^\circ"], ["54", "1"]),
    ("boxed", r"\boxed{134_{5}}", ["134_5"], ["134_7", "1345"]),
    ("boxed", r"\boxed{x = 17}", ["17", "x=17"], ["71"]),
    ("boxed", r"\boxed{\frac{1}{3^{40}}}", ["3^{-40}"], [r"\frac{1}{3^{41}}", "0"]),
    ("boxed", r"\boxed{\frac{1}{2", [], ["1/2", "1", ""]),
    ("boxed", r"hence \boxed{", [], [""]),
    ("boxed", r"\boxed{}", [], ["", "0"]),
    ("boxed", r"So \boxed{6}. (I used \boxed as asked.)", ["6"], []),
    ("boxed", r"Put your answer in \boxed", [], ["6"]),
    ("boxed", r"\boxed{3.5}", [r"\boxed{\frac{7}{2}}", r"$\frac{7}{2}$", r"\frac72"], []),
    ("boxed", r"\boxed{5}", [], ["", "see the figure"]),
    ("boxed", r"\boxed{\frac{21}{50}}", ["0.42"], ["0.43"]),
    ("boxed", r"\boxed{4.2\times 10^{5}}", ["420000"], ["42000"]),
    ("boxed", r"\boxed{\text{(C)}}", ["C"], ["B"]),
    ("boxed", r"\boxed{\$1,250.00}", ["1250"], ["250"]),
    ("boxed", r"\boxed{\sqrt{12}}", [r"2\sqrt{3}"], [r"3\sqrt{2}"]),
    ("boxed", r"$$\boxed{26}$$ which completes the solution.", ["26"], []),
    ("boxed", r"\boxed{1}", [], [r"\{1,2\}"]),
    ("boxed", r"\boxed{\{1,2\}}", [], ["1"]),
    ("answer", "Answer: 9\nWait, zero is allowed too.\nAnswer: 14", ["14"], ["9"]),
    ("answer", "The answer: hard to see.\nAnswer: 14", ["14"], []),
    ("answer", "Answer: $58$", ["58"], ["5"]),
    ("answer", "**Answer:** 58.", ["58"], []),
    ("answer", r"Answer: \boxed{58}", ["58"], []),
    ("answer", "Adding, 30 + 34 = 64.\nAnswer: **64**", ["64"], ["30"]),
    ("answer", "Answer: C. A larger sample", [], ["A"]),
    ("gsm8k", "There are 5 x 375.\n#### 1,875.", ["1875"], []),
    ("gsm8k", "#### -12", ["-12"], ["12"]),
    ("gsm8k", "#### ,", [], ["0"]),
    ("gsm8k", "#### 18 eggs per day", ["18"], []),
    ("gsm8k", "#### $1,250", ["1250"], []),
    ("gsm8k", "#### 12 + 3 = 15", ["15"], ["12"]),
]


@pytest.mark.parametrize(("answer_format", "response", "right", "wrong"), RIGHT_AND_WRONG)
def test_verdicts_are_those_of_a_careful_reader(answer_format, response, right, wrong):
    stated = extract(response, answer_format)
    for gold in right:
        assert equivalent(gold, stated or ""), gold
    for gold in wrong:
        assert stated is None or not equivalent(gold, stated), gold


def test_the_verdict_does_not_depend_on_the_thread_or_on_repetition():
    """A38: outside the main thread Python delivers no alarm; the verdict is the same."""
    pairs = [("2/7", r"\frac{2}{7}"), ("2/7", r"\frac{3}{7}"), (r"2\sqrt{3}", r"\sqrt{12}")]
    here = [equivalent(*pair) for pair in pairs]
    assert here == [True, False, True]
    equivalent.cache_clear()
    there = []
    thread = threading.Thread(target=lambda: there.extend(equivalent(*pair) for pair in pairs))
    thread.start()
    thread.join()
    assert there == here == [equivalent(*pair) for pair in pairs]


def test_text_of_the_model_is_never_executed(tmp_path):
    """A39: neither run nor able to change a later verdict."""
    mark = tmp_path / "mark"
    for attack in (
        rf"__import__('pathlib').Path('{mark}').touch() or \pi",
        f"[open('{mark}','w')]",
        f"exec(\"open('{mark}','w')\")",
    ):
        assert not equivalent(r"\pi", attack)
        assert not equivalent("1", attack)
    assert not mark.exists()
    assert equivalent(r"2\pi", r"\pi\cdot 2")


def test_explosive_expressions_end_soon_and_are_wrong():
    """A37: power towers and factorials."""
    for attack in (r"9^{9^{9^{9}}}", r"(10^{9})!"):
        started = time.perf_counter()
        assert not equivalent("7", attack)
        assert time.perf_counter() - started < 6
    assert equivalent("1/2", "0.5")


@pytest.mark.parametrize(
    "text", ["", "\\", "$", "}{", "\\boxed{{{", "\\frac{}{}", "\x00", "∑", "((((", "a" * 5000]
)
def test_no_text_raises(text):
    for answer_format in ("boxed", "answer", "gsm8k"):
        for response in (text, f"\\boxed{{{text}}}", f"Answer: {text}", f"#### {text}"):
            stated = extract(response, answer_format)
            if stated is not None:
                assert equivalent("7", stated) is False


# --- data sets of other people, read where they lie -----------------------------------------------


def shared(name):
    if not (SHARED / name).exists():
        pytest.skip(f"{name} does not lie beside the repository")
    return str(SHARED / name)


def test_verdicts_agree_with_those_published_with_gsm8k():
    """Responses of real models, each with its authors' verdict."""
    lines = Path(shared("gsm8k_model_solutions.jsonl")).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        gold = row["ground_truth"].rsplit("A:", 1)[1].strip()
        stated = extract(row["solution"].replace("\nA:", "\n####"), "gsm8k")
        right = stated is not None and equivalent(gold, stated)
        assert right == row["is_correct"], (gold, row["solution"][-80:])
