import io
import json
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from ssfl.datasets.data_set import DataSet
from ssfl.datasets.shards.options import Cut
from ssfl.datasets.shards.shard_file import read_shard
from ssfl.datasets.shards.summary import ShardSummary
from ssfl.datasets.shards.write import make_shards
from ssfl.datasets.source import SourceOptions
from ssfl.method.streams import Stream
from ssfl.program import settings
from ssfl.program.exits import ExitCode
from ssfl.program.palette import CATEGORIES
from ssfl.tools import main as tools
from ssfl.tools.shards.chart import draw_classes
from ssfl.tools.shards.command import ShardsConfig
from ssfl.tools.shards.view import ProgressView, data_set_line, summary_table

ODD_NAMES = ("[red]a[/red]", "$x^$", "数", "\x1b[31mred", "", "\udce9", "new\nline", "b" * 300)


def some_data(samples: int, classes: int, names: tuple[str, ...] = ()) -> DataSet:
    y = (Stream(0, "labels").uniform(samples) * classes).astype(np.int64)
    x = np.zeros((samples, 3), dtype=np.float32)
    return DataSet("some", x, y, x[:0], y[:0], names or tuple(map(str, range(classes))))


def table_of(summary: ShardSummary) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(summary_table(summary))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def config_of(*flags: str) -> ShardsConfig:
    return settings.load(ShardsConfig, flags, None, "ssfl shards", "")


def test_shards_are_written_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shards"
    assert tools.main(["shards", "--clients", "5", "--out", str(out)]) == ExitCode.DONE
    paths = sorted(out.glob("*.npz"))
    assert [path.name for path in paths] == [f"shard_0{n}.npz" for n in range(5)]
    parts = [read_shard(path) for path in paths]
    assert sum(part.num_samples + len(part.val_y) for part in parts) == 1442
    others = sorted(path.name for path in out.iterdir() if path not in paths)
    assert others == ["classes.png", "shards.json"]
    output = capsys.readouterr().out
    assert (
        "digits: 1,797 samples of 1x8x8 (float32), 10 classes; "
        "1,442 for training, 355 for testing\n"
    ) in output
    assert f"5 shards in {out}/, with shards.json and classes.png\n" in output
    assert f"start a client: ssfl-client --data-root '{out}' --data shard_00\n" in output


def test_every_flag_of_the_cut_is_used(tmp_path: Path) -> None:
    flags = [
        *("--clients", "3", "--partition", "dirichlet-unbalanced", "--alpha", "2", "--seed", "4"),
        *("--validation", "0.25", "--test-share", "0.5", "--classes-per-client", "5"),
    ]
    assert tools.main(["shards", *flags, "--out", str(tmp_path)]) == ExitCode.DONE
    written = json.loads((tmp_path / "shards.json").read_text())
    cut = Cut(3, "dirichlet-unbalanced", 2.0, 5, 0.25, 0.5, 4)
    assert {field.name: written[field.name] for field in fields(Cut)} == {
        field.name: getattr(cut, field.name) for field in fields(Cut)
    }


def test_every_flag_of_the_source_is_passed_to_its_reader() -> None:
    assert config_of().source_options() == SourceOptions()
    flags = [
        *("--source", "a.csv", "--path", "files", "--download", "--mirror", "https://example.org"),
        *("--test", "b.csv", "--label", "y", "--target", "number", "--ignore", 'id, "a,b" ,name'),
        *("--missing", "drop", "--no-standardize", "--layout", "nhwc", "--image-size", "32"),
        "--grey",
    ]
    assert config_of(*flags).source_options() == SourceOptions(
        source="a.csv", path=Path("files"), download=True, mirror="https://example.org",
        test=Path("b.csv"), label="y", target="number", ignore=("id", "a,b", "name"),
        missing="drop", standardize=False, layout="nhwc", image_size=32, grey=True,
    )  # fmt: skip


def test_existing_shards_are_not_replaced_without_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["shards", "--clients", "2", "--out", str(tmp_path)]
    assert tools.main(flags) == ExitCode.DONE
    assert tools.main(flags) == ExitCode.BAD_DATA
    assert "--overwrite" in capsys.readouterr().err
    assert tools.main([*flags, "--overwrite"]) == ExitCode.DONE


@pytest.mark.parametrize(
    ("flags", "code", "complaint"),
    [
        (
            ["--clients", "5000"],
            ExitCode.BAD_DATA,
            "cannot split 1,442 training samples among 5,000 clients",
        ),
        (
            ["--partition", "classes", "--classes-per-client", "11"],
            ExitCode.BAD_DATA,
            "--classes-per-client 11 is impossible: the training samples have 10 classes",
        ),
        (
            ["--partition", "classes", "--clients", "4"],
            ExitCode.BAD_DATA,
            "use at least 5 --clients or 3 --classes-per-client",
        ),
        (
            ["--partition", "dirichlet-unbalanced", "--clients", "100", "--alpha", "0.01"],
            ExitCode.BAD_DATA,
            "try a larger --alpha, fewer --clients or another --seed",
        ),
        (["--alpha", "1e9"], ExitCode.USAGE, "--alpha must be between"),
        (["--alpha", "1e-9", "--source", "x.csv"], ExitCode.USAGE, "--alpha must be between"),
        (["--label", "y"], ExitCode.USAGE, "--label does nothing for the digits"),
        (["--validation", "1"], ExitCode.USAGE, "--validation must be at least 0 and below 1"),
        (["--source", "nowhere.csv"], ExitCode.BAD_DATA, "there is no file nowhere.csv"),
        (["--clients", "0"], ExitCode.USAGE, "--clients must be at least 1"),
        (["--partition", "pathological"], ExitCode.USAGE, "must be one of dirichlet"),
    ],
)
def test_an_impossible_request_is_refused_with_the_reason(
    tmp_path: Path,
    flags: list[str],
    code: ExitCode,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert tools.main(["shards", *flags, "--out", str(out)]) == code
    assert complaint in capsys.readouterr().err
    assert not out.exists()


def test_without_matplotlib_only_the_chart_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "ssfl.tools.shards.chart")
    assert tools.main(["shards", "--out", str(tmp_path)]) == ExitCode.DONE
    output = capsys.readouterr().out
    assert "classes.png needs matplotlib: pip install 'ssfl[data]'\n" in output
    assert f"8 shards in {tmp_path}/, with shards.json\n" in output
    assert not (tmp_path / "classes.png").exists()


def test_each_of_a_few_classes_has_a_column(tmp_path: Path) -> None:
    table = table_of(make_shards(tmp_path, some_data(500, 3, ("no", "yes", "maybe")), Cut(4)))
    for word in ("no", "yes", "maybe", "train", "val", "test", "shard_00", "shard_03", "all"):
        assert f" {word} " in table


def test_only_the_largest_of_many_classes_are_named(tmp_path: Path) -> None:
    summary = make_shards(tmp_path, some_data(3000, 50), Cut(4))
    row = summary.train_counts[0]
    label = int(np.argmax(row))
    table = table_of(summary)
    assert f"│ {np.count_nonzero(row)} │ {label}: {row[label]}, " in " ".join(table.split())


def test_the_table_of_many_clients_shows_the_first_the_last_and_the_total(tmp_path: Path) -> None:
    table = table_of(make_shards(tmp_path, some_data(1000, 2), Cut(60, "iid")))
    assert "shard_19" in table and "shard_50" in table and "shard_59" in table
    assert "shard_20" not in table and "shard_49" not in table
    assert "│  200 │" in table  # test samples of all


def test_the_table_shows_the_range_of_numbers(tmp_path: Path) -> None:
    y = np.linspace(-5, 20, 100, dtype=np.float32)
    x = np.zeros((100, 2), dtype=np.float32)
    summary = make_shards(
        tmp_path, DataSet("n", x, y, x[:0], y[:0]), Cut(1, "iid", validation=0, test_share=0)
    )
    assert "all │ -5 │ 7.5 │ 20 │ 100 │ 0 │ 0 │" in " ".join(table_of(summary).split())


def test_class_names_are_shown_without_markup_or_control_characters(tmp_path: Path) -> None:
    table = table_of(make_shards(tmp_path, some_data(400, 8, ODD_NAMES), Cut(2)))
    assert "\x1b" not in table and "\udce9" not in table
    assert "[red]a[/red]" in table_of(
        make_shards(tmp_path, some_data(400, 2, ODD_NAMES[:2]), Cut(2), overwrite=True)
    )


def test_a_data_set_of_numbers_is_described() -> None:
    data = some_data(1200, 2)
    numbers = DataSet("a\x07b", data.train_x, data.train_x[:, 0], data.test_x, data.test_x[:, 0])
    assert data_set_line(numbers) == (
        "a\\x07b: 1,200 samples of 3 (float32), numbers as targets; "
        "1,200 for training, 0 for testing"
    )


def test_progress_prints_nothing_at_first_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ProgressView() as progress:
        progress.show("reading", 1, 10)
        progress.show("reading", 10, 0)
    assert capsys.readouterr() == ("", "")


def test_the_chart_gives_each_class_its_share_of_the_bar(tmp_path: Path) -> None:
    y = np.repeat(np.arange(2), [100, 300])
    x = np.zeros((400, 1), dtype=np.float32)
    data = DataSet("two", x, y, x[:0], y[:0], ("a", "b"))
    summary = make_shards(tmp_path, data, Cut(1, "iid", validation=0, test_share=0))
    draw_classes(summary, tmp_path / "classes.png")
    with Image.open(tmp_path / "classes.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    first, second = (
        (pixels == tuple(bytes.fromhex(colour[1:]))).all(axis=1).sum() for colour in CATEGORIES[:2]
    )
    assert first > 10_000 and second / first == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize(
    ("data", "cut"),
    [
        (some_data(400, 8, ODD_NAMES), Cut(8)),
        (some_data(5000, 100), Cut(100, "iid")),
        (some_data(2000, 20), Cut(300, "iid")),
        (some_data(50, 2), Cut(1)),
    ],
)
def test_the_chart_is_drawn_for_any_number_of_clients_and_any_names(
    tmp_path: Path, data: DataSet, cut: Cut
) -> None:
    draw_classes(make_shards(tmp_path, data, cut), tmp_path / "classes.png")
    with Image.open(tmp_path / "classes.png") as picture:
        assert picture.format == "PNG" and 1000 < picture.width < 1300 and picture.height < 1500
    assert not list(tmp_path.glob(".*"))
