"""Where an answer is found, and which answers are equal."""

import copy
import csv
import json
import pickle
import random
import time
import warnings
from pathlib import Path

import pytest

from lit_reason.batch import Group
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.judge import verdict_shares
from lit_reason.scores import answer_classes
from lit_reason.tasks import MathProblems, PlanCount, Task
from lit_reason.verdict import Status, Verdict
from lit_reason.verifier import Verifier, equivalent, extract
from lit_reason.verifier.spelling import MAX_LENGTH, quick
from tests.conftest import SMALL, fit, tiny

ROWS = [json.loads(x) for x in (Path(__file__).parent / "data/answers.jsonl").open()]
SHARED = Path(__file__).parents[2] / "shared" / "data"
FORMATS = ("boxed", "answer", "gsm8k", "think_answer")

# what we decide where a policy row expects otherwise: see docs/verification.md
DECIDED_OTHERWISE = {("A08", "All told there are 45 marbles, give or take none."): False}


@pytest.fixture(scope="module")
def verifier():
    shared = Verifier(time_limit=30.0)  # the machine may be busy
    yield shared
    shared.close()


def judged(verifier, mode, golds, texts):
    reader = copy.copy(verifier)  # the same workers
    reader.mode, reader._warned = mode, True
    return reader(golds, texts)


# --- the cases ------------------------------------------------------------------------------------


def test_the_cases_are_all_there():
    assert [sum(r["level"] == level for r in ROWS) for level in ("must", "policy")] == [139, 29]


def test_every_case_is_judged_as_a_careful_reader_would(verifier):
    for mode in {row["mode"] for row in ROWS}:
        rows = [row for row in ROWS if row["mode"] == mode and row["id"] != "A37"]
        verdicts = judged(verifier, mode, [r["gold"] for r in rows], [r["response"] for r in rows])
        mistakes = [
            (row["id"], row["response"], row["gold"], str(verdict.status))
            for row, verdict in zip(rows, verdicts, strict=True)
            if verdict.correct
            is not DECIDED_OTHERWISE.get((row["id"], row["response"]), row["expected"])
        ]
        assert mistakes == []


EQUAL = [
    # a letter at the end is a part of the term
    ("-4+7t", "7t-4"),
    ("7t - 4", "-4 + 7t"),
    ("16-4t", "4(4-t)"),
    ("3m+2", "2+3m"),
    (r"\frac{1}{2}m", r"\frac{m}{2}"),
    (r"2\pi r h", r"2\pi hr"),
    (r"6\pi", r"6\pi cm"),
    ("23/5", "4 3/5"),
    ("23/5", "4.6"),
    ("-5/2", "-2 1/2"),
    ("1/3", "0.333333"),
    ("1/2", "1/2."),
    ("2\\pi", "2π"),
    ("\\sqrt{3}", "√3"),
    ("1000", "1e3"),
    ("10^{400}", "10^{399}\\cdot 10"),
    ("x+y", "y+x"),
    ("n(n+1)/2", "\\frac{n^2+n}{2}"),
    ("\\sin(2x)", "2\\sin x\\cos x"),
    ("x^2", "\\sqrt{x^4}"),
    ("\\pm 2", "-2,2"),
    ("x=1 or x=2", "1,2"),
    ("y=2x+1", "2x-y+1=0"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{bmatrix}1\\\\2\\end{bmatrix}"),
    ("(-\\infty,0)\\cup(1,2)", "(1,2)\\cup(-\\infty,0)"),
    ("0<x<6", "x\\in(0,6)"),
    ("\\emptyset", "\\{\\}"),
    # case does not count in words and choices
    ("Friday", r"\text{friday}"),
    (r"\text{Bob}", "bob"),
    ("No", "no"),
    ("EVEN", "even"),
    ("C", r"\text{(c)}"),
    ("1A_{16}", "1a_{16}"),
    (r"6\text{ apples}", "6 Apples"),
    # what stands around an answer
    ("5", r"\[5\]"),
    ("5", r"\(\textbf{5}\)"),
    ("5", r"\textcolor{red}{5}"),
    ("5", r"{\color{red}5}"),
    ("5", r"\underline{5}"),
    ("5", r"\mathbf{\underline{5}}"),
    (r"\frac{\pi}{2}", r"\textcolor{red}{\frac{\pi}{2}}"),
    ("5", r"5\\"),
    ("15", r"15\text{ nuts and bolts}"),
    ("1,2", r"1\text{ and }2"),
    ("15", "12 + 3 = 15"),
    ("12:30", "12:30 PM"),
    ("3:4", "3/4"),
    ("100, 200", "100,200"),
    ("1234", "x = 1,234"),
    ("1234", r"1,234\%"),
    ("1234 dollars", "1,234 dollars"),
    ("100, 200", "200, 100"),
    ("0.00003", "3/100000"),
    ("1/30000", "0.0000333333"),
    # decimals with a period
    (r"\frac13", r"0.\overline{3}"),
    (r"\frac13", r"x = 0.\bar3"),
    (r"\frac13", r"0.\dot{3}"),
    (r"\frac13", "0.(3)"),
    (r"\frac13", "0.3\u0305"),
    (r"\frac13", r"0.333\ldots"),
    (r"0.\overline{3}", r"\frac{2}{6}"),
    (r"\frac{4}{11}", r"0.\overline{36}"),
    ("4/11", r"0.\dot{3}\dot{6}"),
    ("5/3", r"1.\overline{6}"),
    ("1/6", r"0.1\overline{6}"),
    ("-1/3", r"-0.\overline{3}"),
    (r"\frac{1}{3}+\pi", r"0.\overline{3}+\pi"),
    # numbers with units; what is algebra stays it
    ("3/4", "3/4 cup"),
    ("3/4", r"\frac34\text{ cup}"),
    ("1/3", "1/3 of the cake"),
    ("1/3", "0.333333 cups"),
    ("4.5", "4 1/2 hours"),
    ("4.5", r"4\frac12 hours"),
    ("18 dollars", "18"),
    ("2", "2 times as many"),
    ("4", "4 cats or dogs"),
    ("2000", "2 000 km"),
    ("18", "x = 18 dollars"),
    ("15", "12 eggs + 3 eggs = 15 eggs"),
    ("-3", "\u22123\u00b0C"),
    ("18\\%", "18 percent"),
    ("18 x", "18x"),
    (r"3 \pi", r"3\pi"),
    ("5i", "5 i"),
    (r"6\pi", r"6\pi square inches"),
    (r"2\sqrt{3}", r"\sqrt{12}\text{ units}"),
    # an estimate behind an exact value
    (r"2\pi", r"2\pi \approx 6.28"),
    ("10", r"x \approx 10"),
    # ranges
    (r"(-\infty,-2)\cup(2,\infty)", r"x<-2 \text{ or } x>2"),
    ("1<x<2", r"x>1 \text{ and } x<2"),
    ("1<x<2", "2>x>1"),
    ("(0,1)", r"\{x: 0<x<1\}"),
    ("(0,1)", r"\{x \in \mathbb{R} \mid 0<x<1\}"),
    # no solution
    (r"\varnothing", r"\emptyset"),
    (r"\text{no solution}", r"\varnothing"),
    (r"\emptyset", "No solutions"),
    ("\u2205", r"\{\}"),
    # characters
    ("1/2", "\u00bd"),
    ("3/2", "1\u00bd"),
    ("5", "\uff15"),
    ("42", "\u0664\u0662"),
    ("x^{12}", "x\u00b9\u00b2"),
    ("1,2", "1\uff0c2"),
    ("1,2", r"1\text{, }2"),
    ("7", "**7**"),
    ("5", r"\text{5 apples}"),
    ("A", "Option A"),
    ("1000", "1 000"),
    ("1000", "1\u2009000"),
    ("1000000", "1 000 000"),
    # values with names
    ("a=1,b=2", "b=2, a=1"),
    ("a=1,b=2", "1,2"),
    ("x=1 or x=2", "2,1"),
    ("xy", "yx"),
]
DIFFERENT = [
    # nor does it become a unit
    ("-4+7t", "3"),
    ("16-4t", "12"),
    ("4s", "4"),
    ("3t", "3"),
    ("x=2t", "2"),
    ("5", "5t"),
    ("18", "18ab"),
    # words that make another number of one, in text mode too
    ("5", r"5\text{ million}"),
    ("5", r"\$5\text{ million}"),
    ("5", r"5\text{ dozen}"),
    ("5", r"5\mathrm{i}"),
    ("12", "12 lakh"),
    ("12", "12 hundredths"),
    (r"\frac12", r"\frac12\text{ million}"),
    # characters of which each is two digits: more than Python converts
    ("5", "\u32bf" * 2500),
    ("5", "\u32bf" * 2500 + "/3"),
    ("1/3", "0.33"),
    ("0.0000012", "0.0000014"),
    ("43/5", "4 3/5"),
    ("12", "1 2"),
    ("12", "12C"),
    ("|x|", "x"),
    ("\\sqrt{x^2}", "x"),
    ("x", "y"),
    ("x=3", "y=3"),
    ("\\pm 2", "2"),
    ("(1,2)", "\\{1,2\\}"),
    ("\\{1,2\\}", "(1,2)"),
    ("(1,2)", "[1,2]"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}2\\\\1\\end{pmatrix}"),
    ("see the 5", "5"),
    ("3:30", "3:45"),
    ("7", ""),
    ("", "7"),
    ("7", "1/0"),
    ("C", "(B) 12"),
    # case counts in formulas
    (r"\frac{R}{r}", r"\frac{r}{R}"),
    (r"\frac{m}{M}", r"\frac{M}{m}"),
    ("A-a", "a-A"),
    (r"\Delta", r"\delta"),
    (r"\frac{\delta}{\Delta}", r"\frac{\Delta}{\delta}"),
    (r"2\gamma", r"2\Gamma"),
    ("x", "X"),
    ("X", "x"),
    ("x_1", "X_1"),
    ("ABCD", "abcd"),
    (r"\pi R^2", r"\pi r^2"),
    # several values where one is asked for
    ("5", r"5\\6"),
    ("5", r"5\text{ apples and }6\text{ oranges}"),
    ("5", "5 or 6"),
    ("x", r"x\text{ or }y"),
    ("6", "= 5 = 6"),
    ("A", "(A)(B)(C)"),
    ("A", "A. or B."),
    ("A", "A, B"),
    ("A", "(A) 12 or (B) 13"),
    ("100, 200", "100200"),
    ("f(1,234)", "f(1234)"),
    ("12:30", "12/30"),
    ("12:30", "0.4"),
    ("12:30 am", "12:30 pm"),
    ("0.0000120", "0.0000121"),
    (r"\sqrt{-1-x^2}", r"\sqrt{-2-x^2}"),  # nowhere real
    # decimals with a period, and with what the engine would cut
    ("0", r"0.\overline{3}"),
    ("0", "0.(3)"),
    ("2", r"2.\overline{7}"),
    ("0.3", r"0.\overline{3}"),
    (r"0.\overline{3}", r"0.\overline{6}"),
    (r"0.\overline{36}", r"0.\overline{63}"),
    ("0", r"0.\hat{3}"),
    ("0", "0.{3}"),
    ("2", "2.x"),
    # no units
    ("18", "18 x"),
    ("18", "18 xy"),
    ("18", r"18 \pi"),
    ("18", "18 i"),
    ("18", "18 thousand"),
    ("18", "18 squared"),
    ("18 x", "18"),
    ("18 x", "18 apples"),
    ("2", "2 and a half"),
    ("4", "4 cats or more"),
    ("4", "4 times 2"),
    ("18 dollars", "19 dollars"),
    # ranges and bounds
    ("10", "> 10"),
    ("10", r"\ne 10"),
    ("10", "10 <"),
    ("10", "10+"),
    ("7", "\u22657"),
    ("3", r"\le 3"),
    ("10", r"10 \text{ or more}"),
    ("10", "at least 10"),
    (r"2\pi", r"\le 2\pi"),
    ("1<x<2", r"x>1 \text{ or } x<2"),
    ("1<x<2", r"1<x\le 2"),
    ("x<-2 or x>2", "y<-2 or y>2"),
    ("0", r"\emptyset"),
    ("1000", "1 00"),
    # order counts in names
    ("a=1,b=2", "2,1"),
    ("a=1,b=2", "b=1,a=2"),
    ("ABC", "ACB"),
    ("ABCDE", "ABCED"),
    ("A", "Option B"),
]
# what stands between two numbers
HEDGES = [
    *(
        "\uff0c",
        "\u3001",
        "\uff1b",
        "\u548c",
        "\u6216",
        "\u3068",
        "\u2192",
        "\u21d2",
        "\u222a",
        "\u2248",
    ),
    *(
        "&",
        r"\&",
        "?",
        ";",
        "|",
        "`",
        "//",
        "...",
        "->",
        "=>",
        "+/-",
        "\u00b1",
        "$ $",
        r"\to ",
        r"\cup ",
    ),
    *(r"\approx ", r"\Rightarrow ", r"\mid ", r"\text{, }", " or ", " and ", " to ", " but not "),
    *(r"\text{ to }", " hours ", r" \text{ hours } ", " eggs or ", " eggs, not ", " dollars and "),
]
HEDGED = [f"7{hedge}9" for hedge in HEDGES] + [f"9{hedge}7" for hedge in HEDGES]
HEDGED += ["$7$ $9$", "7 hours 30 minutes", "7 or 8 or 9", "the answer isn't 7 but 9", "not 7"]
# fmt: off
UNITS = (
    "dollars", "eggs", "people", "points", "cookies", "games", "euros", "apples", "students",
    "miles", "m^2", "m/s", "km/h", "cm", "miles per hour", "hours a day", "years old",
    "square feet", "Eggs.", "eggs (total)", r"\text{ m}", r"\,\mathrm{cm}^2", "m³",
    "nuts and bolts",
)
# fmt: on


def test_equal_and_different_answers_in_this_process_and_in_the_workers(verifier):
    """A38: the verdict depends neither on where it is made nor on repetition."""
    for expected, pairs in ((True, EQUAL), (False, DIFFERENT)):
        assert [p for p in pairs if equivalent(*p) is not expected] == []
        for _ in range(2):
            there = verifier.equal(pairs)
            assert [p for p, v in zip(pairs, there, strict=True) if v is not expected] == []


def test_an_answer_that_offers_several_values_is_wrong(verifier):
    for mode, form in (("boxed", r"\boxed{%s}"), ("answer", "Answer: %s"), ("gsm8k", "#### %s")):
        verdicts = judged(verifier, mode, ["7"] * len(HEDGED), [form % text for text in HEDGED])
        assert [t for t, v in zip(HEDGED, verdicts, strict=True) if v.status != "wrong"] == []


@pytest.mark.parametrize("mode", FORMATS)
def test_units_behind_a_number_do_not_count_in_any_format(mode):
    """And cost no worker."""
    verifier = Verifier(mode)
    for number, expected in (("18", True), ("19", False)):
        texts = [verifier.state(f"{number} {unit}") for unit in UNITS]
        verdicts = verifier(["18"] * len(texts), texts)
        assert [t for t, v in zip(texts, verdicts, strict=True) if v.correct is not expected] == []
    assert verifier(["0.5"], [verifier.state("1/2 cup")])[0].correct
    assert verifier.pool.members == []


# --- extraction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", FORMATS)
def test_a_stated_answer_is_found(mode):
    for answer in ("7", r"\frac{1}{2}", "x = 3"):
        assert extract(Verifier(mode).state(answer), mode) == answer
    assert Verifier("gsm8k", marker="A:").state(7.0) == "A: 7"


@pytest.mark.parametrize(
    ("mode", "text", "answer"),
    [
        ("boxed", r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        ("boxed", r"\fbox{3} and \boxed  {4}", "4"),
        ("boxed", r"\boxed 6, as \boxed asks", "6"),
        ("boxed", r"\boxed{5}. More carefully \boxed{\frac{1}{2", None),
        ("boxed", r"\boxed{\boxed{5}}", "5"),
        ("boxed", "no box", None),
        ("boxed", r"\boxed{5}. I put it in \boxed{} as asked", "5"),
        ("boxed", r"\boxed{}", None),
        ("boxed", r"\boxed{\text{ }}", None),
        ("boxed", r"\boxed{\boxed{}}", None),
        ("boxed", r"\boxed{5}, no: \boxed{", None),
        ("boxed", r"a } \\boxed{5}", "5"),
        ("boxed", r"\boxed{\{\}}", r"\{\}"),
        ("answer", "Answer: 9\nno:\nAnswer:\n\n14", "14"),
        ("answer", "**Answer:** 58.", "58."),
        ("answer", "Answer: **", None),
        ("answer", "**Answer**: 34", "34"),
        ("answer", "**Final Answer**: $34$", "$34$"),
        ("answer", "**Answer:**\n\n34", "34"),
        ("answer", "Answer: 17\nAnswer: $$\n18\n$$\nDone.", "$$\n18\n$$"),
        ("answer", "Answer: \\[ x =\n18 \\]", "\\[ x =\n18 \\]"),
        ("answer", "Answer: $$18\n", "$$18"),
        ("answer", "Answer: $$18$$ dollars", "$$18$$"),
        ("answer", "Answer: \\[18\\] or \\[19\\]\nDone.", "\\[18\\] or \\[19\\]"),
        ("answer", "Answer: 5\nAnswer: $$\n$$", "5"),
        ("answer", "**Answer\uff1a** 18", "18"),
        ("answer", "Answer: 5\nAnswer: **", "5"),
        ("answer", r"Answer: $\boxed{}$", None),
        ("gsm8k", "#### 5\n#### **", "5"),
        ("gsm8k", "#### Step 1\n18 of 20\n#### 18", "18"),
        ("gsm8k", "#### 18\n\nQuestion: next one\n#### 7", "18"),
        ("gsm8k", "#### 18\n####", "18"),
        ("gsm8k", "#### 18\nProblem: next one\n#### 7", "18"),
        ("gsm8k", "#### 18\nQ: next one\n#### 7", "18"),
        ("gsm8k", "#### 18 eggs or 19", "18 eggs or 19"),
        ("gsm8k", "#### $$\n18\n$$", "$$ 18 $$"),
        ("gsm8k", "#### -  $ 1,250 dollars", "- $ 1,250"),
        ("gsm8k", "#### 12 + 3 = 15", "12 + 3 = 15"),
        ("think_answer", "<answer>1</answer> no <answer> 2\n</answer>", "2"),
        ("think_answer", "<answer>1</answer> no <answer>2", None),
        ("think_answer", "</answer> 2 <answer>", None),
        ("think_answer", "<answer></answer>", None),
        ("think_answer", "<answer>5</answer> in <answer></answer> tags", "5"),
        ("think_answer", "in <answer> tags: <answer></answer>", None),
    ],
)
def test_the_answer_is_found_where_the_format_has_it(mode, text, answer):
    assert extract(text, mode) == answer


def test_a_marker_takes_the_place_of_the_usual_one():
    assert extract("A: 3\nA: 18 eggs\n#### 7", "gsm8k", "A:") == "18"
    assert extract("Result = **x+1**\n", "answer", "Result =") == "x+1"
    assert extract("Answer: 3", "answer", "Result =") is None


HUGE = [
    "\\boxed{" * 150_000,
    "\\boxed{" + "{" * 500_000,
    "\\boxed{" + "(" * 500_000 + ")" * 500_000 + "}",
    "\\boxed" + " " * 1_000_000,
    "#" * 1_000_000,
    "#### " * 200_000,
    "#### -" + " " * 1_000_000 + "x",
    "#### " + "1," * 500_000 + "x",
    "answer " * 150_000,
    "answer" + " " * 1_000_000,
    "answer:" + " 1" * 500_000,
    "<answer>" * 125_000,
    "<answer>" + "1 " * 500_000 + "</answer>",
    "<answer></answer>" * 60_000,
    "\\boxed{}" * 120_000,
    "\\boxed{" * 60_000 + "}" * 60_000,
    "answer: **\n" * 90_000,
    "answer: $$\n" * 90_000,
    "answer: " * 120_000,
    "answer: $$" * 100_000,
    "answer: \\[" + " " * 1_000_000,
    "#### \\[" * 130_000,
    "answer: 0." + "3" * 4000,
    "answer: 1" + " egg" * 1000 + "!",
    "answer: " + "x<1 and " * 500,
    "#### 1\n" + "Question" * 100_000 + " \t" * 100_000,
]


def test_a_megabyte_of_anything_is_read_and_judged_in_no_time(verifier):
    started = time.perf_counter()
    for mode in FORMATS:
        for verdict in judged(verifier, mode, ["7"] * len(HUGE), HUGE):
            assert verdict.status in (Status.WRONG, Status.NO_ANSWER)
    assert time.perf_counter() - started < 20  # what is quadratic takes hours


ATOMS = ["1", "1 ", "the ", "a egg ", "ab ", "0.", "1,000", "x<1 and ", "a=1,", "=", "$ $", r"\ "]
ATOMS += [
    "3\u0305",
    r"\dot{3}",
    r"\text{a}",
    "\u2192",
    "1/2 ",
    "**",
    "(A)",
    "A,",
    "\u00bd",
    "{",
    " or ",
]


@pytest.mark.parametrize("head", ["", "18 ", "0.", "x<", r"\{x:", "a=1,", "**", r"\frac{1}{2} "])
def test_no_answer_holds_the_training_process_up(head):
    """There is no time limit where answers are told apart without the engine."""
    for atom in ATOMS:
        text = (head + atom * MAX_LENGTH)[: MAX_LENGTH - 1] + "!"
        for gold in ("7", "x", "a=1,b=2", "1<x<2", "A"):
            started = time.process_time()
            quick(gold, text)
            assert time.process_time() - started < 0.5, atom


def test_a_long_answer_is_right_only_if_it_is_the_gold_one(verifier):
    long = "+".join("x" * MAX_LENGTH)
    assert verifier.equal([(long, f" {long} "), (long, long[:-1] + "y")]) == [True, False]


# --- what a model can write -----------------------------------------------------------------------

HOSTILE = [
    *(row["response"] for row in ROWS if row["id"] == "A37"),
    "9**9**9**9",
    r"\sqrt[1000000000]{3}",
    "(" * 2000 + "1" + ")" * 2000,
    r"\frac{1}{" * 400,
    r"\begin{pmatrix}" + "&".join("1" * 300) + r"\end{pmatrix}",
    r"\left(" * 600,
    "$" * 4000,
    "\x00",
    "\ud800 1/2",
    "\u202e7/3\u202c",
    "}{",
    "\\",
    "\\frac{}{}",
]


def test_nothing_that_a_model_writes_hangs_crashes_or_spoils_a_later_verdict():
    """A37, F06: bombs among ordinary answers, which are judged as ever."""
    rng = random.Random(0)
    pairs = [(f"{a}/7", rf"\frac{{{2 * a}}}{{14}}") for a in range(400)] + [
        (f"{a}\\pi", f"\\pi\\cdot {a}") for a in range(20)
    ]
    pairs += [("7/3", text) for text in HOSTILE]
    rng.shuffle(pairs)
    verifier = Verifier(time_limit=1.0)
    with pytest.warns(ConfigWarning, match=r"of 436 answers could not be compared"):
        results = verifier.equal(pairs)
    verifier.close()
    for (_, stated), result in zip(pairs, results, strict=True):
        assert result is True or stated in HOSTILE, stated
        assert not (result and stated in HOSTILE), stated
    assert [results[[s for _, s in pairs].index(text)] for text in HOSTILE[:3]] == [None] * 3


def test_text_of_the_model_is_never_executed(verifier, tmp_path):
    """A39."""
    mark = tmp_path / "mark"
    attacks = [
        rf"__import__('os').system('touch {mark}') or \pi",
        rf"__import__('pathlib').Path('{mark}').touch() or \pi",
        f"[open('{mark}','w')]",
        f"\\text{{exec(\"open('{mark}','w')\")}}",
    ]
    for gold in (r"\pi", "1", "[1]"):
        assert True not in verifier.equal([(gold, attack) for attack in attacks])
    assert not mark.exists()
    assert verifier.equal([(r"2\pi", r"\pi\cdot 2")]) == [True]


# --- the class ------------------------------------------------------------------------------------


def test_a_verdict_has_a_status_and_the_answer_that_was_found():
    """What needs no algebra starts no process."""
    verifier = Verifier("answer")
    texts = ["Answer: 1,250", "Answer: 8", "none", "Answer: 7."]
    assert verifier(["1250", 7, 7, 7.0], texts) == [
        Verdict(Status.CORRECT, "1,250"),
        Verdict(Status.WRONG, "8"),
        Verdict(Status.NO_ANSWER),
        Verdict(Status.CORRECT, "7."),
    ]
    assert verifier.pool.members == []
    assert verifier([], []) == []


class Failing(Verifier):
    """Workers that compare nothing, and say why."""

    def __init__(self, *statuses, **arguments):
        super().__init__("boxed", **arguments)
        self.asked = []
        self.pool.run = lambda pairs: [self.asked.append(p) or statuses[0] for p in pairs]


def test_what_could_not_be_compared_is_not_correct_and_warned_about_once():
    verifier = Failing(Status.TIMEOUT)
    texts = [r"\boxed{\pi}", r"\boxed{3}"]
    with pytest.warns(ConfigWarning, match=r"1 of 2 answers .*'\\\\pi'.*'7/3' \(timeout\)"):
        verdicts = verifier(["7/3", "3"], texts)
    assert [str(v.status) for v in verdicts] == ["timeout", "correct"]
    assert not verdicts[0].correct
    verifier(["7/3", "3"], texts)  # warnings are errors here
    assert len(verifier.asked) == 1


def ask(verifier, gold, stated):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        return str(verifier([gold], [rf"\boxed{{{stated}}}"])[0].status)


TOWER = "9^{9^9}"


def test_an_answer_that_is_slow_by_itself_costs_its_time_limit_twice():
    """Once in company and, where it is met again, once alone."""
    verifier = Failing(Status.TIMEOUT)
    for gold in ("7/3", "\\sqrt{2}", "x"):
        assert ask(verifier, gold, TOWER) == "timeout"
    assert verifier.asked == [("7/3", TOWER), ("0", TOWER)]


@pytest.mark.parametrize(
    "slow", [(TOWER, r"2\sqrt{3}"), ("7/3", r"2\sqrt{3}")], ids=["gold", "machine"]
)
def test_a_pair_that_timed_out_changes_no_verdict_on_another(slow):
    verifier = Failing(Status.CORRECT)
    verifier.pool.run = lambda pairs: [
        Status.TIMEOUT if p == slow or TOWER in p else Status.CORRECT for p in pairs
    ]
    assert ask(verifier, *slow) == "timeout"
    assert ask(verifier, r"\sqrt{12}", r"2\sqrt{3}") == "correct"
    assert ask(verifier, *slow) == "timeout"


def test_a_gold_answer_that_is_slow_by_itself_is_found_out():
    verifier = Failing(Status.TIMEOUT)
    verifier.asked = []
    for stated in ("5/3", "6/3", "7/3"):
        assert ask(verifier, TOWER, stated) == "timeout"
    assert verifier.asked == [(TOWER, "5/3"), ("0", TOWER)]


def test_an_error_is_tried_again():
    verifier = Failing(Status.ERROR)
    with pytest.warns(ConfigWarning, match=r"\(error\)"):
        verifier(["7/3"], [r"\boxed{\pi}"])
    verifier(["7/3"], [r"\boxed{\pi}"])
    assert len(verifier.asked) == 2


def test_pairs_that_could_not_be_compared_are_warned_of_and_cost_their_time_once():
    verifier = Failing(Status.TIMEOUT)
    towers = [f"{a}^{{9^{{9}}}}" for a in range(2, 6)]
    pairs = [(a, b) for a in towers for b in towers if a < b]
    with pytest.warns(ConfigWarning, match=r"6 of 6 answers could not .* majority votes"):
        assert verifier.equal(pairs) == [None] * 6
    assert verifier.equal(pairs) == [None] * 6
    assert verifier.asked == [("0", tower) for tower in towers]
    with pytest.raises(ConfigError, match="on_failure=raise"):
        Failing(Status.TIMEOUT, on_failure="raise").equal(pairs)


@pytest.mark.slow
def test_votes_over_hostile_answers_cost_each_of_them_its_limit_at_most_once():
    verifier = Verifier("boxed", time_limit=1.0)
    verifier.equal([("\\pi", "2\\pi")])
    towers = [f"9^{{9^{{9^{{{a}}}}}}}" for a in range(2, 10)]
    group = [Verdict.of(False, tower) for tower in towers]
    started = time.perf_counter()
    with pytest.warns(ConfigWarning, match="could not be compared"):
        classes = answer_classes([group], verifier.equal)
    assert time.perf_counter() - started < len(towers) * 1.0
    assert sorted(classes[0]) == list(range(1, 9))
    verifier.close()


def test_a_failure_ends_the_run_if_it_should():
    with pytest.raises(ConfigError, match=r"on_failure=raise: 1 of 1 .*\(error\).*memory_limit="):
        Failing(Status.ERROR, on_failure="raise")(["7/3"], [r"\boxed{\pi}"])


def test_equal_pairs_are_compared_once_and_remembered():
    verifier = Failing(Status.WRONG)
    assert verifier.equal([("1", "\\pi")] * 5 + [("2", "\\pi")]) == [False] * 6
    assert verifier.equal([("1", "\\pi")]) == [False]
    # what is in several pairs is tried alone
    assert verifier.asked == [("0", "\\pi"), ("1", "\\pi"), ("2", "\\pi")]
    assert verifier.equal([("3", "\\sqrt{2}")]) == [False]
    assert len(verifier.asked) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, r"verifier\.workers=0: must be at least 1"),
        ({"memory_limit": 0}, r"verifier\.memory_limit=0"),
        ({"time_limit": 0}, r"verifier\.time_limit=0: must be a time above 0"),
        ({"time_limit": 1e300}, r"verifier\.time_limit=1e\+300: .* at most 1e\+06 seconds, say 5"),
        ({"marker": " "}, r"verifier\.marker=' ': is empty"),
        ({"mode": "boxed", "marker": "A:"}, r"verifier\.marker='A:': has no effect in mode=boxed"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Verifier(**arguments)


def test_a_verifier_without_a_format_or_with_another_is_refused():
    """H09."""
    with pytest.raises(ConfigError, match=r"verifier\.mode=null"):
        Verifier()(["7"], ["7"])
    with pytest.raises(ConfigError, match=r"verifier\.mode=gsm8k: .*answer_format=boxed"):
        Verifier("gsm8k").reading("boxed")
    with pytest.raises(ConfigError, match=r"marker='A:': has no effect in mode=boxed"):
        Verifier(marker="A:").reading("boxed")


def test_a_missing_engine_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setattr("lit_reason.verifier.verifier.find_spec", lambda name: None)
    assert Verifier("boxed")(["7"], [r"\boxed{7}"])[0].correct
    with pytest.raises(ConfigError, match=r"math-verify; .*pip install 'lit-reason\[math\]'"):
        Verifier("boxed")(["7"], [r"\boxed{\pi}"])


def test_a_copy_has_the_settings_and_workers_of_its_own(verifier):
    original = Verifier("boxed", time_limit=7, marker=None)
    for twin in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        assert (twin.mode, twin.pool.time_limit) == ("boxed", 7)
        assert twin.pool is not original.pool


# --- tasks ----------------------------------------------------------------------------------------


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_task_judges_a_round_with_its_verifier(tmp_path, verifier):
    path = write(tmp_path / "p.jsonl", [{"problem": "a", "answer": "1/2"}] * 2)
    task = MathProblems(path, answer_format="gsm8k", verifier=Verifier(marker="A:"))
    task.verifier.pool = verifier.pool
    texts = ["A: 0.5", "A: \\frac{2}{4}", "A: 2", "#### 1/2"]
    statuses = [str(v.status) for v in task.judge([task[0]] * 4, texts)]
    assert statuses == ["correct", "correct", "wrong", "no_answer"]
    assert task.verify(task[0], texts[1]) is True
    with pytest.raises(ConfigError, match=r"verifier\.mode=boxed"):
        MathProblems(path, answer_format="gsm8k", verifier=Verifier("boxed"))


def test_statuses_are_counted_for_tasks_that_tell_more_than_right_and_wrong(tmp_path):
    told = ["correct", "wrong", "no_answer", "timeout", "timeout", "error", "wrong", "wrong"]
    verdicts = [Verdict(Status(status)) for status in told]
    groups = [Group(None, [], [], half, []) for half in (verdicts[:4], verdicts[4:])]
    path = write(tmp_path / "p.jsonl", [{"problem": "a", "answer": "2"}])
    assert verdict_shares(groups, MathProblems(path)) == {
        "verify/no_answer": 1 / 8,
        "verify/timeout": 2 / 8,
        "verify/error": 1 / 8,
    }


class Plain(PlanCount):
    """Knows only right and wrong."""

    judge = Task.judge


def test_statuses_are_not_counted_for_tasks_that_only_know_right_and_wrong():
    verdicts = [Verdict.of(True), Verdict.of(False)]
    assert verdict_shares([Group(None, [], [], verdicts, [])], Plain()) == {}


TOLD = """
from lit_reason.tasks import PlanCount
from lit_reason.verdict import Status, Verdict


class Told(PlanCount):
    def judge(self, prompts, texts):
        failed = [Verdict(Status.NO_ANSWER), Verdict(Status.TIMEOUT)]
        return [failed[i] if i < 2 else Verdict.of(i % 2 == 0) for i in range(len(texts))]
"""


def test_a_run_logs_the_share_of_each_status(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    Path("told_task.py").write_text(TOLD)
    run_dir = fit(*tiny("grpo"), "--data.task=told_task.Told", *SMALL)
    rows = list(csv.DictReader((run_dir / "metrics.csv").open()))
    trained = [row for row in rows if row["verify/timeout"]]
    assert len(trained) == 2
    for row in trained:
        assert float(row["verify/no_answer"]) == float(row["verify/timeout"]) == 1 / 16
        assert float(row["verify/error"]) == 0


# --- data sets of other people, read where they lie -----------------------------------------------


def shared(name):
    if not (SHARED / name).exists():
        pytest.skip(f"{name} does not lie beside the repository")
    return (SHARED / name).read_text()


def test_golds_verify_against_themselves_in_another_spelling(verifier):
    """H07: equal texts would prove nothing."""
    golds = [row["final_answer"] for row in json.loads(shared("math500.json"))]
    golds = [g for g in golds if r"\frac" in g or r"\left" in g]
    respelled = [
        g.replace(r"\frac", r"\tfrac").replace(r"\left(", r"\bigl( ").replace(r"\right)", r"\bigr)")
        for g in golds
    ]
    results = verifier.equal(list(zip(golds, respelled, strict=True)))
    assert len(golds) > 20
    assert [g for g, r in zip(golds, results, strict=True) if r is not True] == []


def test_verdicts_agree_with_those_published_with_gsm8k(verifier):
    """Responses of real models, each with its authors' verdict; `A:` marks the answer."""
    rows = [json.loads(line) for line in shared("gsm8k_model_solutions.jsonl").splitlines()]
    golds = [row["ground_truth"].rsplit("A:", 1)[1].strip() for row in rows]
    reader = Verifier("gsm8k", marker="A:")
    reader.pool = verifier.pool
    verdicts = reader(golds, [row["solution"] for row in rows])
    assert [v.correct for v in verdicts] == [row["is_correct"] for row in rows]
