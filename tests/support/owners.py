"""Classes that own descriptors, maps, threads, locks or C memory, found in the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import timerstore

ROOT = Path(timerstore.__file__).parent
OWNED = frozenset(
    {
        "AppendLock",
        "Lock",
        "Putter",
        "ThreadPoolExecutor",
        "ffi.from_buffer",
        "ffi.gc",
        "ffi.new",
        "mmap.mmap",
        "os.dup",
        "os.open",
        "socket.create_server",
        "socket.socket",
        "threading.Barrier",
        "threading.Condition",
        "threading.Event",
        "threading.Lock",
        "threading.RLock",
        "threading.Semaphore",
        "threading.Thread",
        "threading.local",
        "address",  # of native.py: it refers to a buffer
        "pointer",
    }
)
OPENING = ("disk.open", "disk.anchor", ".map_read", ".map_shared", ".map_private")
DISK = "timerstore._engine.storage.disk.Disk"
ENDS = frozenset({"__del__", "close", "aclose", "__exit__", "__aexit__"})


class Found:
    """A class in the source code."""

    def __init__(self, module: str, node: ast.ClassDef) -> None:
        self.module = module
        self.name = node.name
        self.bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
        functions = [
            one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        self.ends = bool(ENDS & {one.name for one in functions})
        kept = {
            ast.unparse(call.func).partition("[")[0] for one in functions for call in _kept(one)
        }
        self.keeps = kept | {name for name in OPENING if any(one.endswith(name) for one in kept)}

    @property
    def where(self) -> str:
        return f"{self.module}.{self.name}"


def _kept(function: ast.AST) -> Iterator[ast.Call]:
    """Return the calls whose result is assigned to an attribute of self."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for one in targets for part in ast.walk(one)]
            if any(isinstance(part, ast.Attribute) and _is_self(part.value) for part in parts):
                yield from (one for one in ast.walk(node.value) if isinstance(one, ast.Call))


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def classes() -> list[Found]:
    """Return every class of the package."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text("utf-8"))
        found += [Found(module, one) for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]
    return found


def owners() -> list[Found]:
    """Return classes that release something, keep an owned object, or keep an owner they made.

    Those of `contrib` are left out: it uses the public API only, which has no base for owners.
    """
    everything = [one for one in classes() if not one.module.startswith("timerstore.contrib")]
    names = {"Disk"}  # it keeps anchors through its methods
    found: list[Found] = []
    while True:
        before, owned = len(found), {*OWNED, *OPENING, *names}
        found = [
            one
            for one in everything
            if one.ends or one.keeps & owned or one.bases & names or one.where == DISK
        ]
        if len(found) == before:
            return found
        names = {one.name for one in found}
