"""Data sets of problems: every kind of file and column layout, read with only a path given."""

import json
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

import datasets
import pytest

from lit_reason.__main__ import main
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.prediction_files import read_predictions
from lit_reason.tasks import MathProblems, Prompts
from lit_reason.verifier import Verifier
from tests.conftest import ROOT, SMALL, fails, tiny

SHARED = Path(__file__).parents[2] / "shared" / "data"

ROWS = [
    {"problem": "1+1?", "answer": "2"},
    {"problem": "Half?", "answer": "\\frac{1}{2}"},
    {"problem": "Braces {x} and {question}?", "answer": "3"},
]


@pytest.fixture(autouse=True)
def _no_shared_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def save(tmp_path, kind, rows):
    path = tmp_path / f"problems.{kind}"
    if kind == "jsonl":
        return write(path, rows)
    if kind == "json":
        path.write_text(json.dumps(rows))
        return str(path)
    table = datasets.Dataset.from_list(rows)
    if kind == "parquet":
        table.to_parquet(str(path))
    elif kind == "csv":
        table.to_csv(str(path))
    elif kind == "folder":
        table.save_to_disk(str(path))
    elif kind == "files":
        path.mkdir()
        write(path / "train.jsonl", rows)
    else:
        datasets.DatasetDict({"train": table, "test": table.select([0])}).save_to_disk(str(path))
    return str(path)


def pairs(task):
    return [(p.question, p.answer) for p in task.problems]


KINDS = ["jsonl", "json", "parquet", "csv", "folder", "splits", "files"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_problems(tmp_path, kind, streaming):
    task = MathProblems(save(tmp_path, kind, ROWS), streaming=streaming)
    assert pairs(task) == [(r["problem"], r["answer"]) for r in ROWS]
    assert [task[i].index for i in range(len(task))] == [0, 1, 2]
    assert {task[i].source for i in range(3)} == {"problems"}


@pytest.mark.parametrize("streaming", [False, True])
def test_a_limit_ends_the_reading(tmp_path, streaming, monkeypatch):
    rows = [{"problem": f"{i}+1?", "answer": i + 1} for i in range(2000)]
    path = write(tmp_path / "p.jsonl", rows)
    read = []
    real = Verifier.state
    monkeypatch.setattr(Verifier, "state", lambda self, g: read.append(g) or real(self, g))
    task = MathProblems(path, streaming=streaming, limit=3)
    assert pairs(task) == [("0+1?", "1"), ("1+1?", "2"), ("2+1?", "3")]
    assert len(read) == 3


def test_a_split_is_chosen_by_name_and_a_wrong_name_lists_the_others(tmp_path):
    path = save(tmp_path, "splits", ROWS)
    assert len(MathProblems(path, split="test")) == 1
    with pytest.raises(ConfigError, match=r"task\.split=dev: .* has train, test"):
        MathProblems(path, split="dev")


@pytest.mark.parametrize("setting", [{"split": "test"}, {"config": "main"}])
def test_a_single_file_has_neither_splits_nor_configurations(tmp_path, setting):
    (key, value), *_ = setting.items()
    with pytest.warns(ConfigWarning, match=rf"task\.{key}={value}: has no effect on a single file"):
        MathProblems(save(tmp_path, "jsonl", ROWS), **setting)


CHAT = [{"role": "user", "content": "1+1?"}]
LAYOUTS = {
    "dapo": {"prompt": CHAT, "reward_model": {"ground_truth": "2"}, "data_source": "math_dapo"},
    "gsm8k": {"question": "1+1?", "answer": "<<1+1=2>>2\n#### 2"},
    "math": {"problem": "1+1?", "solution": "It is \\boxed{2}.", "level": "1", "type": "Algebra"},
    "math500": {"problem": "1+1?", "solution": "\\boxed{3}", "answer": "2", "subject": "Algebra"},
    "aime": {"ID": "2024-I-1", "Problem": "1+1?", "Solution": "3", "Answer": 2},
    "amc": {"id": 0, "problem": "1+1?", "answer": 2.0, "question": "1+1?", "url": "-"},
    "orz": {"prompt": [{"from": "human", "value": "1+1?"}], "final_answer": "2"},
    "trl": {"prompt": "1+1?", "answer": "2"},
    "trl_chat": {"prompt": CHAT, "solution": "Hence $\\boxed{2}$."},
    "trl_truth": {"prompt": "1+1?", "ground_truth": 2},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_recognised_from_the_columns(tmp_path, name):
    task = MathProblems(write(tmp_path / f"{name}.jsonl", [LAYOUTS[name]]))
    assert pairs(task) == [("1+1?", "2")]
    assert task[0].source == ("math_dapo" if name == "dapo" else name)
    assert task.verify(task[0], "\\boxed{2}")


def test_columns_can_be_named_and_missing_ones_are(tmp_path):
    path = write(tmp_path / "p.jsonl", [{"q": "1+1?", "gold": {"value": "2"}, "from": "me"}])
    task = MathProblems(path, question="q", answer="gold.value", source="from")
    assert pairs(task) == [("1+1?", "2")]
    assert task[0].source == "me"
    with pytest.raises(ConfigError, match=r"columns from, gold\.value, q are of no known layout"):
        MathProblems(path)
    with pytest.raises(ConfigError, match=r"no known layout; set task\.answer; without"):
        MathProblems(path, question="q")
    for key, value in (("question", "problem"), ("answer", "gold.text"), ("source", "set")):
        columns = {"question": "q", "answer": "gold.value"} | {key: value}
        with pytest.raises(ConfigError, match=rf"task\.{key}={value}: .* has from, gold\.value, q"):
            MathProblems(path, **columns)


@pytest.mark.parametrize("named", [{"question": "answer"}, {"answer": "problem"}])
def test_one_column_is_not_both_problem_and_answer(tmp_path, named):
    path = write(tmp_path / "p.jsonl", [{"problem": "1+1?", "answer": "2"}])
    with pytest.raises(ConfigError, match=r"task\.answer=\w+: is the column of the problem too, "):
        MathProblems(path, **named)


def test_one_column_named_leaves_the_other_to_the_layout(tmp_path):
    row = {"problem": "1+1?", "answer": "2", "rewritten": "What is 1+1?"}
    path = write(tmp_path / "p.jsonl", [row])
    assert pairs(MathProblems(path, question="rewritten")) == [("What is 1+1?", "2")]


def test_system_messages_and_earlier_turns_are_kept(tmp_path):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": "\\boxed{3}"},
        {"role": "user", "content": "1+1?"},
    ]
    path = write(tmp_path / "p.jsonl", [{"prompt": messages, "answer": "2"}])
    prompt = MathProblems(path, template="{question} Use \\boxed{}.", chat=True)[0]
    asked = {"role": "user", "content": "1+1? Use \\boxed{}."}
    assert prompt.messages == (*messages[:3], asked)
    plain = MathProblems(path, template="{question} Use \\boxed{}.", system="Hm.")[0]
    assert plain.messages is None
    assert plain.text == "Hm.\n\n1+2?\n\n\\boxed{3}\n\n1+1? Use \\boxed{}."


def test_a_conversation_that_ends_with_its_answer_is_refused(tmp_path):
    messages = [*CHAT, {"role": "assistant", "content": "2"}]
    path = write(tmp_path / "p.jsonl", [{"prompt": messages, "answer": "2"}])
    with pytest.raises(ConfigError, match=r"task\.question=prompt ends with assistant"):
        MathProblems(path)


def test_rows_without_a_problem_are_left_out_and_counted(tmp_path):
    image = [{"type": "image", "text": None}, {"type": "text", "text": "What is it?"}]
    conversations = [CHAT, [], [*CHAT, {"role": "assistant", "content": "2"}], [{"role": "user"}]]
    rows = [{"prompt": messages, "answer": "2"} for messages in conversations]
    rows.append({"prompt": [{"role": "user", "content": image}], "answer": "2"})
    path = tmp_path / "p.json"
    datasets.Dataset.from_list(rows[:4]).to_json(path)
    with pytest.warns(ConfigWarning) as caught:
        assert pairs(MathProblems(str(path))) == [("1+1?", "2")]
    (warning,) = caught
    message = str(warning.message)
    assert "3 of 4 rows are left out" in message
    for reason in ("ends with nobody", "ends with assistant", "1 row: the problem is empty"):
        assert reason in message
    write(path, [rows[4]])
    with pytest.raises(ConfigError, match="a message has a part of type image, only text is read"):
        MathProblems(str(path))


def test_the_parts_of_a_message_are_its_text(tmp_path):
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "1+1?"}]
    rows = [{"prompt": [{"role": "user", "content": parts}], "answer": "2"}]
    task = MathProblems(write(tmp_path / "p.jsonl", rows))
    assert task.question(task[0]) == "What is\n1+1?"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_first_row_that_leaves_a_column_empty_does_not_hide_it(tmp_path, streaming):
    rows = [{"prompt": "a", "reward_model": None}]
    rows += [{"prompt": "b", "reward_model": {"ground_truth": "3"}}]
    path = write(tmp_path / "p.jsonl", rows)
    with pytest.warns(ConfigWarning, match="1 of 2 rows are left out"):
        assert pairs(MathProblems(path, streaming=streaming)) == [("b", "3")]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_file_is_no_pattern_of_names(tmp_path, streaming):
    for name in ("data[1].jsonl", "x*?.jsonl"):
        task = MathProblems(write(tmp_path / name, ROWS), streaming=streaming)
        assert len(task) == 3


@pytest.mark.parametrize(
    ("marked", "gold"),
    [
        ("(3, 4)", "(3, 4)"),
        ("3,4", "3,4"),
        ("1,234", "1234"),
        ("-$1,234.50", "-$1234.50"),
        ("1,234 dollars", "1234 dollars"),
        ("(1,234)", "(1,234)"),
        ("1,234, 5", "1,234, 5"),
    ],
)
def test_only_grouped_digits_lose_their_commas(tmp_path, marked, gold):
    row = {"question": "q", "answer": f"so\n#### {marked}"}
    task = MathProblems(write(tmp_path / "p.jsonl", [row]), answer_format="boxed")
    assert task[0].answer == gold
    assert task.verify(task[0], f"\\boxed{{{marked}}}")


def test_a_solution_that_states_no_answer_is_no_gold(tmp_path):
    """H06."""
    prose = "Half of 90 boxes is 45, so the total is 205"
    rows = [{"problem": "p", "solution": prose}, {"problem": "q", "solution": "$\\frac12$"}]
    path = write(tmp_path / "p.jsonl", rows)
    with pytest.warns(ConfigWarning, match=r"1 of 2 .*states no answer behind #### or in \\boxed"):
        assert pairs(MathProblems(path)) == [("q", "$\\frac12$")]
    # a column of worked solutions by another name
    rows = [{"question": "q", "answer": "so\n#### 7"}, {"question": "p", "answer": prose}]
    write(tmp_path / "p.jsonl", rows)
    with pytest.warns(ConfigWarning, match="1 of 2"):
        assert pairs(MathProblems(path)) == [("q", "7")]
    # the answer stands beside it
    path = write(tmp_path / "p.jsonl", [{"problem": "p", "solution": prose, "answer": "205"}])
    assert pairs(MathProblems(path)) == [("p", "205")]


@pytest.mark.parametrize("column", ["answer", "ground_truth"])
def test_prose_is_no_gold_in_a_column_of_answers_either(tmp_path, column):
    prose = ["Half of 90 is 45.\nSo the total is 205.", "Half of 90 is 45, so the total is 205."]
    stated = {
        "She sells 16 - 3 eggs a day.\nA: 1,318": "1318",
        "She sells 16 - 3 eggs a day.\nThe answer is $x+1$.": "$x+1$",
        "Then 20*4 = 80.\nA: 80": "80",
        "Ann: red\nBob: blue": "Ann: red\nBob: blue",
        "x is any real number except 2": "x is any real number except 2",
        "\\begin{pmatrix}\n1\\\\\n2\n\\end{pmatrix}": "\\begin{pmatrix}\n1\\\\\n2\n\\end{pmatrix}",
    }
    rows = [{"question": f"q{i}", column: text} for i, text in enumerate([*prose, *stated])]
    path = write(tmp_path / "p.jsonl", rows)
    with pytest.warns(ConfigWarning, match=r"2 of 8 .*states no answer behind #### or in \\boxed"):
        task = MathProblems(path)
    assert [p.answer for p in task.problems] == list(stated.values())


def test_published_solutions_that_end_with_a_line_for_the_answer_are_read():
    task = MathProblems(shared("gsm8k_model_solutions.jsonl"))
    assert len(task) == 660
    assert task[0].answer == "18"
    assert all(re.fullmatch(r"-?[\d.]+", problem.answer) for problem in task.problems)


@pytest.mark.parametrize(
    ("kind", "values", "kept"),
    [
        ("jsonl", [5, 2**63 + 1], ["5"]),
        ("parquet", [1.5, float("inf"), float("nan")], ["1.5"]),
        ("csv", [9007199254740993, 7], ["9007199254740993", "7"]),
        ("csv", [5.0, 9007199254740993.0], ["5"]),
        ("jsonl", [5, 2**53 - 1], ["5", "9007199254740991"]),
    ],
)
def test_golds_that_are_no_longer_exact_are_left_out(tmp_path, kind, values, kept, recwarn):
    rows = [{"problem": f"p{i}", "answer": value} for i, value in enumerate(values)]
    warnings.simplefilter("always")
    task = MathProblems(save(tmp_path, kind, rows))
    assert [p.answer for p in task.problems] == kept
    said = [str(w.message) for w in recwarn if w.category is ConfigWarning]
    assert len(said) == (len(kept) < len(values))
    if said:
        assert f"{len(values) - len(kept)} of {len(values)} rows" in said[0]
        assert "read as a float" in said[0] or "no finite number" in said[0]


def test_worked_solutions_give_the_number_behind_the_marker(tmp_path):
    """H03: raw GSM8K columns, calculator marks and grouped digits."""
    row = {"question": "q", "answer": "work <<2*3=6>>6\n#### 1,450"}
    task = MathProblems(write(tmp_path / "p.jsonl", [row]), answer_format="gsm8k")
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


def test_repeated_problems_are_merged_in_stable_order_and_counted(tmp_path, caplog):
    """H01, H02: each problem once; the same text with another answer is another problem."""
    rows = [ROWS[i] for i in (0, 1, 2)] * 30 + [{"problem": "1+1?", "answer": "3"}]
    random.Random(0).shuffle(rows)
    first = list(dict.fromkeys((r["problem"], r["answer"]) for r in rows))
    path = write(tmp_path / "p.jsonl", rows)
    with caplog.at_level("INFO"):
        assert pairs(MathProblems(path)) == first
    assert "4 different problems; 87 rows repeat one" in caplog.text
    assert len(first) == 4
    assert pairs(MathProblems(path, limit=2)) == first[:2]


def test_h01_a_hundred_copies_of_three_prompts_are_three_problems(tmp_path, caplog):
    """As published: a list of one message, the gold nested under the reward."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{i}+{i}?"}],
            "reward_model": {"ground_truth": str(2 * i), "style": "rule"},
        }
        for i in range(3)
        for _ in range(100)
    ]
    random.Random(1).shuffle(rows)
    path = save(tmp_path, "parquet", rows)
    with caplog.at_level("INFO"):
        task = MathProblems(path)
    order = dict.fromkeys(row["prompt"][0]["content"] for row in rows)
    assert pairs(task) == [(text, str(2 * int(text[0]))) for text in order]
    assert "3 different problems; 297 rows repeat one" in caplog.text


@pytest.mark.filterwarnings("ignore:.*that the tokenizer does not know")
def test_h02_four_problems_in_32_copies_are_four_of_two_samples(tmp_path):
    rows = [{"problem": f"{i}+{i}=", "answer": str(2 * i)} for i in range(4) for _ in range(32)]
    path = write(tmp_path / "p.jsonl", rows)
    task = ["--data.val_task=MathProblems", f"--data.val_task.path={path}"]
    sizes = [x for x in SMALL if not x.startswith("--data.val_task")]
    main(["predict", *tiny("grpo"), *sizes, *task, "--data.val_samples=2", "--run_dir=run"])
    rows = read_predictions([Path("run/predictions.jsonl")])
    assert [(row["prompt_index"], row["sample"], row["gold"], row["problems"]) for row in rows] == [
        (i, n, str(2 * i), 4) for i in range(4) for n in range(2)
    ]


@pytest.mark.slow
def test_a_task_alone_needs_nothing_else_to_be_imported(tmp_path):
    path = write(tmp_path / "p.jsonl", [ROWS[0], ROWS[0]])
    code = f"from lit_reason.tasks import MathProblems; print(len(MathProblems({path!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.stdout == "1\n", done.stderr


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
    with pytest.warns(ConfigWarning, match=r"2 of 5 rows .*2 rows: the gold .*answer_format=boxed"):
        assert len(MathProblems(path)) == 3
    write(tmp_path / "p.jsonl", rows[3:])
    with pytest.raises(ConfigError, match=r"holds no problem .*: 2 rows: the gold answer would"):
        MathProblems(path)


NOWHERE = ["missing.jsonl", "missing.json", "missing.parquet", "missing.csv", "a/b/c"]


@pytest.mark.parametrize("name", NOWHERE)
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
    for content in ("", "\n"):
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"task\.path=.*broken\.jsonl: (is empty|cannot)"):
            MathProblems(str(path))
    other = tmp_path / "problems.xlsx"
    other.write_text("")
    with pytest.raises(ConfigError, match=r"problems\.xlsx: not one of the kinds \.jsonl, \.json"):
        MathProblems(str(other))


ROW = b'{"problem": "1+1?", "answer": "2"}\n'


@pytest.mark.parametrize("make", [MathProblems, Prompts])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("latin.jsonl", '{"problem": "caf\u00e9", "answer": "2"}\n'.encode("latin-1"), "utf-8"),
        ("latin.csv", "problem,answer\ncaf\u00e9,2\n".encode("latin-1"), "utf-8"),
        ("cut.jsonl", ROW * 3 + b'{"problem": 1+', r"cannot be (read|loaded) \("),
        ("blank.jsonl", b"\n \n\n", "is empty"),
        ("cut.json", b"[" + ROW + b",", r"position \d+\); repair"),
        ("half.jsonl", rb'{"problem": "a\ud800b", "answer": "2"}', r"surrogate .*; write the char"),
        ("odd.parquet", b"PAR1 and no more", r"magic bytes .*; write it again"),
        ("null.jsonl", b"null\n" + ROW, "line 1 is null, which is no row; leave it out"),
        ("null.json", b"\xef\xbb\xbf \n null", "line 2 is null, which is no row; leave it out"),
        ("later.jsonl", ROW * 2 + b"\n null\r\n" + ROW, "line 4 is null"),
        ("last.jsonl", ROW + b"null", "line 2 is null"),
        ("wide.jsonl", ROW.decode().encode("utf-16"), "no text in UTF-8; save it as UTF-8"),
        ("wide.csv", "problem,answer\n1+1?,2\n".encode("utf-16-be"), "; save it as UTF-8"),
        ("nul.jsonl", b"\0\0" + ROW, "; save it as UTF-8"),
        ("longer.csv", b"problem,answer\n1+1=,2,2\n3+1=,4,4\n", "first row has more fields than"),
        ("comma.csv", b"problem,answer\n1+1=,2,\n3+1=,4,\n", "first row has more fields than"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_in_one_line(
    tmp_path, make, streaming, name, content, message
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"task\.path=.*{name}: .*{message}") as error:
        make(str(tmp_path / name), streaming=streaming)
    assert "\n" not in str(error.value)
    assert "; " in str(error.value)
    assert "a .json, .jsonl" not in str(error.value)
    if "latin" in name:
        assert str(error.value).endswith("; save it as UTF-8")


@pytest.mark.parametrize(
    ("name", "content"),
    [("bad.jsonl", b"null\n"), ("bad.csv", b"problem,answer\n1+1=,2,2\n")],
)
def test_a_file_of_a_folder_that_cannot_be_read_is_named(tmp_path, name, content):
    folder = tmp_path / "problems"
    folder.mkdir()
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^task\.path={folder}: {name}: (line 1|its first)"):
        MathProblems(str(folder))


@pytest.mark.filterwarnings("ignore:.*does not apply")  # of sizes of the built-in task
@pytest.mark.parametrize("task", ["MathProblems", "lit_reason.tasks.Prompts"])
def test_an_address_is_no_data_set_and_its_password_is_not_told(task, capsys):
    address = "https://user:pw1234@127.0.0.1:9/x"
    flags = [f"--data.task={task}", f"--data.task.path={address}"]
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, *flags)
    assert line.startswith("error: data.task.path=https://…@127.0.0.1:9/x: is an address; downlo")


def test_what_a_folder_holds_besides_the_kind_that_is_read_is_named(tmp_path):
    folder = tmp_path / "problems"
    folder.mkdir()
    for i in range(3):
        write(folder / f"{i}.jsonl", [{"problem": f"{i}+1?", "answer": "2"}])
    (folder / "other").mkdir()
    (folder / "other" / "more.csv").write_text("problem,answer\n1+1?,2\n")
    with pytest.warns(ConfigWarning, match=r"only its \.jsonl files are read, not other/more\.c"):
        assert len(MathProblems(str(folder))) == 3
    (folder / "other" / "more.csv").unlink()
    (folder / "dataset_infos.json").write_text("{}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(MathProblems(str(folder))) == 3


@pytest.mark.parametrize("make", [MathProblems, Prompts])
def test_a_limit_beyond_what_there_is_is_warned_of(tmp_path, make):
    path = write(tmp_path / "p.jsonl", ROWS)
    with pytest.warns(ConfigWarning, match=r"^task\.limit=4: has no effect with only 3 problems"):
        make(path, limit=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(path, limit=3)


def test_a_data_set_without_rows_is_named(tmp_path):
    contents = {"a.csv": "problem,answer\n", "b.json": "[]", "c.jsonl": "{}\n{}\n", "d.json": "{}"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        for streaming in (True, False):
            with pytest.raises(ConfigError, match=rf"task\.path=.*{name}: holds no problems; give"):
                MathProblems(str(tmp_path / name), streaming=streaming)


def test_a_reward_model_without_its_gold_answer_is_named(tmp_path):
    row = {"prompt": CHAT, "reward_model": {"style": "rule"}}
    path = write(tmp_path / "p.jsonl", [row])
    missing = r"task\.answer=reward_model\.ground_truth: no such column .*reward_model\.style"
    with pytest.raises(ConfigError, match=missing):
        MathProblems(path)


# --- data sets of other people, read where they lie -----------------------------------------------


def shared(name):
    if not (SHARED / name).exists():
        pytest.skip(f"{name} does not lie beside the repository")
    return str(SHARED / name)


FORMS = {"boxed": "\\boxed{%s}", "answer": "Answer: %s", "gsm8k": "#### %s"}


@pytest.mark.parametrize(
    ("name", "size", "answer_format", "source"),
    [
        ("gsm8k_test.jsonl", 1319, "boxed", "gsm8k_test"),
        ("gsm8k_all", 8792, "boxed", "gsm8k_all"),
        ("aime-2024.parquet", 30, "answer", "math_dapo"),
        ("math500.json", 500, "boxed", "math500"),
        ("amc23.jsonl", 40, "boxed", "amc23"),
    ],
)
def test_published_data_sets_load_with_only_their_path(name, size, answer_format, source):
    """H02, H03, H07: no gold is left out, each is right about itself and wrong about another."""
    task = MathProblems(shared(name))
    assert (len(task), task.answer_format) == (size, answer_format)
    for i in range(0, len(task), max(len(task) // 100, 1)):
        prompt = task[i]
        assert prompt.text.strip()
        assert prompt.source == source
        assert "<<" not in prompt.answer
        assert task.verify(prompt, FORMS[answer_format] % prompt.answer), prompt.answer
        assert not task.verify(prompt, FORMS[answer_format] % "31415.92"), prompt.answer
