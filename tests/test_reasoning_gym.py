"""The generators of reasoning-gym as a task."""

import pytest

from lit_reason.contamination import without_overlap
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.tasks import ReasoningGym
from lit_reason.tasks.gym_answers import may_be_scored
from lit_reason.verdict import Status

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


def test_a_scorer_that_fails_is_an_error_not_a_wrong_answer(gym, monkeypatch):
    task = ReasoningGym("chain_sum", size=2, params=SMALL)

    def fail(answer, entry):
        raise RuntimeError(answer)

    monkeypatch.setattr(task.generator, "score_answer", fail)
    assert task.judge([task[0]], ["\\boxed{1}"])[0].status is Status.ERROR


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "chainsum"}, r"task\.name=chainsum: .* did you mean chain_sum or"),
        ({"params": {"terms": 3}}, r"task\.params\.terms: .*it has .*max_terms, min_digits"),
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


@pytest.mark.parametrize("name", EVALUATING)
def test_answers_of_evaluating_generators_still_count(gym, name):
    task = ReasoningGym(name, size=3, answer_format="think_answer")
    golds = [i for i in range(len(task)) if task.entries[i]["answer"]]
    for i in golds:
        assert task.verify(task[i], f"<answer>{task.entries[i]['answer']}</answer>")
