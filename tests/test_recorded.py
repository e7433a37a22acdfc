"""Responses from a file: what is kept of a rollout, and what may be made of it."""

import json
import warnings
from pathlib import Path

import pytest
import torch

from lit_reason.callbacks import RolloutRecorder, SampleTable, ValuePretraining
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.fingerprint import fingerprint
from lit_reason.jsonl import append_rows, read_rows
from lit_reason.lora import LoRA
from lit_reason.recorded import Recorded
from lit_reason.rollout import HFEngine, Sampling
from lit_reason.tasks import PlanCount
from tests.conftest import SMALL, config, fails, fit
from tests.runs import Keep, module_of, run, shipped, weights
from tests.runs import few_problems as data_of

MONITORED = "val/value/explained_variance"
PRETRAIN = [config("value_pretrain.yaml"), *SMALL, "--model.update.critic_minibatch_size=8"]


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """The responses of three rollouts of the shipped policy, as text, and those rollouts."""
    folder, keep = tmp_path_factory.mktemp("recording"), Keep()
    callbacks = ValuePretraining(patience=None), RolloutRecorder(), keep
    run(module_of(), data_of(), *callbacks, default_root_dir=folder)
    return (folder / "rollouts.jsonl").read_text(), keep.rollouts


@pytest.fixture
def recorded(recording):
    path = Path("run/rollouts.jsonl")
    path.parent.mkdir()
    path.write_text(recording[0])
    return path, recording[1]


def test_a_recorded_rollout_holds_what_was_sampled(recorded):
    path, rollouts = recorded
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["rollout"] for row in rows] == [0, 0, 1, 1, 2, 2]
    assert {row["policy"] for row in rows} == {fingerprint(shipped().actor())}
    batch = rollouts[1]
    for i in range(8):
        response = rows[2 + i // 4]["responses"][i % 4]
        assert response["ids"] == batch.response_ids[i][batch.response_mask[i]].tolist()
        assert response["truncated"] == bool(batch.truncated[i])
        assert response["text"] == batch.texts[i]


def test_a_critic_learns_from_recorded_responses_for_many_epochs(recorded):
    path, rollouts = recorded
    known = {
        tuple(r.response_ids[i][r.response_mask[i]].tolist())
        for r in rollouts
        for i in range(len(r))
    }
    keep, module = Keep(), module_of()
    data = data_of(engine=Recorded(str(path)))
    callback = ValuePretraining(patience=None)
    run(module, data, callback, keep, max_epochs=2, limit_val_batches=1.0)
    assert len(keep.rollouts) == 6
    for batch in keep.rollouts:
        assert not batch.on_policy
        ids = [tuple(row[m].tolist()) for row, m in zip(
            batch.response_ids, batch.response_mask, strict=True)]  # fmt: skip
        assert set(ids) <= known
    assert torch.equal(weights(module.actor), weights(shipped().actor()))
    assert keep.rows[-1]["loss/value"] < keep.rows[0]["loss/value"]
    assert MONITORED in module.last_evaluation  # held-out problems were sampled


def test_what_another_run_recorded_is_not_recorded_again(recorded):
    data = data_of(engine=Recorded(str(recorded[0]), force=True))
    with pytest.raises(ConfigError, match=r"RolloutRecorder would give .*Recorded out as this pol"):
        run(module_of(), data, ValuePretraining(patience=None), RolloutRecorder())


def test_new_adapters_take_the_recordings_of_their_base(recorded):
    pytest.importorskip("peft")
    path, _ = recorded
    keep = Keep()
    data = data_of(engine=Recorded(str(path)))
    run(module_of(LoRA(shipped(), r=2)), data, ValuePretraining(patience=None), keep)
    assert len(keep.rollouts) == 3


def test_offline_pretraining_resumes_to_the_same_bits(recorded):
    path, _ = recorded

    def go(folder, epochs, ckpt_path=None):
        module = module_of()
        engine = Recorded(str(path))
        trainer = run(
            module,
            data_of(engine=engine),
            ValuePretraining(patience=None),
            max_epochs=epochs,
            ckpt_path=ckpt_path,
            default_root_dir=folder,
        )
        return module, trainer

    whole, _ = go("whole", 4)
    _, trainer = go("half", 2)
    trainer.save_checkpoint("half.ckpt")
    rest, _ = go("half", 4, "half.ckpt")
    assert torch.equal(weights(whole.critic), weights(rest.critic))


def test_responses_of_another_policy_are_refused_unless_forced(recorded, tmp_path):
    path, _ = recorded
    lines = path.read_text().replace(fingerprint(shipped().actor()), "0123456789abcdef")
    path.write_text(lines)
    with pytest.raises(ConfigError, match=r"path=.*policy 0123456789abcdef.*force=true"):
        run(module_of(), data_of(engine=Recorded(str(path))), ValuePretraining(patience=None))
    engine = Recorded(str(path), force=True)
    run(module_of(), data_of(engine=engine), ValuePretraining(patience=None))


def test_recorded_responses_do_not_train_a_policy(recorded):
    path, _ = recorded
    with pytest.raises(ConfigError, match="may train the critic only; add the callback ValuePre"):
        run(module_of(), data_of(engine=Recorded(str(path))))


@pytest.mark.usefixtures("recorded")
def test_files_that_hold_no_rollouts_of_this_task_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.engine\.path=nowhere: no recorded rollouts"):
        Recorded("nowhere")
    data = data_of(engine=Recorded("run"), group_size=8)
    with pytest.raises(ConfigError, match=r"group_size=8: .* holds 4 responses"):
        run(module_of(), data, ValuePretraining(patience=None))
    data = data_of(engine=Recorded("run"), task=PlanCount(n_min=4, n_max=5, limit=1))
    with pytest.raises(ConfigError, match="holds responses to none of the 1 prompts"):
        run(module_of(), data, ValuePretraining(patience=None))
    other = tmp_path / "other.jsonl"
    other.write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match=r"other\.jsonl is no file of RolloutRecorder"):
        run(module_of(), data_of(engine=Recorded(str(other))), ValuePretraining(patience=None))


def test_a_resumed_run_records_no_rollout_twice():
    module = module_of()
    trainer = run(module, data_of(), ValuePretraining(patience=None), RolloutRecorder())
    trainer.save_checkpoint("half.ckpt")
    whole = Path("run/rollouts.jsonl").read_text()
    with Path("run/rollouts.jsonl").open("a") as file:
        file.write('{"rollout": 3}\n{"roll')
    callbacks = ValuePretraining(patience=None), RolloutRecorder()
    run(module_of(), data_of(), *callbacks, max_epochs=2, ckpt_path="half.ckpt")
    rows = Path("run/rollouts.jsonl").read_text()
    assert rows.startswith(whole)
    assert [json.loads(r)["rollout"] for r in rows.splitlines()] == [i // 2 for i in range(12)]


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.5), ("top_p", 0.9), ("top_k", 3), ("max_new_tokens", 30)]
)
@pytest.mark.filterwarnings("ignore:data.sampling.top_p")
def test_responses_that_were_drawn_otherwise_are_refused_unless_forced(recorded, name, value):
    path, _ = recorded
    sampling = Sampling(**{"max_new_tokens": 24, name: value})
    was = {"temperature": "1.0", "top_p": "1.0", "top_k": "0", "max_new_tokens": "24"}[name]
    match = (
        rf"data\.sampling\.{name}={value}: .* recorded with {was}, .* set it to {was}, or data\.e"
    )
    with pytest.raises(ConfigError, match=match):
        run(module_of(), data_of(engine=Recorded(str(path)), sampling=sampling),
            ValuePretraining(patience=None))  # fmt: skip
    data = data_of(engine=Recorded(str(path), force=True), sampling=sampling)
    run(module_of(), data, ValuePretraining(patience=None))


def test_an_older_file_that_says_little_of_the_sampling_is_taken(recorded):
    path, _ = recorded
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for name in ("top_p", "top_k", "max_new_tokens"):
            del row[name]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = data_of(engine=Recorded(str(path)), sampling=Sampling(top_k=0, max_new_tokens=30))
    run(module_of(), data, ValuePretraining(patience=None))


def test_a_response_above_the_budget_is_refused_before_the_run_begins(recorded):
    path, _ = recorded
    data = data_of(engine=Recorded(str(path), force=True), sampling=Sampling(max_new_tokens=3))
    with pytest.raises(
        ConfigError, match=r"max_new_tokens=3: .* holds a response of \d+ tokens; ra"
    ):
        run(module_of(), data, ValuePretraining(patience=None))


def test_what_is_drawn_of_more_responses_depends_on_the_seed_alone(recorded):
    path, _ = recorded
    batches = []
    for seed in (0, 0, 1):
        keep, data = (
            Keep(),
            data_of(engine=Recorded(str(path)), group_size=2, groups_per_rollout=4, seed=seed),
        )
        run(module_of(), data, ValuePretraining(patience=None), keep, max_epochs=2)
        batches.append([batch.texts for batch in keep.rollouts])
    assert batches[0] == batches[1] != batches[2]
    assert len({tuple(texts) for texts in batches[0]}) > 3  # of the same few prompts


def test_a_refused_run_leaves_its_folder_free(recorded, capsys):
    """So that the corrected command is the same, with the same folder."""
    fit(*PRETRAIN, "--callbacks.recorder=RolloutRecorder", run_dir="first")
    file = Path("first/rollouts.jsonl")
    right = file.read_text()
    again = [*PRETRAIN, "--data.engine=Recorded", "--data.engine.path=first"]
    wrong = {
        "holds responses of the policy": right.replace(fingerprint(shipped().actor()), "0" * 16),
        "recorded with 0.5": right.replace('"temperature": 1.0', '"temperature": 0.5'),
        "holds no response;": "",
    }
    for message, text in wrong.items():
        file.write_text(text)
        assert message in fails(capsys, "fit", *again, "--run_dir=again")
        assert not Path("again").exists()
    file.write_text(right)
    flags = ["--callbacks.value_pretraining=null", "--run_dir=again"]
    assert "may train the critic only" in fails(capsys, "fit", *again, *flags)
    warmup = ["--callbacks.value_pretraining=null", "--callbacks.warmup=ValueWarmup"]
    warmup += ["--callbacks.warmup.rollouts=1", "--run_dir=again"]
    assert "may train the critic only" in fails(capsys, "fit", *again, *warmup)
    assert not Path("again").exists()
    fit(*again, run_dir="again")


def test_the_recorded_form_validates_on_the_responses_of_the_online_one():
    """What a seed draws depends on the micro-batch, which the documented command hands over."""
    size = "--data.engine.micro_batch_size=3"
    scores = []
    for name, flags in {
        "first": ["--callbacks.recorder=RolloutRecorder", size],
        "again": ["--data.engine=Recorded", "--data.engine.path=first", size],
    }.items():
        folder = fit(*PRETRAIN, *flags, run_dir=name)
        header, before = (folder / "metrics.csv").read_text().splitlines()[:2]
        row = dict(zip(header.split(","), before.split(","), strict=True))
        scores.append([row["val/length"], row["val/accuracy"], row["val/reward"]])
    assert scores[0] == scores[1]
    assert Recorded("first", micro_batch_size=3).engine.micro_batch_size == 3
    with pytest.warns(ConfigWarning, match=r"micro_batch_size=3: has no effect beside"):
        Recorded("first", HFEngine(), micro_batch_size=3)


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def test_a_file_that_was_cut_off_is_warned_of(recorded):
    path, _ = recorded
    cut(path)
    with pytest.warns(ConfigWarning, match=r"rollouts\.jsonl ends in the middle of a line, which"):
        run(module_of(), data_of(engine=Recorded(str(path))), ValuePretraining(patience=None))


def test_a_run_that_continues_is_not_warned_of_its_own_cut_file():
    callbacks = ValuePretraining(patience=None), RolloutRecorder()
    run(module_of(), data_of(), *callbacks).save_checkpoint("half.ckpt")
    cut(Path("run/rollouts.jsonl"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfigWarning)
        run(module_of(), data_of(), ValuePretraining(patience=None), RolloutRecorder(),
            max_epochs=2, ckpt_path="half.ckpt")  # fmt: skip


EDITS = {
    "line 3 is no JSON: Expecting value": ('{"rollout": 1', 'x{"rollout": 1'),
    "line 1 lacks 'policy'": ('"policy"', '"polcy"'),
    "line 1: truncated='no' is no bool": ('"truncated": false', '"truncated": "no"'),
    "line 1: text=1 is no str": ('"text": "', '"text": 1, "t": "'),
    "line 1: ids=['a'] is no list of int": ('"ids": [', '"ids": ["a"], "i": ['),
    "line 1: mask=[1] is no list of bool": ('"ids": [', '"mask": [1], "ids": ['),
}


@pytest.mark.parametrize("message", list(EDITS))
def test_a_damaged_file_is_refused_with_its_line_and_what_to_do(recorded, message):
    path, _ = recorded
    path.write_text(path.read_text().replace(*EDITS[message], 1))
    with pytest.raises(ConfigError) as caught:
        run(module_of(), data_of(engine=Recorded(str(path))), ValuePretraining(patience=None))
    assert message in str(caught.value)
    assert str(caught.value).endswith("record it again, or remove the line")


def test_a_line_that_is_nested_too_deeply_is_refused_like_any_other(recorded):
    path, _ = recorded
    path.write_text(f"{path.read_text()}{'[' * 100_000}{']' * 100_000}\n")
    with pytest.raises(ConfigError, match=r"line \d+ is no JSON: nested too deeply; record it"):
        run(module_of(), data_of(engine=Recorded(str(path))), ValuePretraining(patience=None))


def test_half_a_surrogate_pair_in_a_response_is_written_like_any_other_text(recorded):
    """UTF-8 has no place for it, so that it would end the run where a file is written."""
    path, _ = recorded
    rows = list(read_rows(path))
    for row in rows:
        row["responses"] = [{**r, "text": "a\ud800"} for r in row["responses"]]
    path.unlink()
    append_rows(path, rows)
    assert list(read_rows(path)) == rows
    callbacks = ValuePretraining(patience=None), SampleTable(1)
    data = data_of(engine=Recorded(str(path)))
    run(module_of(), data, *callbacks, default_root_dir="again")
    assert {s["response"] for s in read_rows(Path("again/samples.jsonl"))} == {"a\ud800"}


@pytest.mark.parametrize("text", ["", '{"policy": "a", "prompt_ids": [1], "responses": []}\n'])
def test_a_file_without_a_response_is_refused_as_such(recorded, text):
    path, _ = recorded
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"holds no response; record some"):
        run(module_of(), data_of(engine=Recorded(str(path))), ValuePretraining(patience=None))
