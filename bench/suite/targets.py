"""Targets: the gateways that are measured. One file for each, with its start command and a template of its configuration."""
import base64
import dataclasses
import hashlib
import http.client
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import ssl
import subprocess
import time
import tomllib
import urllib.error
import urllib.request

import programs
from programs import Failure

from . import scenarios, template
from .shape import NEEDED, Choice, Map, Record, Wrong, checked

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "targets"
SHOWN = 6000  # maximum characters of a configuration in the results
READING = 120  # seconds that a gateway may take to read its configuration
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"

TARGET = Record(
    title=(str, NEEDED, "what a reader sees"),
    programs=([str], NEEDED, "names of the program, the first that is found is taken"),
    needs=([str], [], "programs that have to be there as well"),
    version=([str], NEEDED, "arguments that make it tell its version"),
    supports=([Choice(*scenarios.PLUGINS, "tls", "origin-tls", "http2", "reload", "change")], NEEDED, "what it can do; cases that need more are left out"),
    command=(str, NEEDED, "how it is started in the foreground: a template, split into words like a shell command"),
    ready=(str, "", "a path that answers 200 once it is ready; where left out the first request of the case"),
    logs=([str], [], "error logs in its folder, beside what it prints"),
    complaint=(str, NEEDED, "a regular expression: a line of a log that matches is a fault"),
    reload=(str, "", "how it takes over a changed configuration: file (by itself) or the name of a signal, such as HUP"),
    change=(Record(
        method=(str, NEEDED, "such as PUT"), url=(str, NEEDED, "a template, with the changed route as r"), headers=(Map(str), {}, "fields"),
        body=(str, "", "a template, with the changed route as r")), None, "how one route is changed over its API"),
    notes=([str], [], "what a reader should know of its configuration"),
    files=(Map(str), {}, "name -> template of a file in its folder"),
    each_route=(Map(str), {}, "as files, once for each route as r; names are templates too"),
)


def read_all():
    """Maps each name to its target, or raises Wrong with all errors of all files."""
    found, targets = [], {}
    for file in sorted(FOLDER.glob("*.toml")):
        try:
            targets[file.stem] = checked(tomllib.loads(file.read_text()), TARGET, file.name) | {"name": file.stem}
            re.compile(targets[file.stem]["complaint"])
        except (tomllib.TOMLDecodeError, Wrong) as wrong:
            found.append(f"{file.name}: {wrong}" if isinstance(wrong, tomllib.TOMLDecodeError) else str(wrong))
        except re.error as fault:
            found.append(f"{file.name}.complaint: {fault}")
    if found:
        raise Wrong("\n".join(found))
    return targets


def find(target, given=None):
    """(path of the program, ""), or (None, reason)."""
    if given:
        return (os.path.abspath(given), "") if shutil.which(given) else (None, f"{given} is not a program")
    program = next((path for name in target["programs"] if (path := shutil.which(name, path=PATH))), None)
    if not program:
        return None, f"no program {' or '.join(target['programs'])} here"
    missing = [name for name in target["needs"] if not shutil.which(name, path=PATH)]
    return (None, f"it needs {', '.join(missing)}") if missing else (program, "")


def version(target, program):
    try:
        told = subprocess.run([program, *target["version"]], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return "?"
    lines = (told.stdout + told.stderr).strip().splitlines()
    return lines[0][:120] if lines else "?"


def lacks(target, case):
    """Reason that this target cannot run this case; empty if it can."""
    needed = [*case["plugins"], *(name for name, on in (("tls", case["tls"]), ("origin-tls", case["origin_tls"]), ("http2", case["http2"])) if on)]
    needed += [case["load"]["kind"]] if case["load"]["kind"] in ("reload", "change") else []
    missing = [name for name in needed if name not in target["supports"]]
    return f"it has no {', '.join(missing)} here" if missing else ""


@dataclasses.dataclass
class Running:
    """A started target."""
    target: dict
    process: programs.Program
    folder: pathlib.Path
    values: dict
    case: dict
    shown: str
    startup: float
    resident: int
    changes: int = 0

    def complaints(self):
        """Lines of the logs that report a fault."""
        lines = []
        for file in (self.folder.parent / f"{self.process.name}.log", *(self.folder / name for name in self.target["logs"])):
            if file.exists():
                with open(file, errors="replace") as log:
                    lines += [line.strip()[:300] for line in log if re.search(self.target["complaint"], line)]
        return lines

    def change(self):
        """Changes the prefix of a route in the middle, by the file or by the API. Returns a path that only the changed
        route takes, and the earliest time at which the gateway could know of it."""
        self.changes += 1
        prefix = f"/changed-{self.changes}/"
        if self.case["load"]["kind"] == "change":
            return f"{prefix}item", self.change_by_request(prefix)
        values = self.values | {"routes": changed_routes(self.case, prefix)}
        for name, text in self.target["files"].items():
            (self.folder / f"{name}.new").write_text(template.render(text, values))
        written = time.monotonic()
        for name in self.target["files"]:
            (self.folder / f"{name}.new").replace(self.folder / name)
        if self.target["reload"] != "file":
            self.process.process.send_signal(getattr(signal, f"SIG{self.target['reload']}"))
        return f"{prefix}item", written

    def change_by_request(self, prefix):
        """Start time of the request that changes the route."""
        change, route = self.target["change"], changed_routes(self.case, prefix)[self.case["routes"] // 2]
        values = self.values | {"r": route}
        asked = urllib.request.Request(template.render(change["url"], values), method=change["method"], headers=change["headers"],
                                       data=template.render(change["body"], values).encode())
        written = time.monotonic()
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                answer.read()
        except urllib.error.HTTPError as refused:
            raise Failure(f"the change was answered with {refused.code} {refused.read()[:200]!r}") from None
        return written


def changed_routes(case, prefix):
    whole, middle = scenarios.routes(case), case["routes"] // 2
    return scenarios.Numbered(len(whole), lambda at: whole[at] | ({"prefix": prefix} if at == middle else {}))


def values_of(case, folder, program, port, spare, workers, origin, files):
    """All values that a template can refer to."""
    people = scenarios.consumers(case)
    if "basic-auth" in case["plugins"]:
        plain = people
        people = scenarios.Numbered(len(plain), lambda at: plain[at] | {
            "sha1": base64.b64encode(hashlib.sha1(plain[at]["password"].encode()).digest()).decode()})
    cert, key = (file.read_text() for file in files)
    return {
        "program": program, "dir": folder, "port": port, "spare": spare, "workers": workers, "origin": origin, "body": scenarios.BODY,
        "pool": max(512, case["load"]["connections"] + 16), "connections-limit": max(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200),
        "hash-size": max(4096, 4 * len(people)), "cert": cert, "key": key, "cert-json": json.dumps(cert), "key-json": json.dumps(key),
        "routes": scenarios.routes(case), "consumers": people, "many-routes": case["routes"] > 1, "plugins": bool(case["plugins"]),
        "root": os.geteuid() == 0, "tls": case["tls"], "origin-tls": case["origin_tls"], "http2": case["http2"],
        "idle": case["load"]["kind"] == "idle", "change": case["load"]["kind"] == "change", "admin": programs.free_port(),
    } | {name: name in case["plugins"] for name in scenarios.PLUGINS}


def start(run, target, program, case, workers, cores, origin):
    """Writes the configuration, starts the target and waits until it answers correctly."""
    name = f"{target['name']}-{len(list(run.folder.iterdir()))}"
    folder, port = run.folder / name, programs.free_port()
    folder.mkdir()
    values = values_of(case, folder, program, port, programs.free_port(), workers, origin, run.certificate())
    files = [(path, text, values) for path, text in target["files"].items()]
    for path, text in target["each_route"].items():
        files += [(template.render(path, values | {"r": route}), text, values | {"r": route}) for route in values["routes"]]
    shown, place = [], ""
    try:
        for path, text, filled in files:
            place = path
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            written = template.render(text, filled)
            (folder / path).write_text(written)
            if written.strip() and not path.endswith(".pem") and len(shown) < 8:
                shown.append(f"# {path}\n{cut(secretless(written))}")
        place = "command"
        command = shlex.split(template.render(target["command"], values))
    except template.Fault as fault:
        raise Failure(f"{target['name']}.toml, {place}: {fault}") from None
    began = time.monotonic()
    process = run.start(name, command, port, cores, wait=180, tls=case["tls"])
    await_ready(process, target, case)
    startup = time.monotonic() - began
    command_shown = " ".join(str(word) for word in command).replace(str(folder), ".")
    text = f"$ {command_shown}\n\n" + "\n".join(shown).replace(str(folder), ".")
    return Running(target, process, folder, values, case, text, startup, process.resident())


def await_ready(process, target, case):
    """Waits until the first request is answered with 200. Gateways answer 404 or 503 while they read their configuration;
    any other answer is final."""
    path, fields = (target["ready"], {}) if target["ready"] else scenarios.requests(case)[0]
    began = time.monotonic()
    while True:
        try:
            status, _ = get(process, path, fields)
            if status == 200:
                return
            said, patience = f"was answered with {status}", READING if status in (404, 503) else 5
        except (OSError, http.client.HTTPException) as fault:
            said, patience = str(fault), 15
        if time.monotonic() > began + patience or process.process.poll() is not None:
            raise Failure(f"{target['title']}: {path} {said}")
        time.sleep(0.005)


def secretless(text):
    """The text without certificates and keys, which fill pages and are of no interest."""
    return re.sub(r"-----BEGIN.*?-----END [A-Z ]+-----(\\n|\n)?", "(a certificate or key)", text, flags=re.DOTALL)


def cut(text):
    """The text for display: long ones are reduced to beginning and end."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN * 2 // 3]}\n… {len(text) - SHOWN:,} characters more …\n{text[-SHOWN // 3:]}"


def get(program, path, fields, timeout=30):
    """(status, body) of one request on its own connection."""
    if program.tls:
        connection = http.client.HTTPSConnection("127.0.0.1", program.port, timeout=timeout, context=ssl._create_unverified_context())
    else:
        connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=timeout)
    try:
        connection.request("GET", path, headers=fields)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def check(program, case, gateway=True):
    """Difference between this program's answers and the expected ones of the case; empty if there is none. A program with
    wrong answers is not measured."""
    asked, wanted = scenarios.requests(case), scenarios.expected(case)
    for path, fields in (asked[0], asked[-1]):
        status, body = get(program, path, fields)
        if status != 200:
            return f"{path} was answered with {status}"
        if wanted is not None and (len(body) != wanted if isinstance(wanted, int) else body.decode(errors="replace") != wanted):
            return f"{path} was answered with {body[:80]!r}"
    if gateway and scenarios.authenticates(case):
        path, fields = scenarios.requests(case, credentials=False)[0]
        if (status := get(program, path, fields)[0]) not in (401, 403):
            return f"{path} without credentials was answered with {status}"
    return ""
