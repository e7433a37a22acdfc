"""The generators of reasoning-gym as a task."""

import json
import sys
import time

import pytest

from lit_reason.contamination import without_overlap
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.tasks import ReasoningGym
from lit_reason.verdict import Status
from lit_reason.verifier.gym import GymVerifier, request_of
from lit_reason.verifier.gym_answers import may_be_scored
from scripts.rescore import main as rescore

SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
ATTACKS = [
    "__import__('pathlib').Path('mark').touch()",
    "[open('mark', 'w')]",
    "open('mark', 'w')",
    "[__import__('os').mkdir('mark')]",
    "exec('open(chr(109), chr(119))')",
    "().__class__.__base__.__subclasses__()",
]
EVALUATING = [
    *("countdown", "puzzle24", "binary_matrix", "n_queens", "spiral_matrix", "string_insertion"),
    *("simple_integration", "intermediate_integration", "polynomial_multiplication"),
]


# --- needs no package -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVALUATING)
def test_scorers_that_evaluate_see_no_python(name):
    """A39."""
    for attack in ATTACKS:
        assert not may_be_scored(name, attack)
    assert may_be_scored("gcd", ATTACKS[0])
    assert not may_be_scored("gcd", "1" * 10_000)


@pytest.mark.parametrize(
    ("name", "right", "explosive"),
    [
        ("countdown", "6*(98 - 54) - 34/2", "9**9**9"),
        ("simple_integration", "x**2/2 + 3*sin(x) - 1.5*x**(-2) + C", "9**9**9"),
        ("polynomial_multiplication", "6*x**4 - 20*x**3*y + 12", "(((9)**99)**99)**99"),
        ("spiral_matrix", "[1, 2, 3]", "[1] * 999999999"),
    ],
)
def test_right_answers_reach_a_scorer_and_explosive_ones_do_not(name, right, explosive):
    assert may_be_scored(name, right)
    assert not may_be_scored(name, explosive)


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"pip install 'lit-reason\[reasoning-gym\]'"):
        ReasoningGym("chain_sum")


FAKE = """
class Generator:
    def __init__(self, params):
        self.params = params

    def score_answer(self, answer, entry):
        print("scoring", answer, flush=True)
        while answer == "hang":
            pass
        if answer == "raise" or entry["answer"] == "broken":
            raise KeyError(answer)
        if answer == "write":
            open("mark", "w")
        if answer == "tuple?":
            return float(entry["metadata"]["cells"] == [(1, 2)])
        return self.params["score"] if answer == entry["answer"] else 0.0


def create_dataset(name, size, seed, **params):
    return Generator(params)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A package whose only scorer misbehaves on demand."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "reasoning_gym.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, "reasoning_gym", raising=False)
    verifier = GymVerifier("boxed", workers=1, time_limit=0.5)
    yield verifier
    verifier.close()


def asked(score=1.0, **entry):
    entry = {"question": "q", "answer": "7", "metadata": {"cells": [(1, 2)]}} | entry
    return request_of("fake", {"score": score}, 0.5, entry)


def boxed(*answers):
    return [f"\\boxed{{{answer}}}" for answer in answers]


def test_a_scorer_can_neither_hang_a_run_nor_write_nor_be_silently_wrong(fake, tmp_path):
    answers = ["7", "8", "hang", "raise", "write", "tuple?", "7"]
    started = time.perf_counter()
    with pytest.warns(ConfigWarning, match=r"time_limit=0\.5: 1 of 7 answers .*'hang' \(timeout\)"):
        verdicts = fake([asked()] * 8, [*boxed(*answers), "7"])
    told = ["correct", "wrong", "timeout", "wrong", "wrong", "correct", "correct", "no_answer"]
    assert [str(v.status) for v in verdicts] == told
    assert [v.answer for v in verdicts] == [*answers, None]
    assert not (tmp_path / "mark").exists()
    assert time.perf_counter() - started < 60
    # what has hung is not tried again, and warned of once
    fake.pool.run = lambda pairs: [] if not pairs else None
    assert fake._scored([(json.dumps(asked()), "hang")]).popitem()[1] is Status.TIMEOUT


def test_a_scorer_that_raises_is_at_fault_only_if_it_does_on_its_own_gold_too(fake):
    with pytest.warns(ConfigWarning, match=r"1 of 2 answers could not be scored"):
        verdicts = fake([asked(), asked(answer="broken")], boxed("raise", "8"))
    assert [v.status for v in verdicts] == [Status.WRONG, Status.ERROR]


def test_a_score_below_the_threshold_is_wrong(fake):
    requests = [asked(score) for score in (0.4, 0.5)]
    assert [v.correct for v in fake(requests, boxed("7", "7"))] == [False, True]


def test_predictions_of_a_generator_are_judged_again_by_its_scorer(fake, capsys, tmp_path):
    row = {"sample": 0, "gold": "7", "status": "wrong", "length": 3, "truncated": False}
    row |= {"answer_format": "boxed", "source": "fake"}
    rows = [
        row | {"prompt_index": i, "response": text, "scoring": asked(answer=gold)}
        for i, (gold, text) in enumerate([("7", "\\boxed{7}"), ("8", "\\boxed{7}"), ("7", "7")])
    ]
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rescore([str(file)])
    out = capsys.readouterr().out
    assert "wrong -> correct: 1\n  wrong -> no_answer: 1" in out
    # another format is another place of the answer, not another judge
    file.write_text(json.dumps(rows[0] | {"response": "#### 7"}))
    rescore([str(file), "--answer_format", "gsm8k"])
    assert "wrong -> correct: 1" in capsys.readouterr().out


def test_what_no_process_could_be_given_is_refused():
    with pytest.raises(ConfigError, match=r"^task\.name=fake: its problems or .* cannot be handed"):
        asked(answer=object())


def test_limits_that_cannot_work_are_refused():
    for settings in ({"time_limit": 0}, {"workers": 0}, {"memory_limit": 0}):
        ((key, value),) = settings.items()
        with pytest.raises(ConfigError, match=rf"task\.{key}={value}: must be"):
            GymVerifier("boxed", **settings)


# --- needs the package ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gym():
    return pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")


def test_problems_come_from_the_generator_and_are_judged_by_its_scorer(gym):
    task = ReasoningGym("chain_sum", size=20, params=SMALL, answer_format="boxed")
    for i in range(len(task)):
        prompt = task[i]
        assert (prompt.index, prompt.source) == (i, "chain_sum")
        assert task.question(prompt) in prompt.text
        left, sign, right = task.question(prompt).removesuffix(" =").split(":")[1].split()
        assert int(prompt.answer) == int(left) + int(sign + right)
        texts = [f"\\boxed{{{prompt.answer}}}", "\\boxed{1000}", prompt.answer]
        statuses = [v.status for v in task.judge([prompt] * 3, texts)]
        assert statuses == [Status.CORRECT, Status.WRONG, Status.NO_ANSWER]
        assert [task.verify(prompt, t) for t in texts] == [True, False, False]


def test_nonsense_that_a_scorer_cannot_parse_is_wrong(gym):
    task = ReasoningGym("prime_factorization", size=2, answer_format="boxed")
    assert task.judge([task[0]], ["\\boxed{no idea}"])[0].status is Status.WRONG


def test_an_answer_other_than_the_gold_one_can_be_right(gym):
    task = ReasoningGym("countdown", size=3, answer_format="answer")
    prompt = task[0]
    entry = task.entries[0]
    swapped = f"({entry['answer']})"
    assert task.verify(prompt, f"Answer: {swapped}")
    assert not task.verify(prompt, "Answer: 1 + 1")
    assert not task.verify(prompt, f"Answer: {ATTACKS[0]}")


def test_seeds_repeat_and_differ_and_equal_problems_are_merged(gym):
    def questions(seed):
        task = ReasoningGym("chain_sum", size=300, seed=seed, params=SMALL)
        return [task.question(task[i]) for i in range(len(task))]

    train, again, held_out = questions(0), questions(0), questions(1)
    assert train == again != held_out
    assert len(set(train)) == len(train) < 300


def test_problems_of_both_seeds_are_left_out_of_training(gym):
    tasks = [ReasoningGym("chain_sum", size=100, seed=s, params=SMALL) for s in (0, 1)]
    train, held_out = ([(t[i], []) for i in range(len(t))] for t in tasks)
    kept = without_overlap(train, held_out, *tasks, remove=True)
    assert 0 < len(kept) < len(train)
    known = {tasks[1].question(p) for p, _ in held_out}
    assert not any(tasks[0].question(p) in known for p, _ in kept)


def test_the_threshold_decides_what_a_partial_score_is(gym):
    entry = {"name": "chain_sum", "size": 10, "params": SMALL, "answer_format": "boxed"}
    strict, lenient = ReasoningGym(**entry), ReasoningGym(**entry, threshold=0.2)
    # reasoning-gym's default scorer: the share of the text that the gold answer is
    near = f"\\boxed{{= {strict[0].answer}}}"
    assert 0.2 < strict.generator.score_answer(f"= {strict[0].answer}", strict.entries[0]) < 1
    assert not strict.verify(strict[0], near)
    assert lenient.verify(lenient[0], near)


def test_examples_are_turns_of_the_conversation(gym):
    task = ReasoningGym(
        "chain_sum",
        size=5,
        params=SMALL,
        examples=2,
        template="none",
        answer_format="answer",
        system="Add.",
        chat=True,
    )
    system, *turns, last = task[0].messages
    assert system == {"role": "system", "content": "Add."}
    assert [m["role"] for m in turns] == ["user", "assistant"] * 2
    assert all(m["content"].startswith("Answer: ") for m in turns[1::2])
    assert last == {"role": "user", "content": task.question(task[0])}
    assert task[1].messages[:-1] == task[0].messages[:-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "chainsum"}, r"task\.name=chainsum: .* did you mean chain_sum or"),
        ({"params": {"terms": 3}}, r"task\.params\.terms=3: .*it has .*max_terms, min_digits"),
        ({"params": {"min_terms": 9, "max_terms": 2}}, r"task\.params=.*chain_sum refuses them"),
        ({"threshold": 0}, r"task\.threshold=0"),
        ({"size": 0}, r"task\.size=0"),
        ({"examples": -1}, r"task\.examples=-1"),
        ({"name": "mini_sudoku", "answer_format": "answer"}, r"cannot hold .*set it to think_ans"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(gym, arguments, message):
    with pytest.raises(ConfigError, match=message) as error:
        ReasoningGym(**({"name": "chain_sum", "size": 20} | arguments))
    assert "\n" not in str(error.value)


def test_a_prompt_that_asks_for_no_format_is_warned_of(gym):
    with pytest.warns(ConfigWarning, match=r"task\.template='none'.*asks? for an answer format"):
        ReasoningGym("chain_sum", size=5, template="none")


def test_a_scorer_that_accepts_anything_is_warned_of(gym):
    message = r"task\.name=game_of_life_halting: its scorer .* for 5 of 5 problems.*choose another"
    with pytest.warns(ConfigWarning, match=message):
        ReasoningGym("game_of_life_halting", size=5)
    ReasoningGym("game_of_life", size=5, answer_format="boxed")  # warnings are errors here


@pytest.mark.slow
def test_every_scorer_says_in_a_worker_what_it_says_here(gym):
    from reasoning_gym.factory import DATASETS

    verifier = GymVerifier("think_answer", time_limit=30.0)
    requests, texts, here, names = [], [], [], []
    for name in sorted(DATASETS.keys() - {"composite"}):
        generator = gym.create_dataset(name, size=2, seed=3)
        for entry in (generator[0], generator[1]):
            if entry["answer"]:
                answer = str(entry["answer"]).strip()
                requests.append(request_of(name, {}, 1.0, entry))
                texts.append(f"<answer>{answer}</answer>")
                here.append(
                    may_be_scored(name, answer) and generator.score_answer(answer, entry) >= 1
                )
                names.append(name)
    told = [v.correct for v in verifier(requests, texts)]
    verifier.close()
    assert len(set(names)) > 95
    assert [n for n, a, b in zip(names, told, here, strict=True) if a != b] == []


@pytest.mark.parametrize("name", EVALUATING)
def test_answers_of_evaluating_generators_still_count(gym, name):
    task = ReasoningGym(name, size=3, answer_format="think_answer")
    golds = [i for i in range(len(task)) if task.entries[i]["answer"]]
    for i in golds:
        assert task.verify(task[i], f"<answer>{task.entries[i]['answer']}</answer>")
