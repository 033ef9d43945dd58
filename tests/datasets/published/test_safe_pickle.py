import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets.published import cifar_files as made
from ssfl.datasets.errors import SourceError
from ssfl.datasets.published.safe_pickle import read_pickle

BATCH = made.python_batch(made.pixels(0, 3), [1, 2, 3])


class Calls:
    """Pickles to a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def test_a_batch_is_read_as_it_was_written() -> None:
    content = read_pickle(BATCH)
    assert list(content) == ["batch_label", "labels", "data", "filenames"]
    assert content["labels"] == [1, 2, 3]
    np.testing.assert_array_equal(content["data"], made.pixels(0, 3))


def test_it_is_what_the_real_unpickler_reads() -> None:
    real = pickle.loads(BATCH, encoding="bytes")  # noqa: S301 - made here
    np.testing.assert_array_equal(real[b"data"], read_pickle(BATCH)["data"])
    assert real[b"labels"] == read_pickle(BATCH)["labels"]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "wrap", [lambda bad: bad, lambda bad: {"data": bad}, lambda bad: {"labels": [[(bad,)]]}]
)
def test_nothing_a_pickle_asks_for_is_run(tmp_path: Path, protocol: int, wrap: Any) -> None:
    trace = tmp_path / "it ran"
    for bad in (
        Calls(os.system, f"touch '{trace}'"),
        Calls(eval, f"open({str(trace)!r}, 'w')"),
        Calls(exec, f"open({str(trace)!r}, 'w')"),
        Calls(getattr, Calls(__import__, "os"), "getcwd"),
        Calls(Path.touch, trace),
    ):
        data = pickle.dumps(wrap(bad), protocol)
        with pytest.raises(SourceError):
            read_pickle(data)
    assert not trace.exists()


def test_python_s_unpickler_has_no_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.delattr(pickle, name)
    assert read_pickle(BATCH)["labels"] == [1, 2, 3]


@pytest.mark.parametrize(
    "name",
    [
        *("os system", "posix system", "builtins eval", "__builtin__ eval", "numpy save"),
        *("numpy.core.multiarray fromfile", "numpy ndarray.tofile", "numpy _core"),
        *("copyreg _reconstructor", "functools partial", "numpy.core.multiarray scalar"),
    ],
)
def test_any_other_name_is_refused_and_said(name: str) -> None:
    module, _, function = name.partition(" ")
    call = f"c{module}\n{function}\nU\x01x\x85R".encode()
    with pytest.raises(SourceError, match=rf"wants to run '{module}.{function}'"):
        read_pickle(made.pickled(data=call))


@pytest.mark.parametrize(
    "instruction",
    [
        b"(ios\nsystem\n",  # INST
        b"(U\x02lsos\n",  # OBJ
        b"\x8c\x02os\x8c\x06system\x93",  # STACK_GLOBAL
        b"\x82\x01",  # EXT1
        b"Pname\n",  # PERSID
        b"U\x04nameQ",  # BINPERSID
        b"cnumpy\ndtype\n)\x81",  # NEWOBJ
        b"K\x012",  # DUP
        b"I99\n",  # INT as text
        b"\x8b\x01\x00\x00\x00\x07",  # LONG4
    ],
)
def test_instructions_that_no_batch_has_are_refused(instruction: bytes) -> None:
    with pytest.raises(SourceError, match=r"a published batch has no [A-Z0-9_]+ in it"):
        read_pickle(made.pickled(data=instruction))


def array_with(shape: bytes, kind: bytes = b"u1", raw: bytes = b"abc") -> bytes:
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + shape
        + b"cnumpy\ndtype\nU"
        + bytes([len(kind)])
        + kind
        + b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + made.text(raw)
        + b"tb"
    )


HUGE = b"J\xff\xff\xff\x7f"


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (array_with(HUGE + HUGE + b"\x86"), "does not fit the bytes"),
        (array_with(b"J\xff\xff\xff\xff\x85"), "does not fit the bytes"),
        (array_with(b"K\x03\x85", kind=b"O8"), "something else than unsigned bytes"),
        (array_with(b"K\x03\x85", kind=b"f8"), "something else than unsigned bytes"),
        (b"cnumpy\nndarray\n" + HUGE + b"\x85R", "makes a call that no published batch makes"),
        (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + HUGE + b"\x85U\x01b\x87R",
            "begins an array in a way no published batch does",
        ),
        (b"T" + struct.pack("<i", 2**31 - 1), "it is no pickle, or it is cut short"),
        (b"X" + struct.pack("<I", 2**32 - 1), "it is no pickle, or it is cut short"),
        (b"]" * 100 + b"a" * 99, "it nests more than any published batch"),
        (b"K\x01" + b"\x85" * 100, "it nests more than any published batch"),
        (
            array_with(b"K\x03\x85") + b"(K\x01K\x03\x85cnumpy\ndtype\nNU\x03abctb",
            "it fills an array twice",
        ),
    ],
)
def test_few_bytes_cannot_ask_for_much_memory_or_time(item: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_pickle(made.pickled(data=item))


KEY = "a key is neither bytes nor text"


@pytest.mark.parametrize(
    ("between", "message"),  # what leaves a tuple where it is, before it gets its number
    [
        (b"", KEY),
        (b"q\x63", KEY),
        (b"r\x63\x00\x00\x00", KEY),
        (b"Nb", "it fills something else than an array"),
        (b"(e", "it appends to something else than a list"),
        (b"(u", "it sets items of something else than a dictionary"),
    ],
)
@pytest.mark.parametrize("width", [2, 100])
def test_a_nest_of_tuples_is_never_hashed(between: bytes, message: str, width: int) -> None:
    nest = b"K\x01\x85"
    for level in range(3):
        number = bytes([level])
        nest = b"(" + nest + between + b"q" + number + (b"h" + number) * (width - 1) + b"t"
    for item in (b"}" + nest + b"Ns", b"}(" + nest + b"Nu"):
        for data in (made.pickled(data=item), b"\x80\x02" + item + b"."):
            with pytest.raises(SourceError, match=message):
                read_pickle(data)


@pytest.mark.parametrize("key", [b"K\x01", b"N", b"\x88", b")", b"cnumpy\ndtype\n"])
def test_keys_are_bytes_or_text(key: bytes) -> None:
    with pytest.raises(SourceError, match=KEY):
        read_pickle(b"\x80\x02}" + key + b"Ns.")


def test_a_large_memo_number_takes_no_memory() -> None:
    item = b"K\x05r" + struct.pack("<I", 2**32 - 1)
    assert read_pickle(made.pickled(data=item)) == {"data": 5}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (b"h\x07", "nothing was put aside as number 7"),
        (b"(q\x07", "an instruction lacks what it works on"),
        (b"K\x01e", "it appends to something else than a list"),
        (b"a", "an instruction lacks what it works on"),
        (b"](K\x01a", "an instruction lacks what it works on"),
        (b")(u", "it sets items of something else than a dictionary"),
        (b"}(U\x01au", "it sets items of something else than a dictionary"),
        (b")Nb", "it fills something else than an array"),
        (b"t" * 3, "a mark is missing"),
    ],
)
def test_instructions_that_do_not_fit_each_other_are_refused(item: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_pickle(made.pickled(data=item))


@given(
    data=st.recursive(
        st.one_of(st.integers(-(2**31), 2**31 - 1), st.none(), st.booleans(), st.text()),
        lambda inner: st.one_of(
            st.lists(inner),
            st.dictionaries(st.text(), inner),
            st.tuples(inner, inner),
        ),
        max_leaves=8,
    )
)
@settings(max_examples=150)
def test_plain_values_are_what_the_real_unpickler_reads(data: Any) -> None:
    made_here = pickle.dumps({"data": data}, 2)
    try:
        assert read_pickle(made_here) == {"data": data}
    except SourceError as error:
        assert "nests more" in str(error)


def test_only_a_dictionary_is_a_batch() -> None:
    with pytest.raises(SourceError, match="it holds a list, not a dictionary"):
        read_pickle(b"\x80\x02].")


@given(data=st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_give_a_dictionary_or_a_sentence(data: bytes) -> None:
    try:
        assert isinstance(read_pickle(b"\x80\x02}" + data), dict)
    except SourceError as error:
        assert str(error)


def test_an_odd_escape_is_a_sentence_and_no_warning() -> None:
    with pytest.raises(SourceError, match=r"it is no pickle.*invalid escape sequence"):
        read_pickle(b"\x80\x02S'\\q'\n.")


@given(place=st.integers(0, len(BATCH) - 1), value=st.integers(0, 255))
@settings(max_examples=300)
def test_a_changed_byte_gives_a_dictionary_or_a_sentence(place: int, value: int) -> None:
    changed = bytearray(BATCH)
    changed[place] = value
    try:
        assert isinstance(read_pickle(bytes(changed)), dict)
    except SourceError as error:
        assert str(error)
