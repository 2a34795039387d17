"""Registries: entries by name, and plug-ins."""

import sys
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

from dubito import methods, plugins
from dubito.errors import DubitoError
from dubito.methods import EDL, METHODS, Method
from dubito.registry import Entry, Registry

COLORS: Registry[Entry] = Registry("color", Entry)


@COLORS.register("gray")
class Gray(Entry):
    argument = "level"
    level: float = 0.5
    """Brightness."""


@COLORS.register("plain")
class Plain(Entry):
    pass


class Pale(Gray):
    shade: int = 1
    """Shade."""


@pytest.mark.parametrize(
    "value", [Gray(level=0.7), "gray:0.7", {"name": "gray", "level": 0.7}, {"name": "gray:0.7"}]
)
def test_an_entry_has_several_spellings(value):
    assert COLORS.build(value) == Gray(level=0.7)


def test_an_entry_survives_json():
    assert COLORS.build(COLORS.to_dict(Gray(level=0.25))) == Gray(level=0.25)


def test_options_are_documented_and_inherited():
    fields = Pale.__pydantic_fields__
    assert [field.description for field in fields.values()] == ["Brightness.", "Shade."]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("blue", "unknown color 'blue'; known: 'gray', 'plain'"),
        ("plain:1", "the color 'plain' takes no argument, but is 'plain:1'"),
        ({"level": 1}, "the color needs a name"),
        ({"name": "gray", "depth": 1}, "color 'gray': unknown option 'depth'; known: 'level'"),
        ("gray:dark", "color 'gray': level: Input should be a valid number.*'dark'"),
    ],
)
def test_a_bad_entry_is_one_line(value, message):
    with pytest.raises(DubitoError, match=message) as caught:
        COLORS.build(value)
    assert "\n" not in str(caught.value)


def test_entries_do_not_change():
    with pytest.raises(AttributeError):
        Gray().level = 1


def test_a_class_that_is_no_entry_is_refused():
    with pytest.raises(DubitoError, match="must be a subclass of dubito"):
        METHODS.register("mine")(type("Mine", (), {}))
    with pytest.raises(DubitoError, match="must define distribution, terms"):
        METHODS.register("mine")(type("Mine", (Method,), {}))
    assert "mine" not in METHODS


def gray(**body):
    return type("Mine", (Gray,), body)


def test_an_option_without_an_annotation_is_refused():
    message = r"Mine\.depth is no option .* write depth: int = 2, or depth: ClassVar\[int\] for a"
    with pytest.raises(DubitoError, match=message):
        gray(depth=2)
    with pytest.raises(DubitoError, match=r"write level: float = 0\.25"):  # it would stay 0.5
        gray(level=0.25)
    assert gray(level=0.25, __annotations__={"level": float})().level == 0.25


def test_what_is_no_option_needs_no_annotation():
    kind = gray(argument=None, _depth=2, DEPTH=2, depth=property(len), build=len, kind=int)
    assert list(kind.__pydantic_fields__) == ["level"]
    assert gray(depth=2, __annotations__={"depth": ClassVar[int]}).depth == 2


# --- plug-ins ---


def test_a_plug_in_may_have_the_name_of_a_standard_module(tmp_path):
    (tmp_path / "random.py").write_text("import random\nVALUE = random.randint(3, 3)\n")
    assert plugins.import_plugin(str(tmp_path / "random.py")).VALUE == 3
    assert not hasattr(sys.modules.get("random"), "VALUE")


def test_a_plug_in_may_have_the_class_name_of_a_standard_method(monkeypatch):
    own = type("EDL", (EDL,), {})
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))
    METHODS.register("a_new_edl")(own)
    assert methods.EDL is EDL


def test_a_plug_in_imports_its_neighbors(tmp_path):
    (tmp_path / "my_neighbor.py").write_text("VALUE = 7\n")
    (tmp_path / "mine.py").write_text("from my_neighbor import VALUE\n")
    assert plugins.import_plugin(str(tmp_path / "mine.py")).VALUE == 7


def test_a_broken_file_is_one_line(tmp_path):
    (tmp_path / "mine.py").write_text("1 / 0\n")
    with pytest.raises(
        DubitoError, match=r"cannot import the plug-in .*mine\.py: ZeroDivisionError"
    ):
        plugins.import_plugin(str(tmp_path / "mine.py"))


def test_a_broken_installed_plug_in_is_a_warning(monkeypatch):
    broken = EntryPoint("mine", "no_such_module", "dubito")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [broken])
    with pytest.warns(UserWarning, match=r"cannot import the plug-in mine \(no_such_module\)"):
        plugins.load_plugins.__wrapped__()
