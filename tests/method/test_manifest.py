import contextlib
import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssfl.method import manifest as module
from ssfl.method.errors import ManifestError
from ssfl.method.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_PARAMETERS,
    Init,
    Manifest,
    Role,
    TensorSpec,
)

ZEROS = Init("zeros")
CANONICAL = (
    b'{"format":1,"model":{"name":"toy"},"tensors":['
    b'{"dtype":"float32","init":{"rule":"normal","scale":"0x1.999999999999ap-4"},'
    b'"name":"conv.weight","role":"masked","shape":[2,3]},'
    b'{"dtype":"float32","init":{"rule":"zeros","scale":"0x0.0p+0"},'
    b'"name":"conv.bias","role":"dense","shape":[2]},'
    b'{"dtype":"float32","init":{"rule":"ones","scale":"0x0.0p+0"},'
    b'"name":"norm.mean","role":"buffer","shape":[2]},'
    b'{"dtype":"float32","init":{"rule":"uniform","scale":"0x1.0000000000000p-1"},'
    b'"name":"fc.weight","role":"masked","shape":[2,2]}]}'
)
DIGEST = "a4fc55323ce386ec302855123157f3bac3a6192c05139a6022c4d45e6e50aff2"

Edit = Callable[[dict[str, Any]], None]


def canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def edited(edit: Edit) -> bytes:
    """Return the sample manifest after a change to its document, in canonical form."""
    document = json.loads(CANONICAL)
    edit(document)
    return canonical(document)


def of_first_tensor(**fields: object) -> bytes:
    return edited(lambda document: document["tensors"][0].update(fields))


def refusal(text: bytes) -> str:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_json(text)
    return str(caught.value)


def test_the_canonical_text_and_its_digest_never_change(manifest: Manifest) -> None:
    assert manifest.json == CANONICAL
    assert manifest.digest.hex() == DIGEST == hashlib.sha256(CANONICAL).hexdigest()


def test_the_text_gives_the_manifest_back(manifest: Manifest) -> None:
    again = Manifest.from_json(CANONICAL)
    assert again == manifest
    assert again.json == CANONICAL


def test_any_name_that_can_be_printed_survives() -> None:
    tensor = TensorSpec("schicht ü/0\\\"'", (3,), Role.MASKED, ZEROS)
    manifest = Manifest((tensor,))
    assert manifest.json.isascii()
    assert Manifest.from_json(manifest.json).tensors == (tensor,)


def test_masked_tensors_come_first_then_dense_then_buffers(manifest: Manifest) -> None:
    assert [tensor.name for tensor in manifest.in_vector_order()] == [
        *("conv.weight", "fc.weight", "conv.bias", "norm.mean"),
    ]
    assert manifest.slices == {
        "conv.weight": slice(0, 6),
        "fc.weight": slice(6, 10),
        "conv.bias": slice(10, 12),
        "norm.mean": slice(12, 14),
    }
    assert (manifest.num_masked, manifest.num_unmasked, manifest.size) == (10, 4, 14)
    assert manifest.num_buffers == 2
    masked = [(tensor.name, place) for tensor, place in manifest.masked()]
    assert masked == [("conv.weight", slice(0, 6)), ("fc.weight", slice(6, 10))]


def test_every_coordinate_has_a_tensor(manifest: Manifest) -> None:
    names = [manifest.tensor_at(i) for i in range(14)]
    assert names == (
        ["conv.weight"] * 6 + ["fc.weight"] * 4 + ["conv.bias"] * 2 + ["norm.mean"] * 2
    )


def test_flatten_and_unflatten_are_each_others_inverse(manifest: Manifest) -> None:
    vector = np.arange(14, dtype=np.float32)
    arrays = manifest.unflatten(vector)
    assert arrays["fc.weight"].tolist() == [[6, 7], [8, 9]]
    assert arrays["conv.weight"].shape == (2, 3)
    np.testing.assert_array_equal(manifest.flatten(arrays), vector)


def test_arrays_of_another_shape_are_refused(manifest: Manifest) -> None:
    arrays = manifest.unflatten(np.zeros(14, dtype=np.float32))
    arrays["fc.weight"] = np.zeros((4,), dtype=np.float32)
    with pytest.raises(ManifestError, match=r"fc.weight has shape \(4,\), not \(2, 2\)"):
        manifest.flatten(arrays)
    with pytest.raises(ManifestError, match=r"has shape \(13,\), not \(14,\)"):
        manifest.unflatten(np.zeros(13, dtype=np.float32))


def test_initial_weights_that_are_sent_cannot_be_rebuilt(manifest: Manifest) -> None:
    assert manifest.rebuildable
    sent = TensorSpec("x", (1,), Role.DENSE, Init("sent"))
    assert not Manifest((*manifest.tensors, sent)).rebuildable


def test_a_scalar_has_one_value() -> None:
    scalar = TensorSpec("s", (), Role.MASKED, ZEROS)
    assert Manifest.from_json(Manifest((scalar,)).json).size == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not a manifest: JSONDecodeError"),
        (b"\xff\xfe\x00", "not a manifest: UnicodeDecodeError"),
        (b"[]", "not a manifest: TypeError"),
        (b"5", "not a manifest: TypeError"),
        (b"{}", "not a manifest: KeyError: 'format'"),
        (b"[" * 100_000, "not a manifest: RecursionError"),
        (b'{"format":1,"model":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}", "not a manifest"),
        (edited(lambda d: d.update(format=2)), "manifest format 2, this is 1"),
        (edited(lambda d: d.pop("tensors")), "KeyError: 'tensors'"),
        (edited(lambda d: d.update(tensors=5)), "TypeError"),
        (edited(lambda d: d.update(tensors=[5])), "TypeError"),
        (edited(lambda d: d.update(tensors=[])), "no conv or linear weight to mask"),
        (edited(lambda d: d.pop("model")), "KeyError: 'model'"),
        (edited(lambda d: d.update(model=5)), "TypeError"),
        (edited(lambda d: d.update(model=[])), "not in canonical form"),
        (edited(lambda d: d.update(model={"loss": float("nan")})), "not JSON compliant"),
        (edited(lambda d: d.update(more=1)), "not in canonical form"),
        (edited(lambda d: d["tensors"].append(d["tensors"][0])), "two tensors share a name"),
        (of_first_tensor(dtype="float64"), "conv.weight: dtype 'float64' is not float32"),
        (of_first_tensor(role="weights"), "'weights' is not a valid Role"),
        (of_first_tensor(name=""), "a tensor's name has 1 to 200 printable characters"),
        (of_first_tensor(name=5), "a tensor's name has 1 to 200 printable characters"),
        (of_first_tensor(name="x" * 201), "a tensor's name has 1 to 200 printable characters"),
        (of_first_tensor(name="a\nb"), "a tensor's name has 1 to 200 printable characters"),
        (of_first_tensor(name="\ud800"), "a tensor's name has 1 to 200 printable characters"),
        (of_first_tensor(name="__metadata__"), "cannot be called __metadata__"),
        (of_first_tensor(shape=[2, 0]), "conv.weight: impossible shape"),
        (of_first_tensor(shape=[2, -3]), "conv.weight: impossible shape"),
        (of_first_tensor(shape=[2.0, 3]), "conv.weight: impossible shape"),
        (of_first_tensor(shape=[True, 3]), "conv.weight: impossible shape"),
        (of_first_tensor(shape=["2", 3]), "conv.weight: impossible shape"),
        (of_first_tensor(shape=[1] * 9), "conv.weight: impossible shape"),
        (of_first_tensor(shape=5), "TypeError"),
        (of_first_tensor(shape=[MAX_PARAMETERS + 1]), "more values than the limit of 2147483648"),
        (of_first_tensor(shape=[1 << 16, 1 << 16]), "more values than the limit"),
        (of_first_tensor(shape=[MAX_PARAMETERS]), "2147483656 values are more than the limit"),
        (of_first_tensor(init={"rule": "magic", "scale": "0x0.0p+0"}), "unknown initialisation"),
        (of_first_tensor(init={"rule": "normal", "scale": "-0x1.0p+0"}), "unknown initialisation"),
        (of_first_tensor(init={"rule": "normal", "scale": "inf"}), "unknown initialisation"),
        (of_first_tensor(init={"rule": "normal", "scale": "nan"}), "unknown initialisation"),
        (of_first_tensor(init={"rule": "normal", "scale": "0x1p9999"}), "OverflowError"),
        (of_first_tensor(init={"rule": "normal", "scale": 0.1}), "TypeError"),
        (of_first_tensor(init={"rule": "normal", "scale": "0x1p-4"}), "not in canonical form"),
        (of_first_tensor(init={"rule": "normal"}), "KeyError: 'scale'"),
        (CANONICAL + b"\n", "not in canonical form"),
        (CANONICAL.replace(b'"format":1', b'"format": 1'), "not in canonical form"),
        (CANONICAL.replace(b'"format":1', b'"format":1.0'), "not in canonical form"),
        (CANONICAL.replace(b"toy", "t\u00f6y".encode()), "not in canonical form"),
        (b" " * (MAX_MANIFEST_BYTES + 1), "1048577 bytes are more than 1048576"),
    ],
)
def test_every_way_to_be_wrong_is_refused_with_its_reason(text: bytes, message: str) -> None:
    assert message in refusal(text)


def test_a_refusal_is_short_for_any_text() -> None:
    number = "1" * 4000
    wild = of_first_tensor(shape=[int(number)] * 8)
    assert len(refusal(wild)) < 200


@given(st.binary(max_size=200))
def test_any_bytes_are_a_manifest_or_a_manifest_error(text: bytes) -> None:
    with contextlib.suppress(ManifestError):
        Manifest.from_json(text)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
PLACES = st.sampled_from(
    [("format",), ("model",), ("tensors",), ("tensors", 0)]
    + [("tensors", 0, key) for key in ("dtype", "init", "name", "role", "shape")]
    + [("tensors", 0, "shape", 0), ("tensors", 0, "init", "rule"), ("tensors", 0, "init", "scale")]
)


@given(PLACES, JSON_VALUES)
def test_anything_in_any_place_is_a_manifest_or_a_manifest_error(
    place: tuple[str | int, ...], value: object
) -> None:
    document = json.loads(CANONICAL)
    holder: Any = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    try:
        manifest = Manifest.from_json(canonical(document))
    except ManifestError:
        return
    assert manifest.json == canonical(document)


def test_data_of_another_shape_come_before_the_tensors_they_change(manifest: Manifest) -> None:
    run = Manifest(manifest.tensors, {"input_shape": [1, 8, 8], "num_classes": 3})
    theirs = {"input_shape": [1, 10, 10], "num_classes": 5}
    other = Manifest(run.tensors[:1], theirs)
    expected = "samples of 1x10x10 here, 1x8x8 in the run; 5 classes here, 3 in the run"
    assert run.first_difference(other) == run.data_difference(theirs) == expected
    assert run.data_difference({**theirs, "input_shape": [1, 8, 8]}).startswith("5 classes")
    assert run.data_difference(run.model) == run.data_difference({}) == ""


@pytest.mark.parametrize("shape", ["\x1b[2J", {"a": 1}, ["\n"], [True], 3, None])
def test_an_invalid_shape_in_a_description_is_not_quoted(manifest: Manifest, shape: object) -> None:
    run = Manifest(manifest.tensors, {"input_shape": [1, 8, 8], "num_classes": 3})
    assert run.data_difference({"input_shape": shape, "num_classes": shape}) == ""


def test_a_model_of_exactly_the_limit_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PARAMETERS", 14)
    Manifest.from_json(CANONICAL)
    monkeypatch.setattr(module, "MAX_PARAMETERS", 13)
    assert refusal(CANONICAL) == "14 values are more than the limit of 13"


def changed(manifest: Manifest, index: int, spec: TensorSpec) -> Manifest:
    tensors = list(manifest.tensors)
    tensors[index] = spec
    return Manifest(tuple(tensors), manifest.model)


def test_the_first_difference_names_the_tensor_on_both_sides(manifest: Manifest) -> None:
    other = changed(manifest, 1, TensorSpec("conv.bias", (3,), Role.DENSE, ZEROS))
    assert manifest.first_difference(other) == (
        "tensor 1: conv.bias (3, dense, starts zeros) instead of conv.bias (2, dense, starts zeros)"
    )


def test_another_initial_value_is_a_difference(manifest: Manifest) -> None:
    other = changed(
        manifest, 0, TensorSpec("conv.weight", (2, 3), Role.MASKED, Init("normal", 0.25))
    )
    assert manifest.first_difference(other) == (
        "tensor 0: conv.weight (2x3, masked, starts normal 0.25) "
        "instead of conv.weight (2x3, masked, starts normal 0.1)"
    )


def test_initial_values_can_be_left_out_of_the_comparison(manifest: Manifest) -> None:
    sent = TensorSpec("conv.weight", (2, 3), Role.MASKED, Init("sent"))
    other = changed(manifest, 0, sent)
    assert manifest != other
    assert manifest.same_except_init(other) and other.same_except_init(manifest)
    assert manifest.same_except_init(manifest)
    wider = changed(other, 1, TensorSpec("conv.bias", (3,), Role.DENSE, ZEROS))
    dense = changed(other, 3, TensorSpec("fc.weight", (2, 2), Role.DENSE, Init("uniform", 0.5)))
    shorter = Manifest(other.tensors[:3], other.model)
    for changed_model in (wider, dense, shorter, Manifest(other.tensors, {"name": "other"})):
        assert not manifest.same_except_init(changed_model)
    assert manifest.first_difference(wider, rules=False).startswith("tensor 1: conv.bias (3,")


def test_descriptions_that_python_takes_for_equal_differ_as_their_digests_do(
    manifest: Manifest,
) -> None:
    one, true = (Manifest(manifest.tensors, {"width": width}) for width in (1, True))
    assert one.digest != true.digest
    assert one.first_difference(true) == "the model's description: width True instead of 1"
    assert not one.same_except_init(true)


def test_a_missing_and_an_extra_tensor_are_named(manifest: Manifest) -> None:
    shorter = Manifest(manifest.tensors[:3], manifest.model)
    assert manifest.first_difference(shorter) == (
        "missing tensor fc.weight (2x2, masked, starts uniform 0.5)"
    )
    assert shorter.first_difference(manifest) == (
        "extra tensor fc.weight (2x2, masked, starts uniform 0.5)"
    )


def test_another_description_of_the_model_is_the_last_difference(manifest: Manifest) -> None:
    other = Manifest(manifest.tensors, {"name": "other"})
    assert manifest.first_difference(other) == (
        "the model's description: name other instead of toy"
    )
    assert manifest.first_difference(Manifest.from_json(CANONICAL)) == ""
