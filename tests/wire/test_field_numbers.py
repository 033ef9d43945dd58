"""Names, numbers and types of all fields and enum values must equal those in tests/wire/golden.

A field that changes its number or type breaks every deployed client without a compile error. So a
change here is a change of the wire format: add lines, and never edit or remove one (put the number
of a removed field under `reserved` in the proto, and mark its line here).
"""

from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from ssfl.v1 import (
    admin_pb2,
    coordinator_pb2,
    mask_pb2,
    saliency_pb2,
    settings_pb2,
    transfer_pb2,
    update_pb2,
)

GOLDEN = Path(__file__).parent / "golden" / "v1-fields.txt"
FILES: list[FileDescriptor] = [
    *(admin_pb2.DESCRIPTOR, coordinator_pb2.DESCRIPTOR, mask_pb2.DESCRIPTOR),
    *(saliency_pb2.DESCRIPTOR, settings_pb2.DESCRIPTOR, transfer_pb2.DESCRIPTOR),
    update_pb2.DESCRIPTOR,
]
TYPES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}


def field_line(message: Descriptor, field: FieldDescriptor) -> str:
    repeated = "repeated " if field.is_repeated else ""
    kind = TYPES[field.type]
    named = field.message_type or field.enum_type
    return f"{message.name}.{field.name} = {field.number} {repeated}{named.name if named else kind}"


def enum_lines(enum: EnumDescriptor) -> Iterator[str]:
    yield from (f"{enum.name}.{value.name} = {value.number}" for value in enum.values)


def lines() -> Iterator[str]:
    for file in FILES:
        for message in file.message_types_by_name.values():
            if message.fields:
                yield from (field_line(message, field) for field in message.fields)
            else:
                yield f"{message.name} is empty"
        for enum in file.enum_types_by_name.values():
            yield from enum_lines(enum)
        for service in file.services_by_name.values():
            for rpc in service.methods:
                up = "stream " if rpc.client_streaming else ""
                down = "stream " if rpc.server_streaming else ""
                yield (
                    f"rpc {service.name}.{rpc.name}"
                    f"({up}{rpc.input_type.name}) returns ({down}{rpc.output_type.name})"
                )


def test_the_wire_format_is_unchanged() -> None:
    golden = GOLDEN.read_text().splitlines()
    assert len(golden) > 100, "the golden file is not the one that was stored"
    assert sorted(lines()) == golden
