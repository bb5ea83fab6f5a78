"""The structure of the package: small root, constructor injection, no stack inspection."""

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest

import timerstore
from timerstore._engine.base.service import Service
from timerstore._engine.queues.core import Core

ROOT = Path(timerstore.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
ENTRIES_MAX = 19
WHITE_BOX_FILES_MAX = 60

C_STRUCTS = {
    "native",
    "link",
    "delivery",
    "tally",
    "heap",
    "table",
    "keys",
    "made",
    "query",
    "requests",
    "view",
    "window",
}
"""Names of variables that hold structs of C, whose fields Python fills."""


def _assigned(tree: ast.AST, *, own: bool) -> Iterator[ast.Attribute]:
    """Yield the assigned attributes of `self`, or those of other objects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            base = node.value
            if (isinstance(base, ast.Name) and base.id in ("self", "cls")) == own:
                yield node


def _is_c_struct(base: ast.expr) -> bool:
    if isinstance(base, ast.Subscript):
        base = base.value
    name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
    return name.lstrip("_") in C_STRUCTS


@cache
def _trees() -> dict[Path, ast.Module]:
    return {path.relative_to(ROOT): ast.parse(path.read_text("utf-8")) for path in MODULES}


@cache
def _own() -> dict[Path, set[str]]:
    """Return the attributes that each module assigns to its own objects."""
    return {
        path: {node.attr for node in _assigned(tree, own=True)} for path, tree in _trees().items()
    }


def _assigned_from_outside(path: Path) -> list[str]:
    own = _own()
    elsewhere = set().union(*(names for other, names in own.items() if other != path)) - own[path]
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for node in _assigned(_trees()[path], own=False)
        if node.attr in elsewhere and not _is_c_struct(node.value)
    ]


def test_no_attribute_is_assigned_from_outside_the_module_of_its_class() -> None:
    """A component gets what it needs in its constructor; the engine connects it by signals."""
    engine = [path for path in _trees() if path.parts[0] == "_engine"]
    assert [each for path in engine for each in _assigned_from_outside(path)] == []


def test_core_has_at_most_ten_values_and_no_services() -> None:
    assert len(Core._fields) <= 10
    for name, kind in get_type_hints(Core).items():
        assert not issubclass(kind, Service), name


def test_files_have_at_most_600_lines() -> None:
    lines = {path: (ROOT / path).read_text("utf-8").count("\n") for path in _trees()}
    assert {path: count for path, count in lines.items() if count > 600} == {
        Path("api.py"): lines[Path("api.py")]
    }


def test_few_tests_outside_white_box_folders_name_modules_of_the_engine() -> None:
    """The others go through tests/support/inside, so that a module can move."""
    tests = ROOT.parent / "tests"
    inner = [tests / "support/inside", tests / "unit", tests / "sim"]
    found = [
        path
        for path in tests.rglob("*.py")
        if "timerstore._engine" in path.read_text()
        and not any(path.is_relative_to(one) for one in inner)
    ]
    assert len(found) <= WHITE_BOX_FILES_MAX, sorted(found)


def test_no_stack_inspection() -> None:
    for path in MODULES:
        assert "_getframe" not in path.read_text("utf-8"), path


def test_package_root_has_few_entries() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "."], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not in a git checkout")
    entries = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert len(entries) <= ENTRIES_MAX, sorted(entries)


def _methods_of(path: str, name: str) -> set[str]:
    tree = _trees()[Path(path)]
    (found,) = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)
    return {one.name for one in found.body if isinstance(one, ast.FunctionDef)}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("store.py", "TimerStore"),
        ("shards/sharded.py", "ShardedStore"),
        ("store.py", "ReadOnlyStore"),
    ],
)
def test_public_signatures_are_stated_once(path: str, kind: str) -> None:
    """A kind of store defines `_do_...`; `ingest` of shards is another call of the same name."""
    stated = {name for name in _methods_of("api.py", "StoreApi") if not name.startswith("_")}
    assert len(stated) > 30
    assert not stated & _methods_of(path, kind)


def test_no_two_modules_share_a_name() -> None:
    names = Counter(path.name for path in _trees() if not path.name.startswith("__"))
    assert {name for name, count in names.items() if count > 1} == set()


def test_no_two_public_classes_share_a_name() -> None:
    """`Args` holds the arguments of a Spark job: each job has its own, for the same purpose.
    So has each command of Django its `Command`: Django finds it by that name.
    """
    classes = Counter(
        node.name
        for tree in _trees().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in classes.items() if count > 1} == {"Args", "Command"}
