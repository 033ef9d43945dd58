"""The examples of docs/codec.md are run, and its tables are compared with the code."""

import doctest
import re
from pathlib import Path

from ssfl.codec.choose import ENCODINGS
from ssfl.codec.errors import CodecError

PAGE = Path(__file__).parents[2] / "docs" / "codec.md"


def test_every_example_prints_what_the_page_says() -> None:
    text = PAGE.read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == text.count("```") // 2 > 5, "a block is not executed"
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    output: list[str] = []
    result = doctest.DocTestRunner().run(examples, out=output.append)
    assert result.attempted > 20
    assert result.failed == 0, "".join(output)


def test_every_encoding_and_every_error_is_on_the_page() -> None:
    text = PAGE.read_text("utf-8")
    names = {*ENCODINGS, *(error.__name__ for error in CodecError.__subclasses__())}
    assert {name for name in names if f"| `{name}`" not in text and f", `{name}`" not in text} == (
        set()
    )
