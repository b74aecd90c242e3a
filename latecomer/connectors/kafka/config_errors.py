"""What is wrong with a pipeline's file, each problem with its line and with what is allowed.

Rules: all problems are told at once; a message never shows the value of a setting that could be a secret.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from latecomer.connectors.kafka.config_lines import Document, Path
from latecomer.errors import ConfigError, options

#: Tables whose values are never shown.
SILENT = ("kafka", "schema_registry", "state")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: the line of the file, and what is wrong there."""

    line: int
    text: str


class PipelineError(ConfigError):
    """A pipeline's file is wrong: ``problems`` says where and how."""

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(problems, key=lambda p: p.line))
        told = [f"{file}, line {p.line}: {p.text}" for p in self.problems]
        super().__init__("\n".join(dict.fromkeys(told)))


class Misfit(ValueError):
    """Raised while a pipeline is checked as a whole: a problem and the path of what is wrong."""

    def __init__(self, path: Sequence[str | int], text: str) -> None:
        self.path = tuple(path)
        super().__init__(text)


def guess(word: str, known: Collection[str]) -> str:
    """Ends a message about an unknown word.

    >>> guess("jsn", ["json", "avro"])
    ' — did you mean json?'
    """
    near = get_close_matches(word, known, 1)
    return f" — did you mean {near[0]}?" if near else ""


def problems_of(errors: Iterable[Mapping[str, Any]], document: Document, model: type[BaseModel]) -> list[Problem]:
    """The problems that pydantic found in a document, in our words."""
    found = [{**error, "loc": _written(error["loc"])} for error in errors]
    return [
        Problem(document.line(_place(error)), _told(error, model))
        for error in found
        if not _follows(error, found, model)
    ]


def _written(path: Sequence[str | int]) -> Path:
    """The path as it is in the file, which has what models keep apart in one table."""
    parts = tuple(path)
    return (parts[0], *parts[2:]) if parts[:2] in (("kafka", "common"), ("schema_registry", "properties")) else parts


def _follows(error: Mapping[str, Any], others: Iterable[Mapping[str, Any]], model: type[BaseModel]) -> bool:
    """Whether an error only follows from another: a list is short of what is wrong in it, and a name that is written
    wrong is missing."""
    path = error["loc"]
    if error["type"] == "too_short":
        return any(other["loc"][: len(path)] == path and other is not error for other in others)
    return error["type"] == "missing" and any(
        other["type"] == "extra_forbidden"
        and other["loc"][:-1] == path[:-1]
        and get_close_matches(str(other["loc"][-1]), _keys(model, path[:-1]), 1) == [path[-1]]
        for other in others
    )


def _place(error: Mapping[str, Any]) -> Path:
    path: Path = error["loc"]
    return path[:-1] if error["type"] == "missing" else path


def _told(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    path, kind = tuple(error["loc"]), error["type"]
    where = f" in {_table(path[:-1])}" if len(path) > 1 else ""
    name = str(path[-1]) if path else ""
    known = _keys(model, path[:-1])
    if kind == "missing":
        return f"{name!r} is missing{where or ' at the top of the file'}{_allowed(_field(model, path))}"
    if kind == "extra_forbidden":
        return f"unknown key {name!r}{where}{guess(name, known)}\n  allowed are {options(known)}"
    given = "" if path and path[0] in SILENT else f" = {_shown(error['input'])}"
    subject = f"{name}{where}{given}" if not isinstance(path[-1] if path else "", int) else f"{_table(path)}{given}"
    context = error.get("ctx", {})
    if kind == "literal_error":
        allowed = _choices(context["expected"])
        return f"{subject}: allowed are {options(allowed)}{guess(str(error['input']), allowed)}"
    if kind == "value_error":
        return f"{subject}: {context['error']}"
    return f"{subject}: {_NEEDED.get(kind, error['msg']).format(**context)}"


#: What kinds of errors mean.
_NEEDED = {
    "string_type": "a text in quotes is needed",
    "int_type": "a whole number is needed",
    "int_parsing": "a whole number is needed",
    "int_from_float": "a whole number is needed",
    "bool_type": "true or false is needed",
    "bool_parsing": "true or false is needed",
    "dict_type": "a table is needed",
    "model_type": "a table is needed",
    "tuple_type": "a list is needed, in [ ]",
    "greater_than_equal": "at least {ge} is needed",
    "greater_than": "more than {gt} is needed",
    "less_than_equal": "at most {le} is allowed",
    "too_short": "at least {min_length} is needed",
    "string_too_short": "it is empty",
}


def _table(path: Sequence[str | int]) -> str:
    """A table as it is written in the file, elements of arrays by number from 1."""
    text = ""
    for part in path:
        text += f" number {part + 1}" if isinstance(part, int) else f".{part}" if text else part
    return f"[{text}]"


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 60 else f"{text[:59]}…"


def _choices(expected: str) -> list[str]:
    """``"'a', 'b' or 'c'"`` as a list."""
    return [part.strip().strip("'") for part in expected.replace(" or ", ",").split(",") if part.strip()]


def _keys(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys that the table at a path may have."""
    found = _at(model, path)
    return [] if found is None else [field.alias or name for name, field in found.model_fields.items()]


def _at(model: type[BaseModel] | None, path: Sequence[str | int]) -> type[BaseModel] | None:
    """The model of the table at a path."""
    for part in path:
        if model is None:
            return None
        if not isinstance(part, int):
            model = next((_model_in(f.annotation) for n, f in model.model_fields.items() if part in (n, f.alias)), None)
    return model


def _field(model: type[BaseModel], path: Sequence[str | int]) -> Any:
    """What the key at a path may hold, as it is annotated."""
    table = _at(model, path[:-1])
    fields = {} if table is None else table.model_fields
    return next((f.annotation for n, f in fields.items() if path[-1] in (n, f.alias)), None)


def _allowed(annotation: Any) -> str:
    """Ends a message with the words that a key takes, if it takes some words only."""
    return f": allowed are {options(get_args(annotation))}" if get_origin(annotation) is Literal else ""


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, however it is wrapped."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner)) is not None), None)
