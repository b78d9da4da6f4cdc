"""deploy/kubernetes: the chart, and the manifests that it renders to, against Kubernetes' schemas."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.main import get_command

from meadow.cli.main import app
from meadow.config.client_config import load_client_config
from meadow.config.server_config import load_server_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
CHART = FOLDER / "meadow"
HERE = Path(__file__).parent / "chart"
GOPATH = Path("/usr/share/gocode")
LIBRARIES = ("github.com/Masterminds/sprig", "sigs.k8s.io/yaml")
HELM, GO = shutil.which("helm"), shutil.which("go")
CAN_RENDER = HELM or (GO and all((GOPATH / "src" / each).is_dir() for each in LIBRARIES))
VERSIONS = ("1.25", "1.29", "1.33", "1.37")
"""Of Kubernetes: from the chart's kubeVersion on."""
RENDERED = ("server", "agent")

renders = pytest.mark.skipif(
    not CAN_RENDER,
    reason="helm, or apt-get install golang-go golang-github-masterminds-sprig-dev golang-k8s-sigs-yaml-dev",
)
Values = dict[str, Any]
SERVER: Values = {"server": {"host": "fl.example.org"}}
AGENT: Values = {"server": {"enabled": False}, "agent": {"enabled": True, "invitationSecret": "i"}}
CLIENT_TOML = '[apps]\nauto_approve = []\n\n[data]\npath = "/data"\n\n[policy]\nmin_cohort = 3\n'
VARIANTS: dict[str, Values] = {
    "server": SERVER,
    "agent": AGENT,
    "both": {**SERVER, "agent": AGENT["agent"]},
    "metrics": {
        "server": {
            **SERVER["server"],
            "otherHosts": ["10.0.0.7"],
            "config": "lease_s = 30.0\ncertificate_days = 3\n",
            "metrics": {"enabled": True, "serviceMonitor": True},
            "networkPolicy": {
                "clientsFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}],
                "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
                "egress": [{"ports": [{"port": 4318, "protocol": "TCP"}]}],
            },
        }
    },
    "plain server": {
        "image": {"repository": "registry.example.org/meadow", "tag": "1", "pullSecrets": ["pull"]},
        "server": {
            **SERVER["server"],
            "service": {"type": "ClusterIP", "annotations": {"a": "b"}},
            "storage": {"className": "fast", "size": "1Ti"},
            "networkPolicy": {"enabled": False},
            "podDisruptionBudget": {"enabled": False},
        },
    },
    "gpus": {
        "server": {"enabled": False},
        "agent": {
            **AGENT["agent"],
            "gpus": 2,
            "config": CLIENT_TOML,
            "data": {"claim": "images"},
            "networkPolicy": {"serverTo": [{"ipBlock": {"cidr": "192.0.2.1/32"}}]},
        },
    },
}


def render(folder: Path, values: Values, *, code: int = 0) -> str:
    """Render the chart, and return what it is, or what is said of values that it refuses."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    if HELM:
        command = [HELM, "template", "meadow", str(CHART), "--values", str(file)]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
    else:
        command = [*_renderer(), str(CHART), "meadow", "default", str(file)]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode == code, ran.stderr
    return ran.stdout if code == 0 else ran.stderr


@cache
def _renderer() -> list[str]:
    """Compile the small renderer, once."""
    assert GO is not None
    into = Path(os.environ.get("TMPDIR", "/tmp")) / f"meadow-chart-{os.getpid()}"
    environ = {
        **os.environ,
        "GO111MODULE": "off",
        "GOPATH": str(GOPATH),
        "GOFLAGS": "",
        "GOTOOLCHAIN": "local",
    }
    environ.setdefault("GOCACHE", str(into) + "-cache")
    command = [GO, "build", "-o", str(into), str(HERE / "render.go")]
    subprocess.run(command, check=True, env=environ)
    return [str(into)]


@pytest.fixture(scope="module", autouse=True)
def cleared() -> Iterator[None]:
    """Delete what was compiled."""
    yield
    into = Path(os.environ.get("TMPDIR", "/tmp")) / f"meadow-chart-{os.getpid()}"
    into.unlink(missing_ok=True)
    shutil.rmtree(str(into) + "-cache", ignore_errors=True)


def objects(text: str) -> list[dict[str, Any]]:
    """Return the objects of manifests."""
    return [each for each in yaml.safe_load_all(text) if each]


def committed(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file of deploy/kubernetes."""
    return objects((FOLDER / f"{name}.yaml").read_text())


def of_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the one object of a kind."""
    (one,) = [each for each in found if each["kind"] == kind]
    return one


def check(found: list[dict[str, Any]]) -> None:
    """Check objects against the schemas of Kubernetes' versions, strictly: no unknown field."""
    validate = pytest.importorskip("kubernetes_validate").validate
    for each in found:
        if each["kind"] != "ServiceMonitor":  # of the operator, not of Kubernetes
            for version in VERSIONS:
                validate(each, version, strict=True)


def merged(values: Values) -> Values:
    """Return the chart's values with others over them."""

    def over(under: Any, top: Any) -> Any:
        if not (isinstance(under, dict) and isinstance(top, dict)):
            return top
        return under | {key: over(under.get(key), value) for key, value in top.items()}

    return dict(over(yaml.safe_load((CHART / "values.yaml").read_text()), values))


def parse(arguments: list[str]) -> None:
    """Parse a command line of Meadow's, without running it."""
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(command.name, arguments)


def test_the_chart_is_of_this_version() -> None:
    """Its version and the image's are the package's."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize("name", RENDERED)
def test_manifests_fit_kubernetes(name: str) -> None:
    """Each object is one that every version from the chart's on takes."""
    check(committed(name))


@pytest.mark.parametrize("name", RENDERED)
def test_pods_are_closed(name: str) -> None:
    """A user without privileges, the default seccomp profile, no account's token, a read-only file
    system, no capability: in every container; and no secret is in a manifest."""
    found = committed(name)
    pod = of_kind(found, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert "hostNetwork" not in pod and "hostPID" not in pod and "serviceAccountName" not in pod
    context = pod["securityContext"]
    assert context["runAsNonRoot"] and context["runAsUser"] == 10001
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        assert container["resources"]["limits"]["memory"]
    assert not [each for each in found if each["kind"] == "Secret"]


@pytest.mark.parametrize("name", RENDERED)
def test_commands_are_commands(name: str) -> None:
    """What the containers, probes and notes run is understood by the command line."""
    pod = of_kind(committed(name), "StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    parse([*container["args"]])
    meadow, *probe = container["livenessProbe"]["exec"]["command"]
    assert meadow == "meadow"
    parse(probe)
    script = pod["initContainers"][0]["args"][0].replace('"$HOST"', "h").replace("\\\n", " ")
    steps = [line.strip() for line in script.splitlines() if line.strip().startswith("meadow ")]
    steps += [
        line.strip()
        for line in (CHART / "templates" / "NOTES.txt").read_text().splitlines()
        if line.strip().startswith("meadow ")
    ]
    assert len(steps) == 3
    for step in steps:
        parse(step.split()[1:])


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    """The server's init container makes it, and at each later start only its server.toml anew."""
    found = committed("server")
    folder, config = tmp_path / "lib", tmp_path / "config"
    folder.mkdir()
    config.mkdir()
    text = of_kind(found, "ConfigMap")["data"]["server.toml"]
    container = of_kind(found, "StatefulSet")["spec"]["template"]["spec"]["initContainers"][0]
    script = container["args"][0].replace("/var/lib/meadow", str(folder))
    script = script.replace("/config/", f"{config}/").replace(
        "meadow server", f"{sys.executable} -m meadow server"
    )
    environ = {**os.environ, **{each["name"]: each["value"] for each in container["env"]}}
    authorities = []
    for more in ("", "lease_s = 30.0\n"):
        (config / "server.toml").write_text(text + more)
        subprocess.run([*container["command"], script], check=True, env=environ)
        authorities.append((folder / "server" / "ca" / "certificate.pem").read_bytes())
    assert authorities[0] == authorities[1]
    assert load_server_config(folder / "server").lease_s == 30.0


def test_networks_are_closed() -> None:
    """The server takes clients and calls nobody; the agent takes nobody, and calls servers and DNS."""
    server = of_kind(committed("server"), "NetworkPolicy")["spec"]
    assert server["policyTypes"] == ["Ingress", "Egress"] and server["egress"] == []
    assert [[port["port"] for port in rule["ports"]] for rule in server["ingress"]] == [
        ["fleet", "enroll"]
    ]
    agent = of_kind(committed("agent"), "NetworkPolicy")["spec"]
    assert agent["policyTypes"] == ["Ingress", "Egress"] and agent["ingress"] == []
    assert {port["port"] for rule in agent["egress"] for port in rule["ports"]} == {53, 9443, 9444}


def test_what_a_change_of_hands_needs() -> None:
    """One daemon and one agent to a folder; it survives the pod; stopping is given its time."""
    for name in RENDERED:
        spec = of_kind(committed(name), "StatefulSet")["spec"]
        assert spec["replicas"] == 1
        assert spec["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOnce"]
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 30
        services = [each for each in committed(name) if each["kind"] == "Service"]
        assert spec["serviceName"] in {each["metadata"]["name"] for each in services}
        for service in services:
            labels = spec["template"]["metadata"]["labels"]
            assert service["spec"]["selector"].items() <= labels.items()
            names = {p["name"] for p in spec["template"]["spec"]["containers"][0].get("ports", [])}
            assert {port["targetPort"] for port in service["spec"].get("ports", [])} <= names


@pytest.mark.parametrize("name", VARIANTS)
def test_values_fit_their_schema(name: str) -> None:
    """What the variants of these tests say, over the chart's own values."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(merged(VARIANTS[name]), schema)


@pytest.mark.parametrize(
    ("section", "wrong"),
    [
        ("server", {"host": "192.0.2.1"}),
        ("server", {"host": "fl.example.org\n    - evil"}),
        ("server", {"hosts": ["fl.example.org"]}),
        ("server", {"podDisruptionBudget": {"enabled": True, "maxUnavailable": 2}}),
        ("server", {"service": {"type": "ExternalName"}}),
        ("server", {"storage": {"size": "a lot"}}),
        ("agent", {"gpus": -1}),
        ("agent", {"gpus": "1"}),
        ("agent", {"networkPolicy": {"serverPorts": []}}),
        ("agent", {"invitationSecret": "Not A Name"}),
        ("image", {"pullPolicy": "Sometimes"}),
    ],
)
def test_wrong_values_are_refused(section: str, wrong: Values) -> None:
    """By the schema, before anything is rendered."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged({section: wrong}), schema)


@renders
@pytest.mark.parametrize("name", RENDERED)
def test_manifests_are_the_charts(name: str, tmp_path: Path) -> None:
    """The committed files are what it renders: make manifests writes them anew."""
    values = yaml.safe_load((HERE / f"{name}.values.yaml").read_text())
    assert objects(render(tmp_path, values)) == committed(name)


@renders
@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_fits_kubernetes(name: str, tmp_path: Path) -> None:
    """With metrics, GPUs, data, other classes, ports and policies."""
    check(objects(render(tmp_path, VARIANTS[name])))


@renders
def test_what_is_required_is_named(tmp_path: Path) -> None:
    """A server needs its name, an agent its invitation."""
    assert "server.host is the name by which" in render(tmp_path, {}, code=1)
    nobody: Values = {"server": {"enabled": False}, "agent": {"enabled": True}}
    assert "agent.invitationSecret names the Secret" in render(tmp_path, nobody, code=1)


@renders
def test_the_files_that_it_writes_are_understood(tmp_path: Path) -> None:
    """server.toml and client.toml are read by Meadow, with the keys that were asked for."""
    found = objects(render(tmp_path, VARIANTS["metrics"]))
    (tmp_path / "server.toml").write_text(of_kind(found, "ConfigMap")["data"]["server.toml"])
    server = load_server_config(tmp_path)
    assert (server.hosts, server.lease_s) == (("fl.example.org", "10.0.0.7"), 30.0)
    assert server.metrics_address == "0.0.0.0:9464"
    found = objects(render(tmp_path, VARIANTS["gpus"]))
    (tmp_path / "client.toml").write_text(of_kind(found, "ConfigMap")["data"]["client.toml"])
    client = load_client_config(tmp_path)
    assert (client.policy.min_cohort, client.data.config) == (3, {"path": "/data"})


@renders
def test_gpus_data_and_monitoring(tmp_path: Path) -> None:
    """GPUs are limits of the agent alone, beside its memory; its data are read-only; /metrics is open to
    whom the policy names, and its ServiceMonitor finds one service."""
    found = objects(render(tmp_path, VARIANTS["gpus"]))
    pod = of_kind(found, "StatefulSet")["spec"]["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 2, "memory": "16Gi"}
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "4Gi"}
    assert "nvidia.com/gpu" not in pod["initContainers"][0]["resources"]["limits"]
    mounts = {each["name"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert mounts["data"] == {"name": "data", "mountPath": "/data", "readOnly": True}
    found = objects(render(tmp_path, VARIANTS["metrics"]))
    rules = of_kind(found, "NetworkPolicy")["spec"]["ingress"]
    metrics = [rule for rule in rules if rule["ports"][0]["port"] == "metrics"]
    assert [rule["from"] for rule in metrics] == [
        [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    ]
    wanted = of_kind(found, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    services = [each for each in found if each["kind"] == "Service"]
    seen = [each for each in services if wanted.items() <= each["metadata"]["labels"].items()]
    assert [each["metadata"]["name"] for each in seen] == ["meadow-server-pod"]


@renders
def test_a_change_of_its_configuration_restarts_a_pod(tmp_path: Path) -> None:
    """Its files are read when it starts: the template changes with them."""
    annotations = []
    for more in ("", "lease_s = 30.0"):
        values = {"server": {**SERVER["server"], "config": more}}
        found = of_kind(objects(render(tmp_path, values)), "StatefulSet")
        annotations.append(found["spec"]["template"]["metadata"]["annotations"])
    assert annotations[0] != annotations[1]
