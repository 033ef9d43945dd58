r"""Text classification: is a line code or English prose? A sequence classifier on bytes.

Four teams own different packages of Python's standard library. Lines of docstrings are prose,
all others are code. To try it, in any folder:

    python code_or_prose.py               # writes teams/web/lines.tsv and three more
    ssfl rehearse --task code_or_prose.py --data-root teams --sparsity 0.8 --rounds 10 \
        --local-epochs 2

`load_shard` decides what a shard is; here it is a folder. Add --dense to compare.
"""

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from ssfl.datasets.shards import Shard
from ssfl.method.settings import RunSettings

LENGTH = 48  # bytes of a line that the model sees
CLASSES = ("code", "prose")


def load_shard(path: Path) -> Shard:
    """Return a team's lines as byte numbers, (N, LENGTH); every fifth is for testing."""
    rows = [row.split("\t", 1) for row in (path / "lines.tsv").read_text("utf-8").splitlines()]
    x = np.zeros((len(rows), LENGTH), dtype=np.int64)  # short lines are padded with 0
    for number, (_, line) in enumerate(rows):
        data = line.encode()[:LENGTH]
        x[number, : len(data)] = np.frombuffer(data, dtype=np.uint8)
    y = np.array([CLASSES.index(name) for name, _ in rows], dtype=np.int64)
    is_test = np.arange(len(y)) % 5 == 0
    return Shard(x[~is_test], y[~is_test], x[is_test], y[is_test], num_classes=len(CLASSES))


class LineClassifier(nn.Module):
    """Embeds bytes, convolves over time, and classifies the strongest responses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.conv1 = nn.Conv1d(16, 64, 5, padding=2)
        self.conv2 = nn.Conv1d(64, 64, 5, padding=2)
        self.linear = nn.Linear(64, len(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        out = self.embed(x).transpose(1, 2)  # (N, 16, LENGTH)
        out = functional.relu(self.conv2(functional.relu(self.conv1(out))))  # (N, 64, LENGTH)
        logits: Tensor = self.linear(out.amax(dim=2))
        return logits


def build_model(settings: RunSettings, shard: Shard) -> nn.Module:
    """Return the network; settings and shard are not needed."""
    return LineClassifier()


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return functional.cross_entropy(model(x), y)


def metrics(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the shares of lines classified correctly and of lines classified as prose."""
    predicted = model(x).argmax(dim=1)
    return {"accuracy": (predicted == y).float().mean(), "called_prose": predicted.float().mean()}


TEAMS = {
    "data": ("collections", "csv.py", "json", "pathlib.py", "statistics.py", "zipfile.py"),
    "system": ("argparse.py", "ctypes", "logging", "shutil.py", "subprocess.py", "threading.py"),
    "tasks": ("asyncio", "concurrent", "multiprocessing", "queue.py", "sched.py", "selectors.py"),
    "web": ("email", "html", "http", "imaplib.py", "urllib", "xml"),
}


def write_teams(folder: Path, per_class: int = 400) -> None:
    """Write each team's lines: equal numbers of code and prose, in a reproducible order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for team, names in TEAMS.items():
        files = [f for name in names for f in sorted((library / name).rglob("*.py"))]
        files += [library / name for name in names if name.endswith(".py")]
        lines = {
            name: sorted({row for f in files for row in lines_of(f, name)}) for name in CLASSES
        }
        rng = np.random.default_rng(len(team))
        rows = [
            f"{name}\t{lines[name][chosen]}"
            for name in CLASSES
            for chosen in rng.choice(len(lines[name]), per_class, replace=False)
        ]
        rng.shuffle(rows)
        (folder / team).mkdir(parents=True, exist_ok=True)
        (folder / team / "lines.tsv").write_text("\n".join(rows), "utf-8")
        print(f"{folder / team}: {len(rows)} lines of {len(files)} files")


def lines_of(path: Path, kind: str) -> Iterator[str]:
    """Yield the lines of one kind in a source file, without indentation."""
    source = path.read_text("utf-8", errors="replace")
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source))
             if isinstance(node, nodes)]  # fmt: skip
    prose = {line.strip() for text in texts for line in text.splitlines()}
    for line in prose if kind == "prose" else source.splitlines():
        text = line.strip()
        fits = len(text) >= 12 and "\t" not in text and not text.startswith("#")
        if fits and (kind == "prose") == (text in prose):
            yield text


if __name__ == "__main__":
    write_teams(Path("teams"))
