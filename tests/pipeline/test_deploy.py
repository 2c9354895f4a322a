"""What is shipped for running jobs elsewhere says only what the commands understand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gateway.cli.pipeline import command

SPARK = Path("deploy/spark")
GATEWAY = Path("deploy/kubernetes/gateway.yaml")


def documents(path: Path) -> dict[tuple[str, str], Any]:
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(path.read_text())}


def test_the_cron_job_runs_a_command_that_exists_against_the_service_there_is() -> None:
    mine = documents(SPARK / "kubernetes.yaml")
    pod = mine["CronJob", "gateway-archive"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name, *arguments = container["args"]
    job = command.get_command(click.Context(command), name)
    assert job is not None
    given = job.make_context(name, list(arguments)).params
    service = re.fullmatch(r"http://([\w-]+):(\d+)", given["endpoint"])
    assert service is not None
    there = documents(GATEWAY)["Service", service[1]]
    assert [port["port"] for port in there["spec"]["ports"]] == [int(service[2])]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert str(given["to"]) in mounts.values()
    for volume in pod["volumes"]:
        assert volume["name"] in mounts
        if "persistentVolumeClaim" in volume:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in mine
    image = container["image"].split(":")[0]
    assert f"-t {image}" in (SPARK / "Dockerfile").read_text()


def test_the_image_installs_the_pipeline_from_its_lock_and_copies_what_there_is() -> None:
    text = (SPARK / "Dockerfile").read_text()
    assert "--require-hashes -r deploy/locks/pipeline.txt" in text
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        assert all(Path(source).exists() for source in line.split())
    assert re.search(r"^USER (?!0\b|root\b)\S+", text, re.MULTILINE)


def test_what_is_submitted_is_the_command() -> None:
    called = [sys.executable, SPARK / "job.py", "rollup", "--from", "/nowhere", "--to", "/nowhere"]
    with subprocess.Popen(called, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        _, err = running.communicate(timeout=120)
    assert running.returncode == 2
    assert err == "gateway: there is no store at /nowhere\n"
    jobs = re.search(r"which job: ([\w, ]+)", (SPARK / "submit.sh").read_text())
    assert jobs is not None
    assert set(jobs[1].split(", ")) == set(command.commands)


@pytest.mark.parametrize("name", sorted(command.commands))
def test_examples_in_the_help_are_understood(name: str) -> None:
    epilog = command.commands[name].epilog or ""
    lines = [line.strip() for line in epilog.splitlines() if line.strip().startswith(f"gateway pipeline {name}")]
    assert lines
    for line in lines:
        words = [word.replace("./archive", "/").replace("./data", "/") for word in shlex.split(line)[3:]]
        given = command.commands[name].make_context(name, words, resilient_parsing=True)
        assert not given.args
