"""What ships, started as it is shipped: the configuration and the arguments of the container files, Prometheus with its own.

Paths of a container are mapped into the test's directory, and ports to free ones; nothing else is changed.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
import yaml

from tests.integration.prometheus import eventually_listening, tool
from tests.integration.running import ports, process

DEPLOY = Path("deploy")
TOKEN = "the token of this test"
SECRETS = {"admin-token": TOKEN, "blipmq-keys": "one\ntwo"}
"""What the documents beside the files say has to be there."""
DEADLINE = 90.0


@attrs.frozen
class Container:
    """What a file says about a container that serves: its arguments, where its configuration comes from, what is mounted."""

    arguments: Sequence[str]
    config: Path
    config_at: str
    secrets_at: Mapping[str, str]
    """Path in the container to the secret's name."""
    environment: Mapping[str, str]


def of_compose() -> Container:
    """The service `gateway`: it has the image's own arguments, and the configuration that is copied into it."""
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["gateway"]
    assert not {"command", "entrypoint", "environment"} & set(service)
    image = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r'^ENTRYPOINT \["gateway"\]$', image, re.MULTILINE)
    (arguments,) = re.findall(r"^CMD (\[.*\])$", image, re.MULTILINE)
    ((source, target),) = re.findall(r"^COPY (deploy/\S+\.yaml) (\S+)$", image, re.MULTILINE)
    mounted = {one["target"]: one["source"] for one in service["secrets"]}
    return Container(json.loads(arguments), Path(source), target, mounted, {})


def of_kubernetes() -> Container:
    """The container of the stateful set, with the files of the config map."""
    documents = yaml.safe_load_all((DEPLOY / "kubernetes/gateway.yaml").read_text())
    (pod,) = (one["spec"]["template"]["spec"] for one in documents if one["kind"] == "StatefulSet")
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (made,) = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["configMapGenerator"]
    assert made["name"] == volumes["config"]["configMap"]["name"]
    (file,) = made["files"]
    fields = {"metadata.namespace": "shop"}
    return Container(
        container["args"],
        DEPLOY / "kubernetes" / file,
        f"{mounts['config']}/{file}",
        {f"{mounts['secrets']}/{name}": name for name in SECRETS},
        {one["name"]: fields[one["valueFrom"]["fieldRef"]["fieldPath"]] for one in container["env"]},
    )


def mapped(text: str, directory: Path) -> str:
    """Absolute paths of a container, in a directory."""
    return re.sub(r"(?<![\w.:/])/(?=(?:data|run|etc)/)", f"{directory}/", text)


def mount(container: Container, directory: Path) -> None:
    """Put the secrets and the configuration where the container finds them; its ports are free ones."""
    files = {path: f"{SECRETS[name]}\n" for path, name in container.secrets_at.items()}
    text = mapped(container.config.read_text(), directory)
    files[container.config_at] = re.sub(r'"0\.0\.0\.0:\d+"', '"127.0.0.1:0"', text)
    for path, content in files.items():
        at = Path(mapped(path, directory))
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(content)


@asynccontextmanager
async def started(container: Container, directory: Path) -> AsyncIterator[Mapping[str, int]]:
    """The gateway in that container; yields its ports."""
    mount(container, directory)
    arguments = [mapped(one, directory) for one in container.arguments]
    environment = [f"{name}={value}" for name, value in container.environment.items()]
    command = ["/usr/bin/env", *environment, sys.executable, "-m", "gateway", *arguments]
    async with process(command, lambda out: b"\nready\n" in out) as lines:
        yield ports(lines)


@pytest.mark.parametrize("container", [of_compose(), of_kubernetes()], ids=["compose", "kubernetes"])
async def test_a_container_serves_as_its_file_says(container: Container, tmp_path: Path) -> None:
    with trio.fail_after(DEADLINE):
        async with started(container, tmp_path) as port:
            assert set(port) == {"flymq", "flymq-stock", "blipmq", "felix", "fujin", "admin"}
            await admin_asks_for_the_token(port["admin"])
            await the_name_of_the_service_verifies(port["felix"], tmp_path / "data/log/self-signed.crt")
            key = ["--api-key", SECRETS["blipmq-keys"].splitlines()[1]]
            await gateway("pub", f"blipmq://127.0.0.1:{port['blipmq']}/greetings", *key, "--data", "hello")


async def admin_asks_for_the_token(port: int) -> None:
    async with httpx.AsyncClient(timeout=60, base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})).status_code == 200


async def the_name_of_the_service_verifies(port: int, certificate: Path) -> None:
    """As another container would reach it: by the service's name, trusting the certificate in the volume."""
    trust = ["--ca", str(certificate), "--server-name"]
    await gateway("pub", f"felix://127.0.0.1:{port}/greetings", "--data", "hello", *trust, "gateway")
    await gateway("pub", f"felix://127.0.0.1:{port}/greetings", "--data", "hello", *trust, "elsewhere", fails=True)


async def gateway(*arguments: str, fails: bool = False) -> None:
    command = [sys.executable, "-m", "gateway", *arguments]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert (done.returncode != 0) == fails, (arguments, done.stderr.decode())


async def test_prometheus_scrapes_with_the_shipped_configuration_and_the_token(tmp_path: Path) -> None:
    prometheus = await trio.to_thread.run_sync(tool, "prometheus")
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = free.getsockname()[1]
    with trio.fail_after(DEADLINE):
        async with started(of_compose(), tmp_path) as port:
            config = scraping(tmp_path, port["admin"])
            storage = f"--storage.tsdb.path={tmp_path / 'tsdb'}"
            address = f"--web.listen-address=127.0.0.1:{own}"
            async with process([str(prometheus), f"--config.file={config}", storage, address]):
                await eventually_listening(own)
                async with httpx.AsyncClient(timeout=60, base_url=f"http://127.0.0.1:{own}", trust_env=False) as client:
                    target = await scraped(client)
                    assert (target["health"], target["lastError"]) == ("up", "")
                    rules = (await client.get("/api/v1/rules")).json()["data"]["groups"]
                    assert [
                        rule["health"] for group in rules for rule in group["rules"] if rule["health"] == "err"
                    ] == []
                    assert rules


def scraping(directory: Path, port: int) -> Path:
    """The shipped folder of Prometheus, as it is mounted; the service's name is the gateway's place here."""
    folder = directory / "etc/prometheus"
    folder.mkdir(parents=True)
    for file in (DEPLOY / "prometheus").iterdir():
        (folder / file.name).write_text(
            mapped(file.read_text(), directory).replace("gateway:9600", f"127.0.0.1:{port}")
        )
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    (option,) = (one for one in services["prometheus"]["command"] if one.startswith("--config.file="))
    return Path(mapped(option.removeprefix("--config.file="), directory))


async def scraped(client: httpx.AsyncClient) -> Mapping[str, Any]:
    """The one target, once it was scraped: on a machine that is busy a scrape may take longer than Prometheus waits for it."""
    while True:
        with_answer = await client.get("/api/v1/targets")
        targets: Sequence[Mapping[str, Any]] = with_answer.json()["data"]["activeTargets"]
        if targets and targets[0]["health"] != "unknown" and "deadline exceeded" not in targets[0]["lastError"]:
            return targets[0]
        await trio.sleep(0.1)
