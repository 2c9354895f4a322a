"""What is shipped for running it elsewhere: that the files parse, agree with each other and name only what exists."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.app import DRAIN_SECONDS
from gateway.config.load import parse
from gateway.model import Config
from gateway.observe.metrics import FAMILIES, MetricType

DEPLOY = Path("deploy")
DASHBOARDS = sorted(Path("grafana/dashboards").glob("*.json"))
OTHERS = {"up"}
PROCESS = re.compile(r"process_\w+|python_\w+")


def exported() -> set[str]:
    """Every name a query may use."""
    names = set()
    for family in FAMILIES:
        names |= (
            {f"{family.name}_{suffix}" for suffix in ("bucket", "sum", "count")}
            if family.kind is MetricType.HISTOGRAM
            else {family.exported}
        )
    return names


def labels() -> set[str]:
    return {label for family in FAMILIES for label in family.labels} | {"le", "instance", "job", "generation"}


def expressions() -> Iterator[tuple[str, str]]:
    """(where, expression) of every panel, variable and alert."""
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.name}: {panel['title']}", target["expr"]
        for variable in board["templating"]["list"]:
            yield f"{path.name}: ${variable['name']}", variable["definition"]
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]


EXPRESSIONS = list(expressions())


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_an_expression_names_only_metrics_and_labels_that_are_exported(where: str, expression: str) -> None:
    names = set(re.findall(r"\b(?:gateway|process|python)_\w+|\bup\b", expression))
    assert names
    assert {name for name in names if not PROCESS.fullmatch(name)} <= exported() | OTHERS
    used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
    for clause in re.findall(r"\bby \(([^)]*)\)", expression):
        used |= {label.strip() for label in clause.split(",") if label.strip()}
    assert used <= labels()


def test_every_family_is_on_some_dashboard_or_alert() -> None:
    text = " ".join(expression for _, expression in EXPRESSIONS)
    assert [family.exported for family in FAMILIES if family.name not in text] == []


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_is_whole(path: Path) -> None:
    board: dict[str, Any] = json.loads(path.read_text())
    assert board["uid"].startswith("gateway-")
    source = yaml.safe_load(Path("grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0][
        "uid"
    ]
    identities = [panel["id"] for panel in board["panels"]]
    assert len(identities) == len(set(identities))
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == source
            assert panel["targets"]
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert set(re.findall(r"\$(\w+)", path.read_text())) - {"__all", "__rate_interval"} == variables


@pytest.mark.parametrize(
    "path",
    [
        Path("routes.yaml"),
        DEPLOY / "gateway.yaml",
        DEPLOY / "kafka/gateway.yaml",
        DEPLOY / "kubernetes/routes.yaml",
        DEPLOY / "kubernetes/kafka/routes.yaml",
    ],
    ids=str,
)
def test_a_shipped_configuration_is_good(path: Path, tmp_path: Path) -> None:
    config = shipped(path, tmp_path)
    assert {"blipmq", "felix", "flymq", "flymq-stock", "fujin"} <= set(config.listeners)


def shipped(path: Path, directory: Path) -> Config:
    """A configuration as a container reads it, with its secrets in a directory of the test."""
    for name in ("admin-token", "blipmq-keys", "tls.crt", "tls.key"):
        (directory / name).write_text("secret\n")
    text = path.read_text().replace("/run/secrets/gateway", str(directory))
    return parse(
        text, str(path), {"NAMESPACE": "default", "GATEWAY": "gateway-1", "POD": "gateway-1", "POD_IP": "10.0.0.1"}
    )


def served(directory: Path) -> set[tuple[int, str]]:
    """(port, protocol) of what a container serves."""
    udp = {"felix", "fujin"}
    config = shipped(DEPLOY / "gateway.yaml", directory)
    assert config.admin is not None
    found = {(each.port, "udp" if set(each.protocols) & udp else "tcp") for each in config.listeners.values()}
    return found | {(config.admin.port, "tcp")}


@pytest.fixture
def ports(tmp_path: Path) -> set[tuple[int, str]]:
    return served(tmp_path)


def test_the_image_exposes_what_its_configuration_serves(ports: set[tuple[int, str]]) -> None:
    line = re.search(r"^EXPOSE (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert line is not None
    assert {(int(port), kind) for port, kind in (each.split("/") for each in line[1].split())} == ports


def test_the_image_installs_from_the_lock_and_runs_as_nobody_special() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert "--require-hashes -r deploy/locks/image.txt" in text
    assert re.search(r"^USER (?!0\b|root\b)\S+", text, re.MULTILINE)


def admitted(path: str) -> bool:
    """Whether the image's build sees a path: the last pattern that matches it, or a folder above it, decides."""
    seen = True
    for pattern in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines():
        name = pattern.removeprefix("!")
        if name in ("*", path) or path.startswith(f"{name}/"):
            seen = pattern.startswith("!")
    return seen


def test_the_image_is_built_from_files_that_are_there_and_that_its_build_sees() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    sources = [
        source for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for source in line.split()[:-1]
    ]
    assert {"gateway", "pyproject.toml", "deploy/gateway.yaml", "deploy/locks/image.txt"} <= set(sources)
    assert [source for source in sources if not Path(source).exists()] == []
    assert [source for source in sources if not admitted(source)] == []
    assert not admitted("tests")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["gateway"]["build"]
    context = DEPLOY / compose["context"]
    assert (context / compose["dockerfile"]).samefile(DEPLOY / "Dockerfile")


def test_a_container_may_write_where_its_configuration_writes_and_nowhere_else(tmp_path: Path) -> None:
    config = shipped(DEPLOY / "gateway.yaml", tmp_path)
    text = (DEPLOY / "Dockerfile").read_text()
    (volume,) = re.findall(r"^VOLUME (\S+)$", text, re.MULTILINE)
    assert Path(config.storage.path).is_relative_to(volume)
    (served,) = re.findall(r"^COPY deploy/gateway.yaml (\S+)$", text, re.MULTILINE)
    assert f'"--config", "{served}"' in text
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["gateway"]
    assert service["read_only"]
    assert [one for one in service["volumes"] if one.endswith(f":{volume}")]


def test_compose_publishes_them_and_prometheus_scrapes_the_admin_port(ports: set[tuple[int, str]]) -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    published = set()
    for entry in services["gateway"]["ports"]:
        _, _, rest = entry.rpartition(":")
        port, _, kind = rest.partition("/")
        published.add((int(port), kind or "tcp"))
    assert published == ports
    scrape = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"][0]
    assert scrape["static_configs"][0]["targets"] == ["gateway:9600"]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source


def test_kubernetes_runs_one_writer_and_probes_it(ports: set[tuple[int, str]]) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes/gateway.yaml").read_text()))
    by_kind = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    workload = by_kind["StatefulSet", "gateway"]["spec"]
    assert workload["replicas"] == 1, "the log has one writer"
    (container,) = workload["template"]["spec"]["containers"]
    named = {(port["containerPort"], port.get("protocol", "TCP").lower()): port["name"] for port in container["ports"]}
    assert set(named) == ports
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "admin"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}
    for service in ("gateway", "gateway-admin"):
        for port in by_kind["Service", service]["spec"]["ports"]:
            assert named[port["port"], port.get("protocol", "TCP").lower()] == port["targetPort"]
    monitor = yaml.safe_load((DEPLOY / "kubernetes/monitor.yaml").read_text())["spec"]
    admin = by_kind["Service", "gateway-admin"]
    assert monitor["selector"]["matchLabels"] == admin["metadata"]["labels"]
    (scraped,) = monitor["endpoints"]
    assert scraped["port"] in {port["name"] for port in admin["spec"]["ports"]}
    files = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    assert all((DEPLOY / "kubernetes" / name).exists() for name in files["resources"])


def test_whoever_scrapes_or_reads_the_admin_address_has_the_token_that_the_gateway_asks_for() -> None:
    """By the name of the file, or of the secret and its key."""
    for path in ("gateway.yaml", "kubernetes/routes.yaml"):
        asked = yaml.safe_load((DEPLOY / path).read_text())["admin"]["token_file"]
        assert asked == "/run/secrets/gateway/admin-token"
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    scrape = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"][0]
    for name, file in (("gateway", asked), ("prometheus", scrape["authorization"]["credentials_file"])):
        mounted = {one["target"]: one["source"] for one in services["services"][name]["secrets"]}
        assert mounted[file] == "admin-token"
        assert set(mounted.values()) <= set(services["secrets"])
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes/gateway.yaml").read_text()))
    (workload,) = (one for one in documents if one["kind"] == "StatefulSet")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == "/run/secrets/gateway")
    (volume,) = (one for one in workload["spec"]["template"]["spec"]["volumes"] if one["name"] == mount["name"])
    secret = volume["secret"]["secretName"]
    monitor = yaml.safe_load((DEPLOY / "kubernetes/monitor.yaml").read_text())["spec"]["endpoints"][0]
    assert monitor["authorization"]["credentials"] == {"name": secret, "key": "admin-token"}
    job = next(yaml.safe_load_all((DEPLOY / "spark/kubernetes.yaml").read_text()))
    (archive,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    (token,) = (one["valueFrom"]["secretKeyRef"] for one in archive["env"] if one["name"] == "GATEWAY_TOKEN")
    assert token == {"name": secret, "key": "admin-token"}


def listening(config: Config) -> dict[str, tuple[str, ...]]:
    return {name: each.protocols for name, each in config.listeners.items()}


def test_several_gateways_serve_what_one_does_and_share_a_log(tmp_path: Path) -> None:
    one = shipped(DEPLOY / "gateway.yaml", tmp_path)
    assert one.storage.kafka is None
    for path in ("kafka/gateway.yaml", "kubernetes/kafka/routes.yaml"):
        several = shipped(DEPLOY / path, tmp_path)
        assert listening(several) == listening(one)
        assert several.routes == one.routes
        assert several.storage.kafka is not None
        assert several.storage.kafka.replication == 1, "there is one broker"
        assert several.cluster.id == "gateway-1"


def test_compose_has_three_gateways_a_broker_and_who_scrapes_them(tmp_path: Path) -> None:
    services = yaml.safe_load((DEPLOY / "kafka/compose.yaml").read_text())["services"]
    gateways = [name for name in services if name.startswith("gateway")]
    assert len(gateways) == 3
    published: list[str] = []
    for name in gateways:
        service = services[name]
        inside = {entry.rpartition(":")[2] for entry in service["ports"]}
        assert {(int(port), kind or "tcp") for port, _, kind in (one.partition("/") for one in inside)} == served(
            tmp_path
        )
        published += [
            entry.rpartition(":")[0] + entry.partition("/")[1] + entry.partition("/")[2] for entry in service["ports"]
        ]
        assert service["environment"]["GATEWAY"] == name
        assert service["read_only"]
        context = DEPLOY / "kafka" / service["build"]["context"]
        assert (context / service["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
        (mounted,) = [one for one in service["volumes"] if one.startswith(".")]
        assert (DEPLOY / "kafka" / mounted.split(":")[0]).is_file()
        assert f"COPY deploy/gateway.yaml {mounted.split(':')[1]}" in (DEPLOY / "Dockerfile").read_text()
    assert len(set(published)) == len(published)
    volumes = [services[name]["volumes"][1].split(":")[0] for name in gateways]
    assert len(set(volumes)) == 3
    config = shipped(DEPLOY / "kafka/gateway.yaml", tmp_path)
    assert config.storage.kafka is not None
    assert config.storage.kafka.brokers == (("kafka", 9092),)
    assert services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://kafka:9092"
    command = services["prometheus"]["command"][0]
    scrape = yaml.safe_load((DEPLOY / "prometheus" / Path(command.partition("=")[2]).name).read_text())[
        "scrape_configs"
    ][0]
    assert scrape["static_configs"][0]["targets"] == [f"{name}:9600" for name in gateways]
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "kafka" / source).exists(), source


def test_kubernetes_replaces_three_gateways_one_by_one(tmp_path: Path) -> None:
    folder = DEPLOY / "kubernetes/kafka"
    files = yaml.safe_load((folder / "kustomization.yaml").read_text())
    documents = [one for name in files["resources"] for one in yaml.safe_load_all((folder / name).read_text())]
    by_kind = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    workload = by_kind["Deployment", "gateway"]["spec"]
    assert workload["replicas"] == 3
    assert workload["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    budget = by_kind["PodDisruptionBudget", "gateway"]["spec"]
    assert 0 < budget["minAvailable"] < workload["replicas"], "or no node could ever be drained"
    labels = workload["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"] == workload["selector"]["matchLabels"] == labels
    pod = workload["template"]["spec"]
    (container,) = pod["containers"]
    named = {(port["containerPort"], port.get("protocol", "TCP").lower()): port["name"] for port in container["ports"]}
    assert set(named) == served(tmp_path) | {(7800, "tcp")}
    for service in ("gateway", "gateway-admin"):
        for port in by_kind["Service", service]["spec"]["ports"]:
            assert named[port["port"], port.get("protocol", "TCP").lower()] == port["targetPort"]
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > waits + DRAIN_SECONDS
    config = shipped(folder / "routes.yaml", tmp_path)
    assert config.storage.kafka is not None
    link = config.storage.kafka.link
    assert link.bind is not None
    assert named[link.bind[1], "tcp"] == "link"
    ((host, port),) = config.storage.kafka.brokers
    broker = by_kind["StatefulSet", "kafka"]["spec"]
    environment = {one["name"]: one["value"] for one in broker["template"]["spec"]["containers"][0]["env"]}
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{host}:{port}"
    assert host == f"kafka-0.{broker['serviceName']}"
    assert by_kind["Service", broker["serviceName"]]["spec"]["selector"] == broker["selector"]["matchLabels"]
    alone = next(yaml.safe_load_all((DEPLOY / "kubernetes/gateway.yaml").read_text()))["spec"]["template"]["spec"]
    assert container["securityContext"] == alone["containers"][0]["securityContext"]
    assert pod["securityContext"] == alone["securityContext"]


def test_the_unit_checks_before_it_serves_and_gives_time_to_drain() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd/gateway.service")
    service = unit["Service"]
    assert service["ExecStartPre"].split()[1:] == ["check", "/etc/gateway/routes.yaml"]
    assert int(service["TimeoutStopSec"]) > 10
    assert service["ProtectSystem"] == "strict"
