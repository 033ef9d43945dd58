import ssfl.codec
from ssfl.codec import errors
from ssfl.codec.errors import CodecError


def test_every_error_is_drawn_in_the_tree_and_public() -> None:
    names = {error.__name__ for error in CodecError.__subclasses__()} | {"CodecError"}
    assert errors.__doc__ is not None
    for name in names:
        assert name in errors.__doc__
        assert name in ssfl.codec.__all__
