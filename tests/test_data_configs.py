"""The overlays in `configs/data` over the algorithms, with small local files for hub ids."""

import json

import datasets
import pytest
import yaml

from lit_reason.__main__ import main
from lit_reason.backbones import character_tokenizer
from lit_reason.tasks import MathProblems, ReasoningGym
from lit_reason.tasks.templates import TEMPLATES
from tests.conftest import CONFIGS, SMALL, config, fit
from tests.test_configs import train_rows

DATA = ["dapo_math_17k", "gsm8k", "math500", "reasoning_gym"]
CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"


def rows(name, numbers):
    """Rows as the published files have them."""
    if name == "dapo_math_17k":
        asked = TEMPLATES["dapo"].user
        return [
            {
                "prompt": [{"role": "user", "content": asked.replace("{question}", f"{n}+1?")}],
                "reward_model": {"ground_truth": str(n + 1), "style": "rule"},
                "data_source": "math_dapo",
            }
            for n in numbers
            for _ in range(3)
        ]
    if name == "gsm8k":
        return [{"question": f"{n}+1?", "answer": f"<<{n}+1>>\n#### {n + 1}"} for n in numbers]
    return [{"problem": f"{n}+1?", "solution": f"\\boxed{{{n + 1}}}"} for n in numbers]


def arguments(name, tmp_path):
    """What replaces hub ids and the pretrained model."""
    tokenizer = character_tokenizer(PRINTABLE)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(tmp_path / "model")
    save_tiny_model(tmp_path / "model", len(tokenizer), tokenizer.eos_token_id)
    given = [
        "--model.backbone.path=model",
        "--model.backbone.gradient_checkpointing=false",
        "--data.max_prompt_length=2000",
    ]
    if name == "reasoning_gym":
        return [*given, "--data.task.size=8", "--data.val_task.size=4"]
    for key, numbers in (("task", range(8)), ("val_task", range(6, 10))):
        table = datasets.Dataset.from_list(rows(name, numbers))
        split = "test" if key == "val_task" and name != "dapo_math_17k" else "train"
        datasets.DatasetDict({split: table}).save_to_disk(str(tmp_path / key))
        given.append(f"--data.{key}.path={key}")
    return given


def save_tiny_model(folder, vocabulary, eos):
    from transformers import AutoModelForCausalLM, Qwen2Config

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    shape = {"vocab_size": vocabulary, "max_position_embeddings": 4096, "eos_token_id": eos}
    AutoModelForCausalLM.from_config(Qwen2Config(**sizes, **heads, **shape)).save_pretrained(folder)


def overlay(name):
    return yaml.safe_load((CONFIGS / "data" / f"{name}.yaml").read_text())["data"]


def parse(capsys, *names):
    with pytest.raises(SystemExit):
        main(["fit", *map(config, names), "--print_config"])
    return yaml.safe_load(capsys.readouterr().out)


def small():
    return [a for a in SMALL if "task." not in a and "val_samples" not in a]


SHORT = [
    "--model.update.minibatch_size=4",
    "--model.update.micro_batch_size=4",
    "--data.groups_per_rollout=2",
    "--data.group_size=4",
    "--data.rollouts_per_epoch=1",
    "--data.sampling.max_new_tokens=8",
    "--data.val_sampling.max_new_tokens=8",
    "--trainer.accelerator=cpu",
    "--trainer.precision=32-true",
]


def test_the_folder_holds_exactly_the_overlays_tested_here():
    assert sorted(p.stem for p in (CONFIGS / "data").iterdir()) == DATA


@pytest.mark.parametrize("name", DATA)
def test_an_overlay_runs_over_vapo(name, tmp_path, caplog):
    if name == "reasoning_gym":
        pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    files = [config("vapo.yaml"), config(f"data/{name}.yaml")]
    warmup = "--callbacks.value_warmup=null"
    samples = f"--data.val_samples={min(overlay(name)['val_samples'], 2)}"
    with caplog.at_level("INFO"):
        run_dir = fit(*files, *arguments(name, tmp_path), *small(), *SHORT, samples, warmup)
    assert len(train_rows(run_dir)) == 1
    if name != "reasoning_gym":
        assert "2 of 8 training problems (25.0%) are left out" in caplog.text
    if name == "dapo_math_17k":
        assert "8 different problems; 16 rows repeat" in caplog.text


@pytest.mark.parametrize("name", DATA[:3])
@pytest.mark.parametrize("algorithm", ["grpo", "vapo"])  # on GSM8K, on DAPO-Math-17k as the rest
def test_an_overlay_replaces_all_of_an_algorithms_data(name, algorithm, capsys):
    """Keys that the algorithm's file sets and the overlay does not would mix two data sets."""
    parsed = parse(capsys, f"{algorithm}.yaml", f"data/{name}.yaml")["data"]
    for key in ("task", "val_task"):
        given = overlay(name)[key]["init_args"]
        assert {"path", "config", "split", "template", "answer_format", "chat"} <= set(given)
        assert {k: v for k, v in parsed[key]["init_args"].items() if k in given} == given
        rest = {k: v for k, v in parsed[key]["init_args"].items() if k not in given}
        assert not any(rest.values()), rest


def test_dapo_is_evaluated_as_in_the_paper():
    data = overlay("dapo_math_17k")
    assert data["val_samples"] == 32
    assert data["val_sampling"] == {"temperature": 1.0, "top_p": 0.7, "max_new_tokens": 20480}


@pytest.mark.parametrize("name", DATA)
def test_right_responses_to_the_shipped_prompts_are_right(name, tmp_path):
    """H09: the prompt of each overlay asks for what its verifier reads."""
    if name == "reasoning_gym":
        pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    given = overlay(name)["task"]["init_args"]
    if name == "reasoning_gym":
        task = ReasoningGym(**{**given, "size": 5})
    else:
        path = tmp_path / "p.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows(name, range(3))))
        keep = ("template", "answer_format", "chat")
        task = MathProblems(str(path), **{k: given[k] for k in keep})
    forms = {
        "boxed": ("\\boxed{}", "\\boxed{%s}"),
        "answer": ("Answer: $Answer", "Answer: %s"),
        "think_answer": ("<answer> answer here </answer>", "<answer> %s </answer>"),
    }
    asked, right = forms[given["answer_format"]]
    prompt = task[0]
    assert asked in "\n".join(m["content"] for m in prompt.messages)
    assert task.verify(prompt, right % prompt.answer)
    assert not task.verify(prompt, right % "31415")


def test_the_real_model_has_a_configuration_that_parses(capsys):
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    parsed = parse(capsys, "vapo.yaml", "smollm2.yaml")
    tasks = [parsed["data"][key]["init_args"] for key in ("task", "val_task")]
    assert [t.pop("seed") for t in tasks] == [0, 1]
    assert [t.pop("size") for t in tasks] == [200, 24]
    assert tasks[0] == tasks[1]
