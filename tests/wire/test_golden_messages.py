"""Whole messages as literal bytes, encoded and decoded, for clients in other languages."""

import pytest
from google.protobuf.message import Message

from ssfl.v1 import coordinator_pb2, mask_pb2, saliency_pb2, settings_pb2, transfer_pb2, update_pb2

DIGEST = bytes(range(32))
DIGEST_HEX = DIGEST.hex()

UPDATE = update_pb2.SparseUpdate(
    mask_digest=DIGEST,
    mask_epoch=1,
    base_digest=DIGEST,
    step=300,
    round_number=7,
    attempt=2,
    num_samples=150,
    values=transfer_pb2.Payload(
        encoding=transfer_pb2.ENCODING_VALUES_ONLY, num_bytes=12, digest=DIGEST
    ),
    base_evaluation=update_pb2.Evaluation(correct=8, total=10, loss_sum=4.0),
    personal_evaluation=update_pb2.Evaluation(correct=9, total=10, loss_sum=2.0),
    training_loss=0.5,
    work_s=1.5,
)
REFERENCE = bytes(range(32, 64))
REFERENCE_HEX = REFERENCE.hex()
CODED = transfer_pb2.Payload(
    encoding=transfer_pb2.ENCODING_REFERENCE,
    num_bytes=300,
    digest=DIGEST,
    reference_digest=REFERENCE,
)
CODED_HEX = f"080510ac021a20{DIGEST_HEX}2220{REFERENCE_HEX}"
GOLDEN: list[tuple[Message, str]] = [
    (
        transfer_pb2.Chunk(offset=65536, data=b"\x00\x00\x80\x3f", crc32=0x3DB1ECDC),
        "0880800412040000803f1ddcecb13d",
    ),
    (
        UPDATE,
        f"0a20{DIGEST_HEX}10011a20{DIGEST_HEX}20ac022807300238960142260801100c1a20{DIGEST_HEX}"
        "4a0d0808100a190000000000001040520d0809100a190000000000000040"
        "59000000000000e03f61000000000000f83f",
    ),
    (
        saliency_pb2.SaliencyReport(
            manifest_digest=DIGEST,
            initial_digest=DIGEST,
            step=1,
            num_samples=150,
            scores=transfer_pb2.Payload(
                encoding=transfer_pb2.ENCODING_DENSE, num_bytes=40, digest=DIGEST
            ),
            work_s=1.5,
        ),
        f"0a20{DIGEST_HEX}1220{DIGEST_HEX}18012096012a26080210281a20{DIGEST_HEX}31000000000000f83f",
    ),
    (
        mask_pb2.MaskBroadcast(mask_digest=DIGEST, mask_epoch=1, num_kept=4, all_kept=True),
        f"0a20{DIGEST_HEX}100118042001",
    ),
    (
        coordinator_pb2.SendUpdateRequest(
            caller=coordinator_pb2.Caller(run_id="r1", client_id="shard_07", session=3),
            chunk=transfer_pb2.Chunk(data=b"\x01", crc32=1),
        ),
        "0a100a027231120873686172645f303718031a081201011d01000000",
    ),
    (
        coordinator_pb2.SendUpdateResponse(
            receipt=transfer_pb2.Receipt(outcome=transfer_pb2.OUTCOME_ALREADY_ACCEPTED)
        ),
        "1a020802",
    ),
    (coordinator_pb2.SendUpdateResponse(grant=transfer_pb2.Grant(offset=128)), "1203088001"),
    (CODED, CODED_HEX),
    (
        update_pb2.SparseUpdate(mask_digest=DIGEST, values=CODED, coding_error=0.25),
        f"0a20{DIGEST_HEX}4249{CODED_HEX}a901000000000000d03f",
    ),
    (
        coordinator_pb2.ScoreTask(
            criterion="saliency",
            manifest_digest=DIGEST,
            initial_digest=REFERENCE,
            report_encoding=transfer_pb2.ENCODING_SCORES,
            num_coded=3000,
        ),
        f"0a0873616c69656e63791220{DIGEST_HEX}1a20{REFERENCE_HEX}280930b817",
    ),
    (
        coordinator_pb2.TrainTask(
            round_number=3,
            mask=mask_pb2.MaskBroadcast(
                mask_digest=DIGEST,
                mask_epoch=2,
                num_kept=10,
                mask=transfer_pb2.Payload(
                    encoding=transfer_pb2.ENCODING_BITMASK_SORTED,
                    num_bytes=9,
                    digest=DIGEST,
                    reference_digest=REFERENCE,
                ),
            ),
            base_digest=DIGEST,
            base=CODED,
            upload_granted=True,
            fraction_bits=36,
            value_bound=1024.0,
            update_encoding=transfer_pb2.ENCODING_INT8,
        ),
        f"08031a700a20{DIGEST_HEX}1002180a2a48080a10091a20{DIGEST_HEX}2220{REFERENCE_HEX}"
        f"2220{DIGEST_HEX}2a49{CODED_HEX}300138244100000000000090404807",
    ),
    (
        coordinator_pb2.JoinRequest(
            protocol_version=1,
            client_id="ann",
            encodings=[
                transfer_pb2.ENCODING_VALUES_ONLY,
                transfer_pb2.ENCODING_REFERENCE,
                transfer_pb2.ENCODING_BITMASK_SORTED,
            ],
        ),
        "08011203616e6e4a0301050a",
    ),
    (
        settings_pb2.RunSettings(
            scores="compact", value_type="int8", rounding="nearest", error_feedback=True
        ),
        "b20107636f6d70616374ba0104696e7438ca01076e656172657374d00101",
    ),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda message: type(message).__name__)
def test_a_message_is_these_bytes(message: Message, golden: str) -> None:
    assert message.SerializeToString(deterministic=True).hex() == golden


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda message: type(message).__name__)
def test_these_bytes_are_the_message(message: Message, golden: str) -> None:
    assert type(message).FromString(bytes.fromhex(golden)) == message


def test_the_header_of_an_update_is_small() -> None:
    """A round costs less than 250 bytes per client on top of the values."""
    request = coordinator_pb2.SendUpdateRequest(
        caller=coordinator_pb2.Caller(run_id="20250101-120000-abcdef", client_id="shard_07"),
        header=UPDATE,
    )
    assert request.ByteSize() < 250


def test_an_unknown_field_is_ignored() -> None:
    """A newer client may send more fields; known fields are still read."""
    grant = bytes.fromhex("088001") + bytes.fromhex("f207026869")  # field 126, "hi"
    assert transfer_pb2.Grant.FromString(grant).offset == 128
