"""Generate commands from typed functions and pydantic configurations.

A parameter of the function becomes an argument or an option, and so does each field of a
configuration. Help texts are the `Args:` section of the function and the docstrings of the fields.
"""

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape

from dubito.registry import Registry
from dubito.types import Options

REQUIRED: Any = inspect.Parameter.empty
#: sections whose name an option may have or lack
OPTIONAL_SECTION = re.compile(r"^(no-)?(?:data|training|policy|service)\.")


def spelled(name: str) -> str:
    """Return the spelling of an option that stands for all its spellings.

    >>> spelled("training.batch_size"), spelled("batch-size"), spelled("method.kl_weight")
    ('batch-size', 'batch-size', 'method.kl-weight')
    """
    return OPTIONAL_SECTION.sub(r"\1", name.replace("_", "-"))


@dataclass(frozen=True)
class Setting:
    """A parameter of a command.

    Args:
        name: Keyword, with its section: "out", "training.lr".
        annotation: Type of its values.
        default: Value of the function or configuration if the parameter is not given.
        help: Description.
        panel: Heading in the help.
        positional: Whether it is an argument and not an option.
    """

    name: str
    annotation: Any
    default: Any = REQUIRED
    help: str = ""
    panel: str | None = None
    positional: bool = False

    @property
    def key(self) -> str:
        """Name as an identifier, which a keyword such as import is not."""
        return self.name.replace(".", "__") + "_"

    @property
    def flag(self) -> str:
        """Name of the option."""
        return f"--{spelled(self.name)}"

    def parameter(self) -> inspect.Parameter:
        """Return a parameter that Typer reads."""
        kinds = [get_origin(kind) or kind for kind in (self.annotation, *get_args(self.annotation))]
        is_flag, is_list = bool in kinds, Sequence in kinds or tuple in kinds
        kind: Any = bool if is_flag else list[str] if is_list else str
        texts: Options = {"help": self._help(), "show_default": False}
        if self.positional:
            info = typer.Argument(metavar=self.name.upper(), **texts)
        else:
            negation = f"/--no-{self.flag[2:]}" if is_flag and self.default is not False else ""
            texts |= {"metavar": None if is_flag else _metavar(self.annotation)}
            info = typer.Option(self.flag + negation, rich_help_panel=self.panel, **texts)
        return inspect.Parameter(
            self.key,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[kind | None, info],
            default=REQUIRED if self.default is REQUIRED else None,
        )

    def _help(self) -> str:
        keys = f" Keys: {', '.join(self._keys())}." if self._keys() else ""
        text = escape(self.help.replace("`", "") + keys)
        if self.default in (REQUIRED, None, (), {}):
            return text
        return f"{text} [dim]\\[default: {escape(str(self.default))}][/dim]"

    def read(self, given: Any) -> Any:
        """Convert the text of an option, or the texts of a repeated one."""
        if self.positional or isinstance(given, bool) or self.annotation is Any:
            return given
        config: Any = {"arbitrary_types_allowed": True}
        if hasattr(self.annotation, "model_fields"):  # it has a configuration of its own
            config = None
        adapter: TypeAdapter[Any] = TypeAdapter(self.annotation, config=config)
        problems = []
        for value in _readings(given if isinstance(given, str) else ",".join(given)):
            try:
                return adapter.validate_python(value)
            except ValidationError as error:
                problems.append(error.errors()[0])
        text = f"{problems[0]['msg']}, not {given!r}"
        if problems[0]["type"] == "extra_forbidden":
            text = f"Unknown key {problems[0]['loc'][-1]!r}; known: {', '.join(self._keys())}"
        raise typer.BadParameter(text, param_hint=self.flag)

    def _keys(self) -> list[str]:
        """Return the keys of values that are a configuration."""
        kinds = (self.annotation, *get_args(self.annotation))
        return [key for kind in kinds for key in getattr(kind, "model_fields", {})]


def _readings(text: str) -> Iterator[Any]:
    """Yield what a text may mean; its type decides.

    >>> list(_readings("a,b")), list(_readings("a=1"))
    ([['a', 'b'], 'a,b', ['a,b']], [{'a': 1}, 'a=1', ['a=1']])
    """
    if text.lower() == "none":
        yield None
    if "=" in text or text.startswith("["):
        for toml in (text, f"{{{text}}}"):
            with suppress(tomllib.TOMLDecodeError):
                yield tomllib.loads(f"value = {toml}")["value"]
    if "," in text:
        yield [part.strip() for part in text.split(",")]
    yield text
    yield [text]


def _metavar(annotation: Any) -> str:
    """Return a short name of a type.

    >>> _metavar(int | tuple[int, int] | None), _metavar(Literal["skip", "raise"])
    ('INT|INT,...', 'skip|raise')
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(map(str, parts))
    if origin in (tuple, Sequence):
        return f"{_metavar(parts[0])},..."
    if origin in (dict, Mapping) or hasattr(annotation, "model_fields"):
        return "KEY=VALUE,..."
    if origin is Annotated:
        return _metavar(parts[0])
    if parts and origin is not Callable:
        return "|".join(dict.fromkeys(_metavar(part) for part in parts if part is not NoneType))
    return {int: "INT", float: "FLOAT"}.get(annotation, "TEXT")


def of_function(function: Callable[..., Any]) -> Iterator[Setting]:
    """Yield the parameters of a function.

    Args:
        function: Function with annotations and an `Args:` section.
    """
    docs = argument_docs(function.__doc__ or "")
    hints = get_type_hints(vars(function).get("__init__", function), include_extras=True)
    for name, one in inspect.signature(function).parameters.items():
        if one.kind is not one.VAR_KEYWORD:
            yield Setting(
                name=name,
                annotation=hints.get(name, Any),
                default=one.default,
                help=docs.get(name, ""),
                positional=one.kind is one.POSITIONAL_OR_KEYWORD,
            )


def of_fields(fields: Mapping[str, Any], section: str = "") -> Iterator[Setting]:
    """Yield the fields of a configuration.

    Args:
        fields: `__pydantic_fields__` of a model or dataclass.
        section: Name of the section, if it is one of a configuration with several.
    """
    for name, field in fields.items():
        # An entry, such as the member of an ensemble, is built by its registry.
        is_entry = any(isinstance(one, Registry) for one in field.metadata)
        yield Setting(
            name=f"{section}.{name}" if section else name,
            annotation=str | Mapping[str, Any] if is_entry else field.annotation,
            default=REQUIRED if field.is_required() else field.get_default(),
            help=" ".join((field.description or "").split()),
            panel=section.partition(".")[0].capitalize() or None,
        )


def command(
    function: Callable[..., Any], run: Callable[..., Any], settings: Sequence[Setting]
) -> Callable[..., Any]:
    """Return a function that Typer makes a command of.

    Args:
        function: Function that the command stands for: its docstring is the help text.
        run: Function to call, with the values that are given by name.
        settings: Parameters of the command.
    """

    def call(**given: Any) -> Any:
        used = [setting for setting in settings if given[setting.key] not in (None, [])]
        return run(**{setting.name: setting.read(given[setting.key]) for setting in used})

    parameters = [setting.parameter() for setting in settings]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    text, *_ = inspect.cleandoc(function.__doc__ or "").replace("`", "").partition("\n\nArgs:")
    call.__doc__ = escape(re.sub(r"(?<!\n)\n(?!\n)", " ", text))
    return call


def argument_docs(docstring: str) -> dict[str, str]:
    """Return the descriptions in the `Args:` section of a docstring.

    >>> argument_docs('''Add.
    ...
    ... Args:
    ...     x: First
    ...         number.
    ...     y: Second number.
    ...
    ... Returns:
    ...     Sum.
    ... ''')
    {'x': 'First number.', 'y': 'Second number.'}
    """
    _, _, text = inspect.cleandoc(docstring).partition("Args:\n")
    text = re.split(r"\n(?=\S)", text)[0]  # without the next section
    entries = re.findall(r"^ {4}\*{0,2}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in entries}
