"""A user's function as a reward term."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_reason.batch import Prompt, Response
from lit_reason.errors import RAISED, ConfigError, said
from lit_reason.rewards.base import Reward
from lit_reason.tasks import Task
from lit_reason.verdict import Verdict

GOLDS = ("answer", "solution", "ground_truth")
_ASYNC = "an async function; wrap it in one that runs it"
GIVEN = ("prompts", "completions", "completion_ids")


class FunctionReward(Reward):
    """A function with the signature of TRL's reward functions.

    It is called with keywords, and only with those that it has parameters for (all of them if it
    takes `**kwargs`): `prompts`, `completions`, `completion_ids` and one list for each column of
    the data set. All lists have one entry a response. The gold answer is there as `answer`,
    `solution` and `ground_truth`, and `source` names the data set, unless the data set has columns
    of these names. A problem with chat messages gives `prompts` and `completions` as lists of
    messages, any other as text.

    The function returns one number a response, or `None` where it has nothing to say: the other
    terms then make up the reward, as in TRL.

    Args:
        path: `module.function`, or `FILE.py:function`.
        weight: Multiplies the term.
        required: A response for which the function returns `None` does not train, whatever other
            terms say.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> file = folder / "my_rewards.py"
        >>> _ = file.write_text(
        ...     "def short(completions, **kwargs): return [-len(c) for c in completions]"
        ... )
        >>> term = FunctionReward(f"{file}:short")
        >>> term(Prompt(0, "1+1=", "2"), [Response((5, 6), "it is 2", False)], [])
        [-7]
    """

    def __init__(self, path: str, weight: float = 1.0, required: bool = False) -> None:
        super().__init__(weight)
        self.path, self.required = path, required
        self.function = _load(path)
        if any(map(inspect.iscoroutinefunction, _bodies(self.function))):
            raise ConfigError(f"FunctionReward.path={path}: {_ASYNC}")
        self.parameters = _parameters(path, self.function)
        kinds = [p.kind for p in self.parameters.values()]
        self.takes_all = inspect.Parameter.VAR_KEYWORD in kinds

    @property
    def called(self) -> str:
        """The function."""
        return self.path

    def check(self, task: Task, key: str) -> None:
        """Looks for the columns that the function asks for."""
        prompt = task[0]
        golds = () if task.judges else set(GOLDS) - set(prompt.columns)
        known = {*GIVEN, *_columns(prompt)} - set(golds)
        required = [
            name
            for name, p in self.parameters.items()
            if p.default is p.empty and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        missing = [name for name in required if name not in known]
        if missing:
            raise ConfigError(
                f"FunctionReward.path={self.path}: asks for {missing[0]}, which {key}="
                f"{type(task).__name__} does not give; it gives {', '.join(sorted(known))}; name "
                f"further columns in {key}.columns"
            )

    def __call__(
        self, prompt: Prompt, responses: list[Response], verdicts: list[Verdict]
    ) -> Sequence[float | None]:
        """See `Reward.__call__`."""
        given: dict[str, list[Any]] = {
            name: [value] * len(responses) for name, value in _columns(prompt).items()
        }
        given["prompts"] = [_question(prompt) for _ in responses]
        given["completions"] = [_answer(prompt, response) for response in responses]
        given["completion_ids"] = [list(response.ids) for response in responses]
        if not self.takes_all:
            given = {name: values for name, values in given.items() if name in self.parameters}
        values = self.function(**given)
        if inspect.iscoroutine(values):
            values.close()  # or Python warns that nobody has waited for it
            raise ConfigError(f"FunctionReward.path={self.path}: {_ASYNC}")
        return values


def _bodies(function: Callable[..., Any]) -> list[Any]:
    """The function, what it is a partial of, and what runs if it is an object."""
    inner = getattr(function, "func", function)
    return [function, inner, type(inner).__call__]


def _parameters(path: str, function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"FunctionReward.path={path}: its parameters are not known ({error}); wrap it in a "
            "function of your own"
        ) from error
    for name, p in parameters.items():
        if p.kind is p.POSITIONAL_ONLY and p.default is p.empty:
            raise ConfigError(
                f"FunctionReward.path={path}: takes {name} by position only, and arguments are "
                "given by name; drop the / from its parameters"
            )
    return parameters


def _columns(prompt: Prompt) -> dict[str, Any]:
    gold = dict.fromkeys(GOLDS, prompt.answer)
    return {**gold, "source": prompt.source, **prompt.columns}


def _question(prompt: Prompt) -> str | list[dict[str, str]]:
    return prompt.text if prompt.messages is None else [dict(m) for m in prompt.messages]


def _answer(prompt: Prompt, response: Response) -> str | list[dict[str, str]]:
    text = response.text
    return text if prompt.messages is None else [{"role": "assistant", "content": text}]


def _load(path: str) -> Callable[..., Any]:
    file, colon, name = path.rpartition(":")
    try:
        module = _from_file(path, file) if colon else importlib.import_module(_parent(path))
    except ConfigError:
        raise
    except RAISED as error:
        raise ConfigError(
            f"FunctionReward.path={path}: cannot be imported ({type(error).__name__}: "
            f"{said(error)})"
        ) from error
    name = name if colon else path.rpartition(".")[2]
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(
            f"FunctionReward.path={path}: {module.__name__} has no function {name!r}; give "
            "module.function or FILE.py:function"
        )
    return function


def _parent(path: str) -> str:
    module = path.rpartition(".")[0]
    if not module:
        raise ConfigError(
            f"FunctionReward.path={path}: names no module; give module.function or FILE.py:function"
        )
    return module


def _from_file(path: str, file: str) -> Any:
    location = Path(file).expanduser()
    if not location.is_file():
        raise ConfigError(f"FunctionReward.path={path}: no such file {file}")
    spec = importlib.util.spec_from_file_location(location.stem, location)
    if spec is None or spec.loader is None:
        raise ConfigError(f"FunctionReward.path={path}: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
