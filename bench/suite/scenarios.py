"""Scenarios to measure. One file of data for each publication; see docs/benchmarks.md for the fields."""
import base64
import pathlib
import random
import tomllib

from .shape import NEEDED, Choice, Either, Map, Record, Wrong, checked

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "scenarios"
PLUGINS = ("mocking", "key-auth", "key-in-query", "basic-auth", "limit-count", "cors", "ip-restriction", "request-id", "ua-restriction",
           "referer-restriction", "uri-blocker", "response-header", "request-header", "plan", "usage")
PROFILES = ("quick", "full", "published", "smoke")
FIRST = ("api7", "kong", "apisix-2cpu", "3scale", "tyk", "scale")  # the order of running and on the page
BODY = "b" * 200  # body of the static origin and of mocks

PUBLISHED = Record(
    label=(str, NEEDED, "which of the published figures this is"),
    rps=(float, None, "requests a second"),
    mean_ms=(float, None, "mean latency"),
    p50_ms=(float, None, "median latency"),
    p95_ms=(float, None, "95th percentile of latency"),
    p99_ms=(float, None, "99th percentile of latency"),
    errors=(str, "", "what was told of errors"),
)
LOAD = Record(
    kind=(Choice("closed", "rate", "rush", "highest", "idle", "reload", "change"), "closed",
          "closed: each connection asks as soon as it is answered; rate: so many requests a second, latency corrected for coordinated "
          "omission; rush: users that come one after the other, one second between requests of each; highest: the highest throughput "
          "within a mean latency; idle: memory of connections that do nothing; reload: a changed configuration file with "
          "one other route, under a constant rate; change: the same through the gateway's own API"),
    tool=(Choice("wrk", "oha", "h2load", "k6"), None, "the program that makes the load; by kind where left out"),
    connections=(int, 64, "connections, users at the end of a rush"),
    threads=(int, 0, "threads of the tool; 0: one for each of its cores"),
    rate=(int, 0, "requests a second for rate, reload and change"),
    mean_ms=(float, 0, "the bound of highest"),
    timeout=(int, 5, "seconds after which a request counts as timed out"),
)
CASE = Record(
    id=(str, NEEDED, "short name, unique in the scenario"),
    title=(str, NEEDED, "what a reader sees"),
    group=(str, "", "cases of a group share a heading and a curve"),
    x=(float, None, "place on the curve of its group"),
    plugins=([Choice(*PLUGINS)], [], "what the gateway does with each request"),
    routes=(int, 1, "number of routes"),
    consumers=(int, 1, "number of consumers, where a plugin authenticates"),
    distribution=(Choice("even", "normal"), "even", "which routes and consumers are asked for; normal: mean 50, deviation 7, the same of both"),
    tls=(bool, False, "clients speak TLS"),
    origin_tls=(bool, False, "the gateway speaks TLS to the origin"),
    http2=(bool, False, "clients speak HTTP/2 (over TLS)"),
    origin=(Choice("static", "documents"), "static", "nginx with 200 bytes, or the origin of the suite"),
    path=(str, "/", "what is asked for where there is one route"),
    workers=(Either(int, Choice("all")), None, "worker threads of the gateway; where left out those of the scenario"),
    load=(LOAD, {}, "the load; fields left out come from the scenario"),
    targets=([str], [], "only these targets; where left out all that can"),
    direct=(bool, False, "also measured without a gateway, as a target called direct"),
    runs=(Map(int), {}, "runs for a profile, before those of the scenario"),
    seconds=(Map(int), {}, "seconds of a run for a profile, before those of the scenario"),
    not_in=([Choice(*PROFILES)], [], "profiles that leave this case out"),
    published=([PUBLISHED], [], "the published figures"),
    relative_to=(str, "", "the case of this scenario whose throughput is 100 %"),
)
SCENARIO = Record(
    id=(str, NEEDED, "the name of the file without .toml"),
    title=(str, NEEDED, "what a reader sees"),
    source=(str, NEEDED, "the publication"),
    machine=(str, NEEDED, "the machine of the published figures"),
    method=(str, NEEDED, "how the publication measured"),
    here=(str, NEEDED, "how this suite does it, and what differs"),
    notes=([str], [], "what does not fit together in the publication"),
    workers=([Either(int, Choice("all"))], [1], "each case is measured with each of these"),
    load=(LOAD, {}, "the load of all cases"),
    runs=(Map(int), NEEDED, "runs of each case by profile"),
    seconds=(Map(int), NEEDED, "seconds of a run by profile"),
    cases=([CASE], NEEDED, "the cases"),
)


def read(file):
    """The scenario of a file, with defaults, or Wrong."""
    try:
        data = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, OSError) as fault:
        raise Wrong(f"{file.name}: {fault}") from None
    loads = [case.get("load", {}) for case in data.get("cases", []) if isinstance(case, dict)] if isinstance(data.get("cases"), list) else []
    scenario, common = checked(data, SCENARIO, file.name), data.get("load", {})
    found = [] if scenario["id"] == file.stem else [f"{file.name}.id: expected {file.stem}, found {scenario['id']}"]
    ids = [case["id"] for case in scenario["cases"]]
    for at, case in enumerate(scenario["cases"]):
        place = f"{file.name}.cases[{at}] ({case['id']})"
        case["load"] = checked(common | loads[at], LOAD, f"{place}.load")
        if ids.count(case["id"]) > 1:
            found.append(f"{place}: the id is there more than once")
        if case["relative_to"] and case["relative_to"] not in ids:
            found.append(f"{place}.relative_to: there is no case {case['relative_to']}")
        if case["distribution"] == "normal" and case["routes"] != 100:
            found.append(f"{place}.distribution: normal is defined over 100 routes")
        if case["origin"] == "documents" and case["routes"] != 1:
            found.append(f"{place}.origin: documents answer at their own paths, so there can be one route only")
        if case["load"]["kind"] in ("rate", "reload", "change") and not case["load"]["rate"]:
            found.append(f"{place}.load.rate: needed for {case['load']['kind']}")
        for name in [*case["runs"], *case["seconds"], *scenario["runs"], *scenario["seconds"]]:
            if name not in PROFILES:
                found.append(f"{place}: there is no profile {name}; there are {', '.join(PROFILES)}")
    for name in PROFILES:
        if name not in scenario["runs"] or name not in scenario["seconds"]:
            found.append(f"{file.name}: runs and seconds of the profile {name} are missing")
    if found:
        raise Wrong("\n".join(found))
    for case in scenario["cases"]:
        load = case["load"]
        load["tool"] = load["tool"] or {"rate": "oha", "reload": "oha", "change": "oha", "rush": "k6", "idle": ""}.get(load["kind"], "h2load" if case["http2"] else "wrk")
    return scenario


def read_all(names=()):
    """All scenarios, or those of these names; Wrong lists all errors in any of them."""
    files = sorted(FOLDER.glob("*.toml"), key=lambda file: (FIRST.index(file.stem) if file.stem in FIRST else len(FIRST), file.stem))
    if unknown := set(names) - {file.stem for file in files}:
        raise Wrong(f"there is no scenario {', '.join(sorted(unknown))}; there are {', '.join(file.stem for file in files)}")
    found, read_in = [], []
    for file in files:
        try:
            read_in.append(read(file))
        except Wrong as wrong:
            found.append(str(wrong))
    if found:
        raise Wrong("\n".join(found))
    return [scenario for scenario in read_in if not names or scenario["id"] in names]


class Numbered:
    """Sequence of items computed from their numbers on access, so that a million take no memory."""

    def __init__(self, count, make):
        self.count, self.make = count, make

    def __len__(self):
        return self.count

    def __iter__(self):
        return ({**self.make(at), "comma": "" if at == self.count - 1 else ","} for at in range(self.count))

    def __getitem__(self, at):
        return self.make(at)


def routes(case):
    """The routes in the order of their prefixes; with one route it takes every path."""
    if case["routes"] == 1:
        return Numbered(1, lambda at: {"i": 0, "prefix": "/", "item": case["path"]})
    return Numbered(case["routes"], lambda at: {"i": at, "prefix": f"/service-{at:06}/", "item": f"/service-{at:06}/item"})


def consumers(case):
    """The consumers with all their credentials; none in a case without authentication."""
    if not authenticates(case):
        return Numbered(0, None)
    with_password = "basic-auth" in case["plugins"]

    def make(at):
        one = {"i": at, "name": f"user{at}", "key": f"key-of-{at}"}
        if with_password:
            one["password"] = f"password{at}"
            one["basic"] = base64.b64encode(f"user{at}:password{at}".encode()).decode()
        return one
    return Numbered(case["consumers"], make)


def authenticates(case):
    return any(name in case["plugins"] for name in ("key-auth", "key-in-query", "basic-auth"))


def requests(case, credentials=True):
    """Up to a thousand (path, fields) that stand for the traffic of a case: its routes and consumers, spread as it says."""
    ways, people, chance = routes(case), consumers(case), random.Random(7)
    count = 1 if case["routes"] == 1 and len(people) <= 1 else 1000
    made = []
    for k in range(count):
        if case["distribution"] == "normal":
            way = person = min(max(round(chance.gauss(50, 7)), 0), 99)
        else:
            # All routes and consumers in turn if they are few, else evenly spread samples.
            way = k * max(len(ways) // 1000, 1) % len(ways)
            person = k * max(len(people) // 1000, 1) % max(len(people), 1)
        path, fields = ways[way]["item"], {}
        if len(people) and credentials:
            one = people[min(person, len(people) - 1)]
            if "basic-auth" in case["plugins"]:
                fields["Authorization"] = f"Basic {one['basic']}"
            elif "key-in-query" in case["plugins"]:
                path += f"?apikey={one['key']}"
            else:
                fields["apikey"] = one["key"]
        if "cors" in case["plugins"]:
            fields["Origin"] = "https://app.test"
        if "ua-restriction" in case["plugins"]:
            fields["User-Agent"] = "bench/1"
        made.append((path, fields))
    return made


def expected(case):
    """Content of the answers: a text, or a number of bytes."""
    if case["origin"] == "static" or "mocking" in case["plugins"]:
        return BODY
    return {"/json/hello": '{"hello":"world"}', "/text/hello": "hello world\n"}.get(case["path"]) or (
        int(case["path"].rsplit("/", 1)[1]) if case["path"].startswith("/size/") else None)
