"""`gateway check` looks at what a configuration names: certificates, directories, and with `--live` ports and upstreams."""

from __future__ import annotations

import datetime as dt
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization

from gateway.cli import check
from gateway.store.database import Lock, StoreFiles
from gateway.transport.quic.certificates import make_self_signed

HEAD = "version: 1\nstorage: {path: %s}\nlisteners:\n"
NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)


def certificate(directory: Path, name: str, made: dt.datetime = NOW) -> tuple[Path, Path]:
    """PEM files of a certificate, valid for ten years from a day before, and of its key."""
    leaf, key = make_self_signed(now=made)
    files = directory / f"{name}.crt", directory / f"{name}.key"
    files[0].write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return files


def checked(directory: Path, text: str, *options: str, storage: str = "") -> tuple[int, Sequence[str]]:
    """Exit code and output of a check, without the file's name. `storage`: what is said there beside the path."""
    file = directory / "routes.yaml"
    file.write_text(HEAD % f"{directory}/data{storage}" + text)
    done = CliRunner().invoke(check.command, [str(file), *options], catch_exceptions=False)
    return done.exit_code, [line.removeprefix(f"{file}:") for line in done.stdout.splitlines()]


def test_certificates_and_keys_are_loaded_and_matched(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "good")
    _, other = certificate(tmp_path, "other")
    (tmp_path / "no.pem").write_text("no PEM")
    (tmp_path / "no.key").write_text("no key")

    def tls(cert: Path, key: Path, rest: str = "") -> str:
        return f"tls: {{cert: {cert}, key: {key}{rest}}}"

    code, lines = checked(
        tmp_path,
        f"  fits: {{protocol: flymq, bind: '127.0.0.1:0', {tls(cert, key)}}}\n"
        f"  quic: {{protocol: felix, bind: '127.0.0.1:0', {tls(cert, other)}}}\n"
        f"  nocert: {{protocol: flymq, bind: '127.0.0.1:0', {tls(tmp_path / 'no.pem', key)}}}\n"
        f"  nokey: {{protocol: flymq, bind: '127.0.0.1:0', {tls(cert, tmp_path / 'no.key')}}}\n"
        f"  noca: {{protocol: felix, bind: '127.0.0.1:0', {tls(cert, key, f', client_ca: {tmp_path}/no.pem')}}}\n"
        f"admin: {{bind: '127.0.0.1:0', {tls(cert, other)}}}\n"
        f"upstreams:\n  far: {{protocol: felix, address: 'h:1', {tls(cert, other)}}}\n"
        f"  bad: {{protocol: flymq, address: 'h:1', tls: {{ca: {tmp_path}/no.pem}}}}\n",
    )
    assert code == 1
    assert [line.split(": ")[:2] for line in lines] == [
        ["5", "listeners.quic.tls.key"],
        ["6", "listeners.nocert.tls.cert"],
        ["7", "listeners.nokey.tls.key"],
        ["8", "listeners.noca.tls.client_ca"],
        ["9", "admin.tls.key"],
        ["11", "upstreams.far.tls.key"],
        ["12", "upstreams.bad.tls.ca"],
    ]
    assert lines[0].endswith(f"the key does not belong to the certificate {cert}")


@pytest.mark.processes  # a start sets up the log of its whole process
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("  one: {{protocol: flymq, bind: '127.0.0.1:0', tls: {tls}}}\n", "listeners.one.tls"),
        ("  one: {{protocol: felix, bind: '127.0.0.1:0', tls: {tls}}}\n", "listeners.one.tls"),
        ("  one: {{protocol: flymq, bind: '127.0.0.1:0'}}\nadmin: {{bind: '127.0.0.1:0', tls: {tls}}}\n", "admin.tls"),
    ],
)
async def test_a_start_says_whose_certificate_it_cannot_use(tmp_path: Path, text: str, where: str) -> None:
    cert, _ = certificate(tmp_path, "one")
    _, other = certificate(tmp_path, "other")
    file = tmp_path / "routes.yaml"
    file.write_text(HEAD % f"{tmp_path}/data" + text.format(tls=f"{{cert: {cert}, key: {other}}}"))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
    ended = await trio.run_process(command, capture_stderr=True, check=False)
    said = ended.stderr.decode().splitlines()
    assert (ended.returncode, said) == (2, [f"gateway: {where}: the key does not belong to the certificate {cert}"])


def test_one_file_that_is_wrong_hides_nothing_of_another(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "good")
    _, other = certificate(tmp_path, "other")
    code, lines = checked(
        tmp_path,
        f"  a: {{protocol: flymq, bind: '127.0.0.1:0', tls: {{cert: {cert}, key: {other}, client_ca: {tmp_path}/none}}}}\n"
        f"  b: {{protocol: flymq, bind: '127.0.0.1:0', tls: {{cert: {key}, key: {cert}}}}}\n",
    )
    assert code == 1
    assert [line.split(": ", 2)[1] for line in lines] == [
        "listeners.a.tls.client_ca",
        "listeners.a.tls.key",
        "listeners.b.tls.cert",
        "listeners.b.tls.key",
    ]
    assert lines[2].endswith(f"there is no certificate in {key} (expected PEM)")


FORWARD = "{store: {topic: t}}, {forward: {upstream: far, address: a, accept_loss: all}}"


@pytest.mark.parametrize(
    ("bind", "address"),
    [
        ("127.0.0.1:4711", "127.0.0.1:4711"),
        ("127.0.0.1:4711", "localhost:4711"),
        ("localhost:4711", "127.0.0.1:4711"),
        ("127.0.0.1:4711", "[::ffff:127.0.0.1]:4711"),
        ("0.0.0.0:4711", "127.0.0.2:4711"),
        ("0.0.0.0:4711", "0.0.0.0:4711"),
        ("[::]:4711", "[::1]:4711"),
        ("0.0.0.0:4711", "me.example:4711"),
    ],
)
@pytest.mark.parametrize(
    "rest",
    [
        f"routes: [{{name: r, match: {{}}, to: [{FORWARD}]}}]",
        f"routes: [{{name: r, match: {{}}, to: [{FORWARD.replace('forward', 'mirror').replace(', accept_loss: all', '')}]}}]",
        "routes: [{name: r, match: {}, to: [{proxy: {upstream: far, address: a}}]}]",
        "",
    ],
    ids=["forward", "mirror", "proxy", "ingest"],
)
def test_an_upstream_that_is_this_gateway_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bind: str, address: str, rest: str
) -> None:
    ask = socket.getaddrinfo
    names = {"me.example": "127.0.0.1"}
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **rest: ask(names.get(host, host), *more, **rest))
    more = "" if rest else ", ingest: [{from: a, into: b}]"
    text = (
        f"  fly: {{protocol: flymq, bind: '{bind}'}}\n"
        f"upstreams: {{far: {{protocol: flymq, address: ['10.255.0.1:4711', '{address}']{more}}}}}\n{rest}\n"
    )
    code, lines = checked(tmp_path, text)
    what = f"upstreams.far.address: {address} is listener 'fly' of this gateway itself: "
    assert (code, len(lines)) == (1, 1)
    assert what in lines[0]


@pytest.mark.parametrize(
    ("protocol", "bind", "address"),
    [
        ("flymq", "127.0.0.1:4711", "127.0.0.1:4712"),
        ("flymq", "127.0.0.1:4711", "127.0.0.2:4711"),
        ("flymq", "0.0.0.0:4711", "192.0.2.1:4711"),
        ("flymq", "0.0.0.0:4711", "no-such-host.invalid:4711"),
        ("felix", "127.0.0.1:4711", "127.0.0.1:4711"),
    ],
)
def test_upstreams_that_are_somebody_else(tmp_path: Path, protocol: str, bind: str, address: str) -> None:
    text = (
        f"  fly: {{protocol: flymq, bind: '{bind}'}}\n"
        f"upstreams: {{far: {{protocol: {protocol}, address: '{address}', tls: system}}}}\n"
        f"routes: [{{name: r, match: {{}}, to: [{FORWARD}]}}]\n"
    )
    assert checked(tmp_path, text)[0] == 0


@pytest.mark.parametrize(
    ("source", "into", "sent", "said"),
    [
        ("orders", "orders", "{topic}", "'orders'"),
        ("far.*", "{1}", "far.{1}", "'far."),
        ("orders", "orders", "copies", ""),
        ("far.*", "near.{1}", "{topic}", ""),
    ],
)
def test_what_is_sent_to_where_it_is_pulled_from(tmp_path: Path, source: str, into: str, sent: str, said: str) -> None:
    code, lines = checked(
        tmp_path,
        "  fly: {protocol: flymq, bind: '127.0.0.1:0'}\n"
        f"upstreams: {{far: {{protocol: flymq, address: '192.0.2.1:1', ingest: [{{from: '{source}', into: '{into}'}}]}}}}\n"
        f"routes: [{{name: r, match: {{topic: '**'}}, to: [{{store: {{topic: '{{1}}'}}}}, "
        f"{{forward: {{upstream: far, address: '{sent}', accept_loss: all}}}}]}}]\n",
    )
    assert code == 0
    found = [line for line in lines if "upstreams.far.ingest[0].from: what is pulled from" in line]
    assert [said in line for line in found] == [True] * bool(said)


def test_a_missing_file_is_one_problem(tmp_path: Path) -> None:
    tls = f"tls: {{cert: {tmp_path}/c, key: {tmp_path}/k}}"
    code, lines = checked(tmp_path, f"  a: {{protocol: flymq, bind: '127.0.0.1:0', {tls}}}\n")
    assert (code, [line.split(": ")[1] for line in lines]) == (1, ["listeners.a.tls.cert", "listeners.a.tls.key"])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (NOW - 4000 * DAY, "has expired on "),
        (NOW + 3 * DAY, "is not valid before "),
        (NOW - 3640 * DAY, "expires on "),
    ],
)
def test_a_certificate_out_of_its_time_is_a_warning(tmp_path: Path, made: dt.datetime, said: str) -> None:
    cert, key = certificate(tmp_path, "old", made)
    code, lines = checked(
        tmp_path, f"  a: {{protocol: flymq, bind: '127.0.0.1:0', tls: {{cert: {cert}, key: {key}}}}}\n"
    )
    assert code == 0
    assert lines[0].startswith(f"4: listeners.a.tls.cert: {str(cert)!r} {said}")
    assert lines[0].endswith("(a warning)")
    assert lines[1].endswith("good (1 listener, 1 route)")


def test_where_no_store_can_be_is_a_problem(tmp_path: Path) -> None:
    fly = "  a: {protocol: flymq, bind: '127.0.0.1:0'}\n"
    assert checked(tmp_path, fly)[0] == 0
    assert not (tmp_path / "data").exists(), "a check changes nothing"
    (tmp_path / "data").write_text("a file")
    code, lines = checked(tmp_path, fly)
    assert code == 1
    assert lines[0].startswith("2: storage.path: cannot write to ")


def on_kafka(more: str = "") -> str:
    return f", kafka: {{brokers: ['192.0.2.1:9092']{more}}}"


def test_what_a_log_on_kafka_needs_here_is_looked_at(tmp_path: Path) -> None:
    fly = "  a: {protocol: flymq, bind: '127.0.0.1:0'}\n"
    cert, _ = certificate(tmp_path, "good")
    _, other = certificate(tmp_path, "other")
    (tmp_path / "no.pem").write_text("no PEM")
    for tls, key in ((f"ca: {tmp_path}/no.pem", "ca"), (f"cert: {cert}, key: {other}", "key")):
        code, lines = checked(tmp_path, fly, storage=on_kafka(f", tls: {{{tls}}}"))
        assert (code, [line.split(": ")[:2] for line in lines]) == (1, [["2", f"storage.kafka.tls.{key}"]])
    (tmp_path / "data").write_text("a file")
    code, lines = checked(tmp_path, fly, storage=on_kafka())
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith(f"2: storage.path: cannot write to '{tmp_path}/data': ")


def test_a_log_that_stays_behind_is_said(tmp_path: Path) -> None:
    fly = "  a: {protocol: flymq, bind: '127.0.0.1:0'}\n"
    files = StoreFiles(tmp_path / "data")
    files.directory.mkdir()
    files.database.touch()
    code, lines = checked(tmp_path, fly, storage=on_kafka())
    assert (code, len(lines)) == (0, 2)
    assert lines[0].startswith("2: storage.path: the log that is in this directory is not served any more: ")


def test_names_that_kafka_has_not_are_said(tmp_path: Path) -> None:
    text = (
        "  a: {protocol: flymq, bind: '127.0.0.1:0'}\n"
        "upstreams: {far: {protocol: flymq, address: '192.0.2.1:1'}}\n"
        "routes:\n"
        "  - name: r\n"
        "    match: {topic: 'a.*'}\n"
        "    to:\n"
        "      - {store: {topic: a.b}}\n"
        f"      - {{store: {{topic: {'x' * 247}}}}}\n"
        "      - {forward: {upstream: far, address: a, dead_letter: a_b, accept_loss: all}}\n"
        "  - {name: s, match: {}, to: [{store: {topic: '{topic}'}}, {store: {topic: a.b}}]}\n"
    )
    assert checked(tmp_path, text)[0] == 0
    code, lines = checked(tmp_path, text, storage=on_kafka())
    assert (code, [line.split(": ")[:2] for line in lines]) == (
        1,
        [["11", "routes[0].to[1].store.topic"], ["12", "routes[0].to[2].forward.dead_letter"]],
    )
    assert "at most 249 bytes" in lines[0]
    assert "'a.b'" in lines[1]


def test_nothing_of_a_bad_file_is_tried_that_could_not_be_read(tmp_path: Path) -> None:
    upstream = "upstreams: {far: {protocol: flymk, address: 'h:1'}, near: {protocol: flymq, address: [h]}}\n"
    code, lines = checked(tmp_path, f"  a: {{protocol: flymq, bind: here}}\n{upstream}", "--live")
    assert (code, len(lines)) == (1, 3)


def test_live_tries_the_ports(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.create_server(("127.0.0.1", 0)) as http,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(("127.0.0.1", 0))
        places = [f"127.0.0.1:{one.getsockname()[1]}" for one in (tcp, udp, http)]
        text = (
            f"  a: {{protocol: flymq, bind: '{places[0]}'}}\n"
            f"  b: {{protocol: felix, bind: '{places[1]}', tls: self-signed}}\n"
            "  c: {protocol: flymq, bind: '127.0.0.1:0'}\n"
            f"admin: {{bind: '{places[2]}'}}\n"
        )
        assert checked(tmp_path, text)[0] == 0
        code, lines = checked(tmp_path, text, "--live")
    assert code == 1
    keys = ("listeners.a", "listeners.b", "admin")
    assert [line.split(": ", 1)[1] for line in lines] == [
        f"{key}.bind: cannot bind {place}: Address already in use" for key, place in zip(keys, places, strict=True)
    ]


def test_live_sees_that_the_store_is_served(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    fly = "  a: {protocol: flymq, bind: '127.0.0.1:0'}\n"
    with Lock(StoreFiles(tmp_path / "data").lock):
        assert checked(tmp_path, fly)[0] == 0
        code, lines = checked(tmp_path, fly, "--live")
    assert (code, len(lines)) == (1, 1)
    assert "is served by another process" in lines[0]
    assert checked(tmp_path, fly, "--live")[0] == 0


def test_a_floor_that_does_not_count_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(1000 << 20, 0, 900 << 20))
    text = "  f: {protocol: flymq, bind: '127.0.0.1:0'}\n"
    code, lines = checked(tmp_path, text)
    assert (code, len(lines)) == (0, 1)  # the default says of itself that a small volume has less
    file = tmp_path / "routes.yaml"
    said = (
        "storage.free_space_floor: more than a twentieth of the volume, which has 1000 MiB: 50 MiB counts (a warning)"
    )
    for floor in ("512MiB", "1GiB"):  # what is written is meant, the default among it
        file.write_text(HEAD % f"{tmp_path}/data, free_space_floor: {floor}" + text)
        done = CliRunner().invoke(check.command, [str(file)], catch_exceptions=False)
        assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"{file}:2: {said}")
