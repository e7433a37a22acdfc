"""Prompts: named templates, formats that agree with the verifier, chats and base models."""

import json

import pytest

from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.tasks import MathProblems
from lit_reason.tasks.templates import TEMPLATES, asked_by_most, bare, choose

DAPO = TEMPLATES["dapo"].user


def write(path, *questions):
    rows = [{"problem": q, "answer": "2"} for q in questions]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "p.jsonl", "1+1?")


@pytest.mark.parametrize(
    ("template", "literal", "right"),
    [
        ("boxed", "\\boxed{}", "\\boxed{2}"),
        ("dapo", "Answer: $Answer", "Answer: 2"),
        ("gsm8k", "#### NUMBER", "#### 2"),
        ("r1", "<think> reasoning process here </think> <answer> answer here </answer>", None),
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_a_response_that_follows_the_prompt_literally_is_right(
    path, template, literal, right, chat
):
    """H09: for every named template, with the format it implies and with chats."""
    task = MathProblems(path, template=template, chat=chat)
    prompt = task[0]
    asked = prompt.text if not chat else "\n".join(m["content"] for m in prompt.messages)
    assert literal in asked
    assert "1+1?" in asked
    right = right or literal.replace("answer here", "2")
    assert task.verify(prompt, f"<think>I add.</think>\n{right}")
    assert not task.verify(prompt, "2")
    assert task.answer_format == choose(template, None, None, None)[1]


def test_the_format_alone_chooses_the_template(path):
    wanted = {"boxed": "boxed", "answer": "dapo", "gsm8k": "gsm8k", "think_answer": "r1"}
    for answer_format, name in wanted.items():
        assert MathProblems(path, answer_format=answer_format).template == TEMPLATES[name]
    assert MathProblems(path).template == TEMPLATES["boxed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"template": "boxed", "answer_format": "answer"}, r"'boxed' asks for boxed; set .* dapo$"),
        ({"template": "r1", "answer_format": "boxed"}, r"'r1' asks for think_answer"),
        ({"template": "{question}\n#### N", "answer_format": "boxed"}, r"asks for gsm8k; set"),
        ({"system": "End with Answer: N", "template": "none", "answer_format": "boxed"}, r"answer"),
        ({"template": "{question} Answer: \\boxed{}"}, r"asks for answer or boxed; set task\.ans"),
        (
            {"answer_format": "boxd"},
            r"task\.answer_format=boxd: not known; choose one of boxed,",
        ),
        ({"template": ""}, r"task\.template='': neither one of boxed, dapo,"),
        ({"template": "boxes"}, r"task\.template='boxes': neither one of boxed, dapo, .* nor a te"),
    ],
)
def test_a_prompt_for_another_format_is_refused(path, arguments, message):
    """H09."""
    with pytest.raises(ConfigError, match=message) as error:
        MathProblems(path, **arguments)
    assert "\n" not in str(error.value)


def test_a_prompt_that_asks_for_no_format_is_warned_of(path):
    for template in ("none", "Question: {question}\nAnswer:"):
        with pytest.warns(ConfigWarning, match=r"asks? for an answer format.*answer_format=boxed"):
            MathProblems(path, template=template)
    assert MathProblems(path, template="none", system="Use \\boxed{}.").answer_format == "boxed"


def test_data_that_hold_their_prompt_keep_it(tmp_path):
    """The schema of DAPO-Math-17k, whose problems are prompts already."""
    held = [DAPO.replace("{question}", q) for q in ("1+1?", "0+2?")]
    path = write(tmp_path / "p.jsonl", *held)
    for template in (None, "none", "dapo", "{question}"):
        task = MathProblems(path, template=template)
        assert task.answer_format == "answer"
        assert [task[i].text for i in range(2)] == held
        assert task.question(task[0]) == "1+1?"
    other = MathProblems(path, template="boxed")
    assert other[0].text == TEMPLATES["boxed"].user.replace("{question}", "1+1?")
    with pytest.raises(ConfigError, match=r"the problems already ask for answer; .* or template"):
        MathProblems(path, answer_format="boxed")


def test_a_template_on_top_of_a_request_of_the_data_is_refused(tmp_path):
    path = write(tmp_path / "p.jsonl", "1+1? Write #### and the number.", "0+2? End with ####.")
    assert MathProblems(path).answer_format == "gsm8k"
    with pytest.raises(ConfigError, match=r"'boxed'.*already ask for gsm8k; set template to none"):
        MathProblems(path, template="boxed")


@pytest.mark.parametrize("chat", [False, True])
def test_what_the_data_ask_for_before_the_problem_counts_as_if_the_system_message_did(
    tmp_path, chat
):
    """H09: the same words in the data and in `task.system`."""
    asks = {"role": "system", "content": "End with a line 'Answer: X'."}
    question = {"role": "user", "content": "1+1?"}
    for turns in ([asks], [{**asks, "role": "user"}, {"role": "assistant", "content": "Yes."}]):
        row = {"prompt": [*turns, question], "answer": "2"}
        path = tmp_path / "p.jsonl"
        path.write_text(json.dumps(row))
        for settings in ({}, {"template": "boxed"}):
            with pytest.raises(ConfigError, match=r"beside the data's own .* answer or boxed; set"):
                MathProblems(str(path), chat=chat, **settings)
        with pytest.raises(ConfigError, match=r"answer_format=boxed: the conversations ask"):
            MathProblems(str(path), chat=chat, template="none", answer_format="boxed")
        assert MathProblems(str(path), chat=chat, template="none").answer_format == "answer"
        assert MathProblems(str(path), chat=chat, answer_format="answer").verifier.mode == "answer"
    row = {"prompt": [asks, question], "answer": "2"}
    path.write_text(json.dumps(row))
    for system in ("Be brief.", ""):
        task = MathProblems(str(path), chat=chat, system=system)
        assert task.answer_format == "boxed"
        assert "Answer" not in task[0].text


def test_what_most_problems_ask_for_counts():
    assert asked_by_most(["a \\boxed{}", "b \\boxed{}", "c"]) == "boxed"
    assert asked_by_most(["a \\boxed{}", "b", "c"]) is None
    assert asked_by_most(["a \\boxed{} Answer: x"]) is None
    assert asked_by_most([]) is None


def test_known_prompts_come_off_and_others_stay():
    suffix = " Let's think step by step and output the final answer within \\boxed{}."
    for text in (DAPO.replace("{question}", "1+1?"), "1+1?" + suffix, "1+1?"):
        assert bare(text) == "1+1?"
    assert bare("Solve it: 1+1?") == "Solve it: 1+1?"


def test_braces_in_a_problem_survive_the_template(tmp_path):
    path = write(tmp_path / "p.jsonl", "Braces {x} and {question}?")
    task = MathProblems(path, template="Q: {question} \\boxed{}")
    assert task[0].text == "Q: Braces {x} and {question}? \\boxed{}"


def test_r1_is_a_system_message_in_a_chat_and_a_text_without_one(path):
    plain = MathProblems(path, template="r1")[0]
    assert plain.messages is None
    assert plain.text.startswith("A conversation between User and Assistant.")
    assert plain.text.endswith("User: 1+1?\nAssistant:")
    system, user = MathProblems(path, template="r1", chat=True)[0].messages
    assert system["content"] in plain.text
    assert user == {"role": "user", "content": "1+1?"}
    first, _ = MathProblems(path, template="r1", chat=True, system="Be brief.")[0].messages
    assert first["content"] == "Be brief.\n\n" + system["content"]


def test_r1_has_a_pattern_for_the_format_reward(path):
    import re

    pattern = MathProblems(path, template="r1").response_pattern
    assert re.fullmatch(pattern, "<think>a\nb</think> <answer>2</answer>")
    assert not re.fullmatch(pattern, "<answer>2</answer>")
    assert MathProblems(path).response_pattern is None
