"""`ssfl certs`: files that it writes, keeps and refuses to replace."""

import stat
from pathlib import Path

import pytest
from cryptography import x509

from ssfl.program.exits import ExitCode
from ssfl.program.tls.pem import CLIENT, SERVER, read_authorities, read_pair
from ssfl.tools.main import main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def certs(*arguments: str) -> None:
    assert main(["certs", *arguments]) == ExitCode.DONE


def hosts(file: str) -> list[str]:
    found = x509.load_pem_x509_certificate(Path(file).read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def test_the_programs_accept_the_ca_and_certificates(
    capsys: pytest.CaptureFixture[str],
) -> None:
    certs("--out", "c", "--host", "fl.example.org, 10.0.0.1", "ann", "shard_00")
    read_authorities(Path("c/ca.pem"), "--tls-ca")
    read_pair(Path("c/coordinator.pem"), Path("c/coordinator-key.pem"), SERVER)
    for name in ("admin", "ann", "shard_00"):
        assert read_pair(Path(f"c/{name}.pem"), Path(f"c/{name}-key.pem"), CLIENT).names == (name,)
    assert hosts("c/coordinator.pem") == [
        "localhost", "127.0.0.1", "::1", "fl.example.org", "10.0.0.1",
    ]  # fmt: skip
    keys = sorted(Path("c").glob("*-key.pem"))
    assert len(keys) == 5
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert stat.S_IMODE(Path("c").stat().st_mode) == 0o700
    output = capsys.readouterr().out
    assert (
        "ssfl-coordinator --host 0.0.0.0 --tls-ca c/ca.pem --tls-cert c/coordinator.pem "
        "--tls-key c/coordinator-key.pem"
    ) in output
    assert "--client-id ann --coordinator fl.example.org:50051 --tls-ca c/ca.pem" in output
    assert "ssfl status --tls-ca c/ca.pem --tls-cert c/admin.pem" in output


def test_the_existing_ca_signs_more_sites(capsys: pytest.CaptureFixture[str]) -> None:
    certs("ann")
    before = {file: file.read_bytes() for file in Path("certs").iterdir()}
    certs("ann", "bob")
    after = {file: file.read_bytes() for file in Path("certs").iterdir()}
    assert before.items() <= after.items()
    assert set(after) - set(before) == {Path("certs/bob.pem"), Path("certs/bob-key.pem")}
    assert capsys.readouterr().out.count("kept") == 4


def test_overwrite_renews_certificates_but_neither_the_ca_nor_its_hosts() -> None:
    certs("--host", "fl.example.org", "ann")
    before = {file.name: file.read_bytes() for file in Path("certs").iterdir()}
    certs("--overwrite", "--host", "b.example.org", "--days", "9", "ann")
    after = {file.name: file.read_bytes() for file in Path("certs").iterdir()}
    same = {name for name in before if before[name] == after[name]}
    assert same == {"ca.pem", "ca-key.pem"}
    assert hosts("certs/coordinator.pem")[3:] == ["fl.example.org", "b.example.org"]
    ends = x509.load_pem_x509_certificate(after["ann.pem"]).not_valid_after_utc
    begins = x509.load_pem_x509_certificate(after["ann.pem"]).not_valid_before_utc
    assert (ends - begins).days == 10  # valid since yesterday, because clocks differ


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a/b"], "'a/b' cannot be a client id"),
        (["-x"], "unknown flag -x"),
        (["admin"], "'admin' cannot be a site"),
        (["coordinator"], "'coordinator' cannot be a site"),
        (["ann-key"], "'ann-key' cannot be a site"),
        (["--host", "a b"], "--host: 'a b' is neither"),
        (["--host", "https://a"], "--host: 'https://a' is neither"),
        (["--days", "0", "ann"], "--days must be at least 1"),
        (["--out", "file"], "--out: file is not a folder"),
    ],
)
def test_invalid_names_and_flags_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    assert main(["certs", *arguments]) == ExitCode.USAGE
    assert words in capsys.readouterr().err
    assert not Path("certs").exists()


def test_a_folder_with_foreign_files_is_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    certs("ann")
    certs("--out", "other", "ann")
    key = Path("certs/ca-key.pem").read_bytes()
    wrong = {
        "is missing next to": None,
        "are not a CA of ssfl certs": b"x",
        "is not the key of": Path("other/ca-key.pem").read_bytes(),
    }
    for words, content in wrong.items():
        Path("certs/ca-key.pem").unlink(missing_ok=True)
        if content is not None:
            Path("certs/ca-key.pem").write_bytes(content)
        assert main(["certs", "bob"]) == ExitCode.BAD_DATA
        assert words in capsys.readouterr().err
    Path("certs/ca-key.pem").write_bytes(key)
    Path("certs/ann.pem").write_bytes(Path("other/ann.pem").read_bytes())
    assert main(["certs", "ann"]) == ExitCode.BAD_DATA
    assert "ann.pem exists, but was not signed by the CA of this folder" in capsys.readouterr().err
    assert main(["certs", "--host", "new.org"]) == ExitCode.BAD_DATA
    assert "coordinator.pem exists, but not for new.org" in capsys.readouterr().err
    assert not Path("certs/bob.pem").exists()
