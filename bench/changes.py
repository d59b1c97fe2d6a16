#!/usr/bin/env python3
"""Changes over the Admin API: the time until they are live, and their cost for requests made meanwhile.

The gateway runs on an embedded store with 100,000 routes. A change replaces one of them; it is live when its PUT has been
answered and a request shows it. That is timed with the gateway idle and under wrk's load. Then the CPU time that a change
takes is read, thread by thread, from changes made while nothing else happens.

In the end there is load for a minute without changes, for a minute with 100 changes a second, and once more without: no
request may fail, and p99 may move by less than 10 %. Requests and changes go to different routes. The load is one of two:

- saturation: wrk asks again as soon as it is answered, so that there is no core left for the changes, whose time is the
  requests'. On a machine with a core for everybody it shows what changes cost the workers themselves.
- a constant rate: a tenth of that many requests a second (oha, latency from when a request was due), as users see it who
  leave some room. With much more than that oha and the origin, which share a core, are what is measured.

    bench/changes.py --weir target/dist/weir
    bench/changes.py --routes 1000 --seconds 5 --samples 20     # a quick run
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time

import programs
from programs import Failure
from suite import tools

KEY = "key-of-the-benchmark"
# Number of routes that are changed; requests go to the routes after them.
CHANGED = 500
AIM_LIVE_MS, AIM_P99 = 50, 1.10


def rules(routes, origin):
    pool = {"size": 320, "idle_timeout": 60, "requests": 1_000_000_000}
    return {
        "upstreams": [{"id": "origin", "nodes": {f"127.0.0.1:{origin}": 1}, "keepalive_pool": pool}],
        "routes": [{"id": f"r{r}", "uri": f"/service/{r}", "upstream_id": "origin"} for r in range(routes)],
    }


def route(number, version):
    rewrite = {"headers": {"set": {"X-Version": version}}}
    return {"uri": f"/service/{number}", "upstream_id": "origin", "plugins": {"response-rewrite": rewrite}}


class Gateway:
    def __init__(self, run, options):
        folder = run.folder / "data"
        file = run.folder / "rules.json"
        file.write_text(json.dumps(rules(options.routes, run.origin().port)))
        imported = subprocess.run([options.weir, "store", "import", file, "--data-dir", folder], capture_output=True, text=True)
        if imported.returncode != 0:
            raise Failure(f"the routes cannot be imported:\n{imported.stderr[-2000:]}")
        self.admin = programs.free_port()
        port = programs.free_port()
        os.environ["WEIR_ADMIN_KEY"] = KEY
        self.program = run.start("weir", [
            options.weir, "run", "--data-dir", folder, "--admin", f"127.0.0.1:{self.admin}", "--control", "off",
            "--listen-http", f"127.0.0.1:{port}", "--listen-https", "off", "--metrics", "off", "--status", "off",
            "--workers", str(options.workers),
        ], port, options.cores, wait=120)

    def connect(self):
        """Opens a connection for changes."""
        return socket.create_connection(("127.0.0.1", self.admin), 30)


def until_live(gateway, samples, pause):
    """Milliseconds from sending a change to the first answer that shows it."""
    admin, times = gateway.connect(), []
    client = http.client.HTTPConnection("127.0.0.1", gateway.program.port, timeout=30)
    for sample in range(samples):
        number, version = sample % CHANGED, f"s{time.monotonic_ns()}"
        began = time.monotonic()
        put(admin, number, version)
        client.request("GET", f"/service/{number}")
        answer = client.getresponse()
        answer.read()
        times.append(1000 * (time.monotonic() - began))
        if answer.getheader("X-Version") != version:
            raise Failure(f"a change of r{number} was answered for, but {answer.getheader('X-Version')} serves instead of {version}")
        time.sleep(pause)
    times.sort()
    return {"median_ms": statistics.median(times), "p99_ms": times[min(len(times) - 1, len(times) * 99 // 100)], "max_ms": times[-1]}


def put(connection, number, version):
    """Makes a change over a plain socket: an HTTP client would take as much CPU time from the gateway as the change itself."""
    body = json.dumps(route(number, version))
    head = f"PUT /apisix/admin/routes/r{number} HTTP/1.1\r\nHost: weir\r\nX-API-KEY: {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall((head + body).encode())
    answer, length = b"", None
    while length is None or len(answer) < length:
        piece = connection.recv(65536)
        if not piece:
            raise Failure(f"PUT routes/r{number}: the connection was closed after {answer[:300]!r}")
        answer += piece
        end = answer.find(b"\r\n\r\n")
        if length is None and end >= 0:
            length = end + 4 + int(re.search(rb"(?i)content-length: *(\d+)", answer[:end])[1])
    if answer[9:12] not in (b"200", b"201"):
        raise Failure(f"PUT routes/r{number} was answered {answer[:300]!r}")


class Changes:
    """Makes this many changes a second, over a few connections, until it is stopped."""

    def __init__(self, gateway, rate, connections=4):
        self.gateway, self.rate = gateway, rate
        self.stopping, self.done, self.failed = threading.Event(), 0, []
        self.lock, self.began, self.sent = threading.Lock(), time.monotonic(), 0
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(connections)]
        for thread in self.threads:
            thread.start()

    def run(self):
        admin = None
        while not self.stopping.is_set():
            with self.lock:
                turn, self.sent = self.sent, self.sent + 1
            due = self.began + turn / self.rate - time.monotonic()
            if due > 0 and self.stopping.wait(due):
                return
            try:
                admin = admin or self.gateway.connect()
                put(admin, turn % CHANGED, f"c{turn}")
                self.done += 1
            except (Failure, OSError) as failure:
                self.failed.append(str(failure))
                admin = None

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        return {"changes_per_second": self.done / (time.monotonic() - self.began), "changes_failed": self.failed[:5]}


def spent(program):
    """Seconds of CPU by thread name, from the scheduler's accounting."""
    seconds = {}
    for pid in program.tree():
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            try:
                name, took = (thread / "comm").read_text().strip(), (thread / "schedstat").read_text().split()[0]
            except OSError:
                continue  # the thread has ended
            name = "weir-worker" if name.startswith("weir-worker") else name
            seconds[name] = seconds.get(name, 0) + int(took) / 1e9
    return seconds


def cost(gateway, options):
    """Microseconds of CPU that a change takes, by thread, while there is no load."""
    before = spent(gateway.program)
    changes = Changes(gateway, options.rate)
    while changes.done < options.counted and not changes.failed:
        time.sleep(0.05)
    changes.stop()
    if changes.failed:
        raise Failure(f"changes failed: {changes.failed[:5]}")
    after = spent(gateway.program)
    threads = {name: 1e6 * (took - before.get(name, 0)) / changes.done for name, took in after.items()}
    return {"threads": threads, "us": sum(threads.values())}


def constant(gateway, walk, rate, seconds, folder):
    """Runs oha at a constant rate; returns the same figures as `programs.load`."""
    load = {"connections": programs.CONNECTIONS, "rate": rate, "timeout": 10}
    command = tools.oha(f"http://127.0.0.1:{gateway.program.port}/", load, seconds, 1, folder, walk)
    figures = tools.read_oha(tools.run(command, str(programs.LOAD_CORE), seconds, folder)[0])
    void = ", ".join(f"{count} {kind} errors" for kind, count in figures["errors"].items())
    rps = figures["requests"] / figures["seconds"]
    if rps < 0.98 * rate:
        void = void or f"only {rps:,.0f} of {rate:,} requests a second were made: see --share"
    return {"rps": rps, "p50_us": figures["latency"]["p50"], "p99_us": figures["latency"]["p99"], "void": void}


def compare(gateway, options, load):
    """Figures of a load without changes, with changes, and again without."""
    before = load()
    changes = Changes(gateway, options.rate)
    meanwhile = load()
    meanwhile |= changes.stop()
    after = load()
    calm = statistics.mean([before["p99_us"], after["p99_us"]])
    return {"without": [before, after], "with": meanwhile, "p99_ratio": meanwhile["p99_us"] / max(calm, 1)}


def measure(run, options):
    gateway = Gateway(run, options)
    walk = [(f"/service/{CHANGED + k * 97 % (options.routes - CHANGED)}", {}) for k in range(1000)]
    script = run.script("walk", walk)
    programs.load(gateway.program, script, 1)
    figures = {"routes": options.routes, "idle": until_live(gateway, options.samples, 0.01)}
    load = threading.Thread(target=programs.load, args=(gateway.program, script, 2 + options.samples // 10))
    load.start()
    time.sleep(0.5)
    figures["loaded"] = until_live(gateway, options.samples, 0.05)
    load.join()
    figures["cost"] = cost(gateway, options)
    figures["saturation"] = compare(gateway, options, lambda: programs.load(gateway.program, script, options.seconds))
    if tools.find("oha"):
        most = statistics.mean(run["rps"] for run in figures["saturation"]["without"])
        rate = max(int(options.share * most), 1)
        figures["constant"] = compare(gateway, options, lambda: constant(gateway, walk, rate, options.seconds, run.folder))
    figures["resident_mib"] = gateway.program.resident() / 2**20
    return figures


def runs(compared):
    """The three runs of a load by name, in their order."""
    before, after = compared["without"]
    return [("without changes", before), ("with changes", compared["with"]), ("without changes", after)]


LOADS = {"saturation": "at saturation", "constant": "at a constant rate"}


def judge(figures, options):
    """Aims that were missed."""
    missed = []
    for state in ("idle", "loaded"):
        if figures[state]["p99_ms"] >= AIM_LIVE_MS:
            missed.append(f"{state}: a change takes {figures[state]['p99_ms']:.1f} ms (p99), {AIM_LIVE_MS} are allowed")
    for name, words in LOADS.items():
        if name not in figures:
            missed.append(f"{words}: not measured, {tools.HOW['oha']} installs oha")
            continue
        compared = figures[name]
        missed += [f"{words}, {state}: {one['void']}" for state, one in runs(compared) if one["void"]]
        changed = compared["with"]
        if changed["changes_failed"]:
            missed.append(f"{words}: changes failed: {changed['changes_failed']}")
        if changed["changes_per_second"] < 0.95 * options.rate:
            missed.append(f"{words}: {changed['changes_per_second']:.1f} changes a second were made of {options.rate}")
        if compared["p99_ratio"] > AIM_P99:
            missed.append(f"{words}: p99 moved by a factor of {compared['p99_ratio']:.2f}, {AIM_P99} is allowed")
    return missed


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top = pathlib.Path(__file__).resolve().parent.parent / "target/dist"
    parser.add_argument("--weir", default=top / "weir", metavar="PATH", help="the gateway (default: %(default)s)")
    parser.add_argument("--routes", type=int, default=100_000, help="how many routes there are (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=200, help="changes that are timed, idle and under load (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=100, help="changes a second (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=60, help="length of each of the six runs (default: %(default)s)")
    parser.add_argument("--counted", type=int, default=1000, help="changes whose CPU time is read (default: %(default)s)")
    parser.add_argument("--share", type=float, default=0.1, help="the constant rate, as a part of what saturation reaches (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="workers of the gateway (default: %(default)s)")
    parser.add_argument("--cores", default="0,1", help="cores of the gateway; wrk and the origin share core 1 (default: %(default)s)")
    parser.add_argument("--json", metavar="OUT", help="write the figures there")
    options = parser.parse_args()
    if options.routes <= 2 * CHANGED:
        parser.error(f"--routes: more than {2 * CHANGED} are needed")
    return options


def main():
    options = arguments()
    for tool in ("wrk", "taskset", "setpriv"):
        if not shutil.which(tool):
            raise Failure(f"{tool} is missing: run tools/install-test-deps")
    machine = programs.machine()
    print(f"{machine['model']}, {machine['cores']} cores, {100 * machine['busy_before']:.0f} % busy before the start")
    with programs.Programs() as run:
        figures = measure(run, options)
    for state in ("idle", "loaded"):
        one = figures[state]
        print(f"live, {state}: median {one['median_ms']:.1f} ms, p99 {one['p99_ms']:.1f} ms, max {one['max_ms']:.1f} ms")
    by_thread = sorted(figures["cost"]["threads"].items(), key=lambda thread: -thread[1])
    told = ", ".join(f"{name} {us:,.0f}" for name, us in by_thread if us >= 1)
    print(f"CPU per change: {figures['cost']['us']:,.0f} µs ({told})")
    for name, words in LOADS.items():
        if name not in figures:
            continue
        for state, one in runs(figures[name]):
            print(f"{words}, {state}: {one['rps']:,.0f} requests/s, p50 {one['p50_us']:,.0f} µs, p99 {one['p99_us']:,.0f} µs, {one['void'] or 'no error'}")
        print(f"{words}: {figures[name]['with']['changes_per_second']:.1f} changes/s, p99 {figures[name]['p99_ratio']:.2f} of that without")
    print(f"{figures['resident_mib']:,.0f} MiB resident")
    if options.json:
        pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(options.json).write_text(json.dumps({"machine": machine, **figures}, indent=1))
    missed = judge(figures, options)
    for reason in missed:
        print(f"MISS {reason}")
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"bench-changes: {failure}")
