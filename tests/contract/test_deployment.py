"""What compose and Kubernetes start is what the code has: services, settings, broker users, files."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import AliasChoices
from pydantic_settings import BaseSettings

from runlane.audit_sink.follow_settings import BrokerLogSettings
from runlane.cli.provision import provision
from runlane.hosting.api_keys import ApiKeyAuthorizer
from runlane.hosting.nats_server import find_binary
from runlane.hosting.settings import CommonSettings
from runlane.object_store.settings import client_options
from runlane.object_store.store import RETRY_TIMEOUT
from runlane_contracts.access import broker_users
from runlane_contracts.streams import Layout

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
SERVICES = sorted(
    path.parent.name for path in (ROOT / "services" / "runlane").glob("*/__main__.py") if path.parent.name != "cli"
)
USERS = {user.name for user in broker_users(Layout())}
SECRETS = {
    ("runlane-secrets", "cursor-keys"): "k1:" + "ab" * 32,
    ("runlane-secrets", "api-keys"): "acme:rlk_acme_1",
    ("runlane-secrets", "audit-signing-key"): "ab" * 32,
    ("runlane-secrets", "read-store-url"): "postgresql://runlane:secret@postgres/runlane",
    ("runlane-secrets", "object-store-url"): "s3://runlane/runlane",
    **{("runlane-nats-users", user): f"p{user}" for user in USERS},
}

Environment = dict[str, str]


# -- what is deployed ------------------------------------------------------------------------------------------


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def manifests(folder: Path) -> Iterator[dict[str, Any]]:
    """Everything that `kubectl kustomize` would put together, without being changed by it."""
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        path = folder / name
        if path.is_dir():
            yield from manifests(path)
        else:
            yield from yaml.safe_load_all(path.read_text())


OBJECTS = list(manifests(K8S / "base"))


def objects(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in OBJECTS if one["kind"] == kind}


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    return workload["spec"]["template"]


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_of(workload)["spec"]["containers"]
    return container


def environment_of(container: dict[str, Any]) -> Environment:
    """As the kubelet would make it; secrets as the README says to make them."""
    found: Environment = {}
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            found |= objects("ConfigMap")[source["configMapRef"]["name"]]["data"]
    for variable in container.get("env", ()):
        if "value" in variable:
            found[variable["name"]] = variable["value"]
        elif "secretKeyRef" in variable["valueFrom"]:
            secret = variable["valueFrom"]["secretKeyRef"]
            found[variable["name"]] = SECRETS[secret["name"], secret["key"]]
    return found


def deployed(service: str) -> dict[str, Environment]:
    """The environment of a service, by where it is deployed."""
    return {
        "compose": {name: str(value) for name, value in compose()[service]["environment"].items()},
        "k8s": environment_of(container_of(objects("Deployment")[service.replace("_", "-")])),
    }


OBJECT_STORE_USERS = ("retention", "projector", "edge_gateway", "command_gateway")
EVERYWHERE = [(service, where) for service in SERVICES for where in ("compose", "k8s")]


# -- what the code knows ---------------------------------------------------------------------------------------


def settings_class(service: str) -> type[BaseSettings]:
    module = importlib.import_module(f"runlane.{service}.settings")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, BaseSettings) and value.__module__ == module.__name__
    )
    return found


def variables(settings: type[BaseSettings]) -> set[str]:
    """Every variable a settings class reads, with those of the classes inside it."""
    names: set[str] = set()
    for name, field in settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseSettings):
            names |= variables(field.annotation)
        elif isinstance(field.validation_alias, AliasChoices):
            names |= {str(choice) for choice in field.validation_alias.choices if str(choice).isupper()}
        else:
            names.add(f"{settings.model_config['env_prefix']}{name}".upper())
    return names


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith("RUNLANE_"):
            monkeypatch.delenv(name)
    return monkeypatch


# -- services --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_is_deployed_as_the_program_it_is(service: str) -> None:
    assert compose()[service]["command"] == [f"runlane.{service}"]
    workload = objects("Deployment")[service.replace("_", "-")]
    assert container_of(workload)["args"] == [f"runlane.{service}"]


def test_nothing_else_is_deployed() -> None:
    assert set(compose()) == {*SERVICES, "nats", "postgres", "provision", "broker_log"}
    assert set(objects("Deployment")) == {service.replace("_", "-") for service in SERVICES}


@pytest.mark.parametrize(("service", "where"), EVERYWHERE)
def test_a_service_is_told_only_what_it_reads(service: str, where: str) -> None:
    told = {name for name in deployed(service)[where] if name.startswith("RUNLANE_")}
    assert told - variables(settings_class(service)) == set()


@pytest.mark.parametrize(("service", "where"), EVERYWHERE)
def test_a_service_is_told_all_that_it_needs(service: str, where: str, bare_environment: pytest.MonkeyPatch) -> None:
    for name, value in deployed(service)[where].items():
        bare_environment.setenv(name, value)
    settings: Any = settings_class(service)()
    common: CommonSettings = settings.common
    assert urlsplit(common.nats_url).hostname == "nats"
    assert (common.broker_user(service), bool(common.broker_password)) == (service, True)
    assert (common.health_host, common.health_port) == ("0.0.0.0", 9100)  # noqa: S104 - inside a container
    if hasattr(settings, "access"):
        assert settings.access.signing_keys()
        assert ApiKeyAuthorizer.of_settings(settings.access).principals
    if hasattr(settings, "read_store_url"):
        assert urlsplit(settings.read_store_url).scheme == "postgresql"
    if hasattr(settings, "http_host"):
        assert settings.http_host == "0.0.0.0"  # noqa: S104 - inside a container


@pytest.mark.parametrize("where", ["compose", "k8s"])
def test_provisioning_connects_as_the_operator(where: str, bare_environment: pytest.MonkeyPatch) -> None:
    job = container_of(objects("Job")["provision"])
    told = environment_of(job) if where == "k8s" else compose()["provision"]["environment"]
    assert (job["args"] if where == "k8s" else compose()["provision"]["command"]) == ["runlane.cli", "provision"]
    read = variables(CommonSettings) | {str(option.envvar) for option in provision.params if option.envvar}
    assert {name for name in told if name.startswith("RUNLANE_")} - read == set()
    for name, value in told.items():
        bare_environment.setenv(name, str(value))
    settings = CommonSettings()
    assert (settings.broker_user("operator"), bool(settings.broker_password)) == ("operator", True)


def test_the_nightly_pass_asks_as_the_operator(bare_environment: pytest.MonkeyPatch) -> None:
    job = objects("CronJob")["compact"]["spec"]["jobTemplate"]
    container = container_of(job)
    assert container["args"][:2] == ["runlane.cli", "compact"]
    for name, value in environment_of(container).items():
        bare_environment.setenv(name, str(value))
    settings = CommonSettings()
    assert (settings.broker_user("operator"), bool(settings.broker_password)) == ("operator", True)


def test_whoever_reads_archives_finds_those_that_retention_writes() -> None:
    for where in ("compose", "k8s"):
        urls = {deployed(service)[where].get("RUNLANE_OBJECT_STORE_URL") for service in OBJECT_STORE_USERS}
        assert len(urls - {None}) == 1 == len(urls), where


def test_all_parts_agree_on_the_layout(bare_environment: pytest.MonkeyPatch) -> None:
    """The filter must not look for streams that provisioning did not make."""
    read = {"RUNLANE_SUBJECT_ROOT", "RUNLANE_LOG_STREAMS", "RUNLANE_STREAM_REPLICAS", "RUNLANE_STREAM_MAX_BYTES"}
    assert read <= variables(CommonSettings)
    job = environment_of(container_of(objects("Job")["provision"]))
    for where, provisioned in (("compose", compose()["provision"]["environment"]), ("k8s", job)):
        for service in SERVICES:
            told = deployed(service)[where]
            assert {n: told.get(n) for n in read} == {n: provisioned.get(n) for n in read}, (where, service)
    assert int(job["RUNLANE_STREAM_REPLICAS"]) == objects("StatefulSet")["nats"]["spec"]["replicas"]


def test_addresses_name_what_is_there() -> None:
    ports = {name: {port["port"] for port in one["spec"]["ports"]} for name, one in objects("Service").items()}
    for service in SERVICES:
        for name, value in deployed(service)["k8s"].items():
            if name.endswith("_URL") and "STORE" not in name:
                where = urlsplit(value)
                assert where.port in ports[str(where.hostname)], name
        for name, value in deployed(service)["compose"].items():
            if name.endswith("_URL") and "OBJECT_STORE" not in name:
                assert urlsplit(value).hostname in compose(), name
    gateway = deployed("command_gateway")["compose"]["RUNLANE_COMMAND_GATEWAY_HTTP_PORT"]
    told = deployed("edge_gateway")["compose"]["RUNLANE_EDGE_COMMAND_GATEWAY_URL"]
    assert str(urlsplit(told).port) == gateway


# -- objects ---------------------------------------------------------------------------------------------------


def test_all_files_are_listed_and_there() -> None:
    for kustomization in K8S.rglob("kustomization.yaml"):
        text = yaml.safe_load(kustomization.read_text())
        listed = set(text["resources"])
        generated = {name for one in text.get("configMapGenerator", ()) for name in one["files"]}
        assert [name for name in listed | generated if not (kustomization.parent / name).exists()] == []
        beside = {path.name for path in kustomization.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert beside <= listed


def test_an_object_is_what_its_selectors_look_for() -> None:
    workloads = [*objects("Deployment").values(), *objects("StatefulSet").values()]
    labels = [pod_of(one)["metadata"]["labels"] for one in workloads]

    def selected(selector: dict[str, str]) -> list[int]:
        return [n for n, found in enumerate(labels) if selector.items() <= found.items()]

    for n, one in enumerate(workloads):
        assert selected(one["spec"]["selector"]["matchLabels"]) == [n]
    for one in objects("Service").values():
        (n,) = selected(one["spec"]["selector"])
        named = {port["name"]: port["containerPort"] for port in container_of(workloads[n])["ports"]}
        assert {port["targetPort"]: port["port"] for port in one["spec"]["ports"]}.items() <= named.items()
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for one in objects(kind).values():
            assert len(selected(one["spec"][key]["matchLabels"])) == 1, (kind, one["metadata"]["name"])


def test_probes_ask_where_the_service_answers() -> None:
    for name, workload in objects("Deployment").items():
        container = container_of(workload)
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        told = environment_of(container)
        assert str(named["health"]) == told["RUNLANE_HEALTH_PORT"]
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
        if "http" in named:
            assert str(named["http"]) in {value for key, value in told.items() if key.endswith("_HTTP_PORT")}, name


def test_a_pod_that_goes_is_routed_to_no_more_before_it_stops_and_has_the_time_to_stop() -> None:
    """Without the pause a rolling upgrade refuses those who are still sent to a gateway that has closed its door."""
    options = client_options("s3://bucket")
    assert options is not None
    # A process waits for a thread that asks a store which hangs: its last try may begin when the retries are over.
    hung_s = RETRY_TIMEOUT.total_seconds() + int(options["timeout"].removesuffix("s"))
    stops_s = 5 + max(hung_s, float(CommonSettings.model_fields["drain_deadline_s"].default))
    for name, workload in objects("Deployment").items():
        container, pause_s = container_of(workload), 0
        if "http" in {port["name"] for port in container["ports"]}:
            program, text = container["lifecycle"]["preStop"]["exec"]["command"]
            pause_s = int(text)
            assert (program, pause_s >= 5) == ("sleep", True), name
        given_s = pod_of(workload)["spec"]["terminationGracePeriodSeconds"]
        assert given_s >= pause_s + stops_s, name
    assert int(compose()["edge_gateway"]["stop_grace_period"].removesuffix("s")) >= stops_s


def test_only_probes_and_operators_reach_what_asks_for_no_password() -> None:
    for rule in objects("NetworkPolicy")["nats"]["spec"]["ingress"]:
        ports = {port["port"] for port in rule["ports"]}
        assert 8222 not in ports  # the monitor: who is connected, and to which subjects
        assert 6222 not in ports or rule["from"]


def test_the_image_holds_what_the_product_needs_in_the_versions_that_are_tested() -> None:
    """Nothing that only tests and tools need. To make it anew: `k8s/README.md`, Image."""
    tested = _pinned(ROOT / "requirements.lock")
    inside = _pinned(K8S / "images" / "requirements.lock")
    assert inside.items() <= tested.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(inside) == _needed([*project["project"]["dependencies"], *project["build-system"]["requires"]])


def _pinned(lock: Path) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", lock.read_text(), re.MULTILINE)
    return {str(canonicalize_name(name)): version for name, version in found}


def _needed(requirements: list[str]) -> set[str]:
    """All that these ask for, and what that asks for, of what is installed here."""
    found: set[tuple[str, str]] = set()
    todo = [Requirement(text) for text in requirements]
    while todo:
        one = todo.pop()
        name = str(canonicalize_name(one.name))
        for extra in {"", *one.extras}:
            if (name, extra) not in found:
                found.add((name, extra))
                wanted = (Requirement(text) for text in distribution(name).requires or ())
                todo += [
                    each
                    for each in wanted
                    if each.marker is None or each.marker.evaluate({"extra": extra, "python_version": "3.11"})
                ]
    return {name for name, _ in found}


def test_one_image_of_this_version_runs_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    ours = [*objects("Deployment").values(), *objects("Job").values()]
    images = {container_of(one)["image"] for one in ours} | {compose()[name]["image"] for name in SERVICES}
    assert images == {f"runlane:{version}"}


def test_containers_may_do_as_little_as_they_need() -> None:
    for one in [*objects("Deployment").values(), *objects("StatefulSet").values(), *objects("Job").values()]:
        pod, container = pod_of(one)["spec"], container_of(one)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert container["resources"]["limits"]["memory"]


def test_the_readme_says_how_to_make_every_secret() -> None:
    text = (K8S / "README.md").read_text()
    wanted = {
        (secret["name"], secret["key"])
        for one in [*objects("Deployment").values(), *objects("Job").values()]
        for variable in container_of(one)["env"]
        if (secret := variable.get("valueFrom", {}).get("secretKeyRef"))
    }
    assert wanted <= set(SECRETS)
    missing = [key for _, key in sorted(wanted) if not re.search(rf"\b{key}\b", text)]
    assert missing == []
    assert all(name in text for name, _ in wanted)


# -- the broker ------------------------------------------------------------------------------------------------


def test_the_broker_has_a_password_for_each_user() -> None:
    named = set(re.findall(r"\$RUNLANE_NATS_PASSWORD_(\w+)", (K8S / "nats" / "users.conf").read_text()))
    assert named == USERS
    assert set(compose()["nats"]["environment"]) == {f"RUNLANE_NATS_PASSWORD_{user}" for user in USERS}
    (source,) = container_of(objects("StatefulSet")["nats"])["envFrom"]
    assert (source["secretRef"]["name"], source["prefix"]) == ("runlane-nats-users", "RUNLANE_NATS_PASSWORD_")


def test_the_broker_configuration_is_not_stale() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNLANE_")}
    checked = subprocess.run(
        [sys.executable, K8S / "nats" / "render.py", "--check"],
        env={**environment, "PYTHONPATH": f"{ROOT / 'contracts'}{os.pathsep}{ROOT / 'services'}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("where", ["compose", "k8s"])
def test_what_the_broker_refuses_reaches_the_audit(where: str, bare_environment: pytest.MonkeyPatch) -> None:
    """Beside each broker its log is followed, where the broker writes it, by a user who may say that and no more."""
    if where == "compose":
        follower, conf, image = compose()["broker_log"], "single.conf", compose()["audit_sink"]["image"]
        told = {name: str(value) for name, value in follower["environment"].items()}
        program, mounts = follower["command"], (follower["volumes"], compose()["nats"]["volumes"])
        assert follower["user"] == "root"  # nobody else may read what the broker's container writes
        assert all("nats_log:/log" in mounted for mounted in mounts)
    else:
        pod = pod_of(objects("StatefulSet")["nats"])["spec"]
        (follower,) = pod["initContainers"]
        conf, image, program = "nats.conf", container_of(objects("Deployment")["audit-sink"])["image"], follower["args"]
        told = environment_of(follower)
        assert follower["restartPolicy"] == "Always"
        assert follower["securityContext"] == container_of(objects("StatefulSet")["nats"])["securityContext"]
        for container in (follower, container_of(objects("StatefulSet")["nats"])):
            assert {"name": "log", "mountPath": "/log"} in container["volumeMounts"]
    assert (program, follower["image"]) == (["runlane.audit_sink.follow"], image)
    assert {name for name in told if name.startswith("RUNLANE_")} <= variables(BrokerLogSettings)
    for name, value in told.items():
        bare_environment.setenv(name, value)
    settings = BrokerLogSettings()
    assert (settings.common.broker_user("x"), bool(settings.common.broker_password)) == ("broker_log", True)
    text = (K8S / "nats" / conf).read_text()
    assert f'log_file: "{settings.path}"' in text
    assert "logtime_utc: true" in text


@pytest.mark.parametrize("name", ["nats.conf", "single.conf"])
def test_a_server_takes_the_broker_configuration(name: str) -> None:
    passwords = {f"RUNLANE_NATS_PASSWORD_{user}": f"p{user}" for user in USERS}
    tested = subprocess.run(
        [find_binary(), "-t", "-c", K8S / "nats" / name],
        env={**os.environ, **passwords}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stderr
    assert "sync_interval: always" in (K8S / "nats" / name).read_text()


def test_compose_runs_the_broker_that_kubernetes_runs() -> None:
    assert compose()["nats"]["image"] == container_of(objects("StatefulSet")["nats"])["image"]
    mounted = {volume.split(":")[0] for volume in compose()["nats"]["volumes"] if volume.startswith("./")}
    assert [path for path in mounted if not (ROOT / path).exists()] == []
