"""The presets in benchmarks/paper have the settings of the paper, and each of them runs.

Full runs take too long, and the data sets are not available. Every variant of every preset is
run for a round or two with a few clients, on small files in the format of the published ones.
"""

import io
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from datasets.published.cifar_files import HUNDRED, TEN, binary_batch, pixels, write_files
from ssfl.program.exits import ExitCode
from ssfl.program.settings.options import Value
from ssfl.study.data import DataSpec
from ssfl.study.grid import Study, read_grid
from ssfl.study.sweep import RunResult, run_all
from ssfl.tools.main import main

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "paper"
OURS = "ours"  # the study behind our defaults, not one of the paper
PRESETS = {file.stem: file for file in sorted(FOLDER.glob("*.toml")) if file.stem != OURS}

# The settings of all experiments of the paper; what the paper does not mention is off.
TEXT: dict[str, Any] = {
    **{"strategy": "ssfl", "criterion": "saliency", "sparsity": "0.5", "sparsity_schedule": ""},
    **{"model": "resnet18", "norm": "group", "width": 0, "initialization": "auto"},
    **{"augment": "auto", "normalize": "auto", "scoring_augment": False},
    **{"rounds": 500, "clients_per_round": 10, "client_fraction": 0.0, "update_weights": "samples"},
    **{"local_epochs": 5, "local_steps": 0, "batch_size": 16, "momentum": 0.0, "clip_norm": 0.0},
    **{"learning_rate": 0.1, "lr_decay": 0.998, "weight_decay": 5e-4, "local_schedule": "constant"},
    **{"scoring_batches": 1, "scoring_samples": "balanced", "score_weights": "samples"},
    **{"scores": "exact", "value_type": "float32", "layer_guard": 0.0, "warmup_rounds": 0},
    **{"refresh_rounds": "", "refresh_every": 0, "refresh_on_new_labels": False},
    **{"target_accuracy": 0.0, "patience": 0, "personalize_epochs": 5, "evaluate_last": 10},
}
RELEASED = {
    **{"scoring_augment": True},
    **{"rounds": 999, "learning_rate": 0.0998, "clip_norm": 10.0, "personalize_epochs": 0},
    **{"initialization": "torch-default", "scoring_samples": "plain", "score_weights": "equal"},
}
RELEASED_100 = {
    **{"local_epochs": 10, "batch_size": 128, "momentum": 0.9, "local_schedule": "cosine"},
    **{"learning_rate": 0.1, "lr_decay": 1.0},
}
Methods = Mapping[str, Mapping[str, Any]]
OWN: dict[str, Any] = {"personalize_epochs": 0}  # the method has personal models, or none
GOSSIP: dict[str, Any] = {**OWN, "clients_per_round": 0}
DITTO = "ditto.strength=0.5,ditto.pull=step,ditto.global_epochs=2"
PRUNING = "sub-fedavg.step=0.05,sub-fedavg.split=train"
TABLE_2: Methods = {
    "SSFL": {},
    "FedAvg (dense)": {"strategy": "fedavg"},
    "D-PSGD-FT (dense)": {"strategy": "d-psgd", "clients_per_round": 0},
    "Ditto (dense)": {
        **OWN, "strategy": "ditto", "criterion": "none", "local_epochs": 3,
        "strategy_options": DITTO,
    },
    "FedFOMO (dense)": {**GOSSIP, "strategy": "fedfomo"},
    "DisPFL": {**GOSSIP, "strategy": "dispfl"},
    "Sub-FedAvg": {**OWN, "strategy": "sub-fedavg", "strategy_options": PRUNING},
    "Random": {**OWN, "criterion": "client-random", "averaging": "zeros"},
}  # fmt: skip
TABLE_1: Methods = {
    **TABLE_2,
    "SparsyFed": {**OWN, "strategy": "sparsyfed"},
    "FLASH-SPDST": {"strategy": "flash-spdst"},
    "FLASH-JMWST": {"strategy": "flash-jmwst"},
    "FedPM": {**OWN, "strategy": "fedpm"},
}
VALIDATION = {"FedFOMO (dense)": 0.1}  # share of the samples that the method compares models on


def some(*names: str, **changed: Mapping[str, Any]) -> Methods:
    """Return methods of Table 1, some of them with other settings."""
    return {name: {**TABLE_1[name], **changed.get(name.partition(" ")[0], {})} for name in names}


ONCE = {"sparsity": "0.5"}  # has no effect
SSFL, DENSE = some("SSFL"), some("FedAvg (dense)", FedAvg=ONCE)
SPARSE = {
    **some("SSFL", "DisPFL", "Random", "FedPM", FedPM=ONCE),
    "Sub-FedAvg": {**TABLE_1["Sub-FedAvg"], "strategy_options": "sub-fedavg.split=train"},
    **DENSE,
}
SWEEP = ("0.5", "0.7", "0.8", "0.9", "0.95")
TEN_SET = DataSpec("cifar10", 100, "dirichlet", 0.3)
HUNDRED_SET = DataSpec("cifar100", 100, "dirichlet", 0.2)
TINY_SET = DataSpec("tiny-imagenet", 100, "dirichlet", 0.2)


@dataclass(frozen=True)
class Wanted:
    """The expected content of a preset."""

    data: DataSpec
    variants: Methods
    sparsities: tuple[str, ...] = ()  # of the variants that do not set it
    settings: Mapping[str, Any] = field(default_factory=dict)  # that differ from TEXT
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)

    def configurations(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield names and settings."""
        for name, fixed in self.variants.items():
            known = {**TEXT, **self.settings, **fixed}
            if "sparsity" in fixed or not self.sparsities:
                yield name, known
                continue
            for sparsity in self.sparsities:
                yield f"{name} sparsity={sparsity}", {**known, "sparsity": sparsity}


def few_classes(data: DataSpec, count: int) -> DataSpec:
    return replace(data, partition="classes", alpha=DataSpec().alpha, classes_per_client=count)


WANTED = {
    "cifar10": Wanted(TEN_SET, TABLE_1),
    "cifar100": Wanted(HUNDRED_SET, TABLE_1),
    "tiny-imagenet": Wanted(TINY_SET, TABLE_2),
    "cifar10-pathological": Wanted(few_classes(TEN_SET, 2), TABLE_2),
    "cifar100-pathological": Wanted(few_classes(HUNDRED_SET, 10), TABLE_2),
    "tiny-imagenet-pathological": Wanted(few_classes(TINY_SET, 20), TABLE_2),
    "cifar10-sparsity": Wanted(TEN_SET, SPARSE, SWEEP),
    "cifar100-sparsity": Wanted(HUNDRED_SET, SPARSE, SWEEP),
    "cifar10-warmup": Wanted(
        TEN_SET, {"at the start": {}, "after warm-up": {"warmup_rounds": 10}}, SWEEP
    ),
    "cifar10-ood": Wanted(
        replace(TEN_SET, late_classes="8,9", late_clients=20, late_round=225),
        {
            "new mask": {"refresh_rounds": "225"},
            "old mask": {},
            "periodic": {"refresh_every": 25},
            "loss jump": {"refresh_on_loss_jump": 1.5},
            "growth": {
                "refresh_mode": "grow",
                "sparsity_schedule": "0:0.975,225:0.95",
                "sparsity": "0.95",
            },
        },
        ("0.5", "0.95"),
        {"newcomers_per_round": 2, "scoring_point": "unmasked", "deactivated": "keep"},
    ),
    "cifar10-controls": Wanted(
        TEN_SET,
        {
            "ssfl": {},
            "shuffled": {"criterion": "shuffled"},
            "random": {"criterion": "random"},
            "client-random zeros": {**OWN, "criterion": "client-random", "averaging": "zeros"},
            "client-random holders": {**OWN, "criterion": "client-random", "averaging": "holders"},
            "one client": {"criterion": "one-client"},
        },
        ("0.5", "0.8", "0.95"),
    ),
    "cifar10-clients": Wanted(replace(TEN_SET, partition="dirichlet-unbalanced"), SSFL),
    "cifar10-minibatches": Wanted(
        TEN_SET,
        {
            "100 clients x 1": {},
            "10 clients x 10": {"scoring_batches": 10, "clients": 10},
            "10 clients x 1": {"clients": 10},
        },
        ("0.5", "0.95"),
    ),
    "cifar100-resnet50": Wanted(
        HUNDRED_SET, {**some("SSFL", "DisPFL"), **DENSE}, SWEEP, {"model": "resnet50"}
    ),
    "cifar10-long": Wanted(
        TEN_SET, some("SSFL", "DisPFL", "Ditto (dense)", "FedAvg (dense)"),
        settings={"rounds": 800},
    ),
    "cifar10-released": Wanted(TEN_SET, {"ssfl": {}}, settings=RELEASED, seeds=(550,)),
    "cifar100-released": Wanted(
        replace(HUNDRED_SET, alpha=0.3), {"ssfl": {}}, settings={**RELEASED, **RELEASED_100},
        seeds=(550,),
    ),
}  # fmt: skip


def test_every_preset_is_tested_and_named_on_its_page() -> None:
    assert set(WANTED) == set(PRESETS)
    page = (FOLDER / "README.md").read_text("utf-8")
    assert set(re.findall(r"\]\((\S+)\.toml\)", page)) == {*PRESETS, OURS}


@pytest.mark.parametrize("name", WANTED)
def test_a_preset_has_exactly_the_settings_of_the_paper(name: str) -> None:
    wanted, study = WANTED[name], read_grid(PRESETS[name])
    specs = study.specs()
    configurations = dict(wanted.configurations())
    found = [(spec.name, spec.seed) for spec in specs]
    assert sorted(found) == sorted(product(configurations, wanted.seeds))
    for spec in specs:
        spec.check()
        known = {"clients": 100, **configurations[spec.name]}
        data = replace(
            wanted.data, clients=known["clients"], validation=VALIDATION.get(spec.name, 0.0)
        )
        assert spec.data == data and spec.mode == "fast" and spec.task == "image"
        settings = spec.run_settings()
        known["clients"] -= wanted.data.late_clients
        assert {key: getattr(settings, key) for key in known} == known


@pytest.mark.parametrize("name", WANTED)
def test_the_head_of_a_preset_has_the_command_and_the_number_of_runs(name: str) -> None:
    head = PRESETS[name].read_text("utf-8").partition("\n\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert head.endswith(f"#     ssfl simulate benchmarks/paper/{name}.toml --device cuda")
    runs = len(read_grid(PRESETS[name]).specs())
    words = head.replace("\n# ", " ")
    assert f"({runs} runs)" in words or (runs == 1 and "one seed" in words)


# ---- a round of each


SMALL: dict[str, Value] = {
    **{"clients": 4, "clients_per_round": 2, "samples_per_client": 20, "width": 4},
    **{"local_steps": 1, "personalize_epochs": 1},
}
FULL: dict[str, Value] = {
    **SMALL,
    **{"clients": 2, "samples_per_client": 2, "batch_size": 2, "width": 0},
}
SOON: dict[str, Value] = {  # earlier than in a preset
    **{"refresh_rounds": "1", "warmup_rounds": 1, "refresh_every": 1, "clients": 3},
    **{"sparsity_schedule": "0:0.975,1:0.95"},
}


def smaller(study: Study, size: Mapping[str, Value]) -> Study:
    """Return a study with another size, one seed, the ends of its grid, and earlier events."""
    variants = {
        name: {**fixed, **{key: value for key, value in SOON.items() if key in fixed}}
        for name, fixed in study.variants.items()
    }
    base: dict[str, Value] = {**size, "rounds": 1}
    if any("warmup_rounds" in fixed for fixed in variants.values()):
        base["rounds"] = 2
    if study.base["partition"] == "classes":
        base |= {"clients": 10, "samples_per_client": 0}  # each class needs a client
    if "late_round" in study.base:
        base |= {"rounds": 2, "late_round": 1, "late_clients": 2, "newcomers_per_round": 1}
    ends = {key: [values[0], values[-1]] for key, values in study.grid.items()}
    base = {**study.base, **base}
    return replace(study, base=base, grid=ends, variants=variants, seeds=study.seeds[:1])


def cifar(folder: Path, num_classes: int, per_class: int) -> None:
    """Write a CIFAR set of noise in the binary format, with 10 test images."""
    y = [number % num_classes for number in range(num_classes * per_class)]
    x = pixels(num_classes, len(y))
    cut = len(y) - 10
    if num_classes == 10:
        parts = {f"data_batch_{batch}": slice(batch - 1, cut, 5) for batch in range(1, 6)}
        parts["test_batch"] = slice(cut, None)
        files = {f"{name}.bin": binary_batch(x[part], y[part]) for name, part in parts.items()}
        write_files(folder, files | {"batches.meta.txt": "\n".join(TEN).encode()})
    else:
        halves = {"train": slice(cut), "test": slice(cut, None)}
        files = {
            f"{name}.bin": binary_batch(x[part], [label // 5 for label in y[part]], y[part])
            for name, part in halves.items()
        }
        write_files(folder, files | {"fine_label_names.txt": "\n".join(HUNDRED).encode()})


def tiny_imagenet(folder: Path) -> None:
    """Write a tree of Tiny-ImageNet: 200 classes of one colour, two training images each."""
    names = [f"n{number:08d}" for number in range(200)]
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for number, name in enumerate(names):
        file = io.BytesIO()
        Image.new("RGB", (64, 64), (number, 255 - number, 100)).save(file, "JPEG")
        images = folder / "train" / name / "images"
        images.mkdir(parents=True)
        for copy in range(2):
            (images / f"{name}_{copy}.JPEG").write_bytes(file.getvalue())
        if number % 10 == 0:
            (folder / "val" / "images" / f"val_{number}.JPEG").write_bytes(file.getvalue())
            lines.append(f"val_{number}.JPEG\t{name}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(names))
    (folder / "words.txt").write_text("".join(f"{name}\tthing {name}\n" for name in names))


@pytest.fixture(scope="module", autouse=True)
def _stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put small data sets into the cache under the names of the real ones."""
    cache = tmp_path_factory.mktemp("cache")
    cifar(cache / "ssfl" / "cifar10", 10, 30)
    cifar(cache / "ssfl" / "cifar100", 100, 4)
    tiny_imagenet(cache / "ssfl" / "tiny-imagenet")
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(cache)
    yield
    del os.environ["XDG_CACHE_HOME"]
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RunResult]]:
    """The results of one or two rounds by preset, and of two full networks.

    A row that another preset has, perhaps with another data set, is run once; the first row of each
    preset is always run.
    """
    specs = {name: smaller(read_grid(file), SMALL).specs() for name, file in PRESETS.items()}
    for name in ("cifar10", "cifar100-resnet50"):
        specs[f"{name} in full"] = smaller(read_grid(PRESETS[name]), FULL).specs()[:1]
    seen: set[str] = set()
    chosen = []
    for name, some in specs.items():
        for number, one in enumerate(some):
            data = replace(one.data, source="", alpha=0.0, classes_per_client=0)
            known = replace(one, name="", data=data)
            row = json.dumps(known.document(), sort_keys=True)
            if number == 0 or row not in seen:
                chosen.append((name, one))
            seen.add(row)
    flat = [replace(one, name=f"{name} {one.name}") for name, one in chosen]
    done = run_all(flat, tmp_path_factory.mktemp("presets"), workers=2)
    found: dict[str, list[RunResult]] = {}
    for (name, one), result in zip(chosen, done, strict=True):
        found.setdefault(name, []).append(replace(result, spec=one))
    return found


@pytest.mark.system
@pytest.mark.parametrize("name", WANTED)
def test_every_variant_of_a_preset_is_run_for_a_round(
    name: str, results: dict[str, list[RunResult]]
) -> None:
    configurations = dict(WANTED[name].configurations())
    for result in results[name]:
        assert not result.error, result.spec.label
        settings, outcome = configurations[result.spec.name], result.outcome
        late = bool(WANTED[name].data.late_clients)
        assert outcome["rounds"] == (2 if late or name == "cifar10-warmup" else 1)
        assert 0 <= outcome["pooled"] <= 1 and outcome["personal"] is not None
        if settings["criterion"] != "client-random" and settings["strategy"] in ("ssfl", "fedavg"):
            kept = 1.0 if settings["strategy"] == "fedavg" else 1 - float(settings["sparsity"])
            assert outcome["num_kept"] == pytest.approx(kept * outcome["num_masked"], abs=1)


@pytest.mark.system
def test_newcomers_get_a_new_mask_only_with_a_refresh(results: dict[str, list[RunResult]]) -> None:
    epochs = {
        result.spec.name: result.document["mask"]["epoch"] for result in results["cifar10-ood"]
    }
    assert epochs == {
        **{f"{kind} sparsity={s}": 2 for kind in ("new mask", "periodic") for s in ("0.5", "0.95")},
        **{
            f"{kind} sparsity={s}": 1 for kind in ("old mask", "loss jump") for s in ("0.5", "0.95")
        },
        "growth": 2,
    }
    for result in results["cifar10-ood"]:
        assert len(result.document["clients"]) == 4, "two of them joined later"


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "weights"), [("cifar10", 11_164_352), ("cifar100-resnet50", 23_652_032)]
)
def test_the_full_networks_finish_a_round(
    name: str, weights: int, results: dict[str, list[RunResult]]
) -> None:
    (result,) = results[f"{name} in full"]
    assert not result.error and result.outcome["rounds"] == 1
    assert result.outcome["num_masked"] == weights
    assert result.outcome["num_kept"] == weights // 2


@pytest.mark.system
def test_the_command_on_the_page_of_the_presets_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    (line,) = re.findall(r"^ssfl (simulate .*--rounds 1 .*)$", page, flags=re.MULTILINE)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(line), "--workers", "1"]) == ExitCode.DONE
    assert "1 run (1 configuration x 1 seed)" in capsys.readouterr().err
