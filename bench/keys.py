#!/usr/bin/env python3
"""A million keys: memory for each, the time to find one, and the time until a changed one is live.

The gateway runs from a rules file, and from its store. Memory is the growth of the resident set against a gateway with a
thousand keys, after everything has come to rest, so that start-up costs (code, tables, workers) do not count. A key is found by
requests one after the other, with keys by chance; the time is told beside that with a thousand keys. A change gives a consumer
a new key over the Admin API; it is live when the first request with the new key passes.

    bench/keys.py --weir target/dist/weir                       # a million
    bench/keys.py --weir target/debug/weir --keys 50000 --changes 20
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

import programs
from programs import Failure

ADMIN_KEY = "key-of-the-benchmark"
FEW = 1_000
AIM_BYTES = 400  # for each key, of a gateway that runs from a file
AIM_LIVE_MS = 50


def key(number):
    return f"key-{number:07}-{number * 2654435761 % 2**32:08x}"


def rules(count, origin):
    return {
        "upstreams": [{"id": "origin", "nodes": {f"127.0.0.1:{origin}": 1}}],
        "routes": [{"id": "all", "uri": "/*", "upstream_id": "origin", "plugins": {"key-auth": {}}}],
        "plans": [{"id": "free", "limits": [{"count": 1_000_000_000, "per": "month", "window": "calendar"}]}],
        "consumer_groups": [{"id": "free", "plugins": {"plan": {"plans": ["free"]}}}],
        "consumers": [{"username": f"user{n}", "group_id": "free", "plugins": {"key-auth": {"key": key(n)}}} for n in range(count)],
    }


class Gateway:
    def __init__(self, run, origin, options, count, stored):
        name = f"{'store' if stored else 'file'}-{count}"
        folder, file = run.folder / f"{name}.data", run.folder / f"{name}.json"
        file.write_text(json.dumps(rules(count, origin.port)))
        self.admin, port = programs.free_port(), programs.free_port()
        os.environ["WEIR_ADMIN_KEY"] = ADMIN_KEY
        place = ["--data-dir", folder] if stored else [file]
        if stored:
            imported = subprocess.run([options.weir, "store", "import", file, "--data-dir", folder], capture_output=True, text=True)
            if imported.returncode != 0:
                raise Failure(f"the keys cannot be imported:\n{imported.stderr[-2000:]}")
        self.program = run.start(name, [
            options.weir, "run", *place, "--admin", f"127.0.0.1:{self.admin}" if stored else "off", "--listen-http", f"127.0.0.1:{port}",
            "--listen-https", "off", "--metrics", "off", "--status", "off", "--control", "off", "--workers", "1",
        ], port, programs.GATEWAY_CORE, wait=600)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        if (status := self.ask(connection, key(0))) != 200:
            raise Failure(f"{name}: the first key was answered {status}")

    def ask(self, connection, text):
        connection.request("GET", "/", headers={"apikey": text})
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def resident(self):
        """Bytes, once they do not change for a second."""
        before = -1
        for _ in range(60):
            text = pathlib.Path(f"/proc/{self.program.process.pid}/status").read_text()
            now = int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024
            if abs(now - before) < 64 * 1024:
                break
            before = now
            time.sleep(1)
        return now

    def find(self, count, requests):
        """Median microseconds of a request with a key by chance."""
        connection, times = http.client.HTTPConnection("127.0.0.1", self.program.port, timeout=30), []
        chosen = random.Random(1)
        for _ in range(requests):
            text = key(chosen.randrange(count))
            began = time.perf_counter()
            status = self.ask(connection, text)
            times.append(1e6 * (time.perf_counter() - began))
            if status != 200:
                raise Failure(f"{text} was answered {status}")
        if (status := self.ask(connection, "unknown")) != 401:
            raise Failure(f"an unknown key was answered {status}")
        return statistics.median(times)

    def change(self, count, changes):
        """Milliseconds from sending a consumer's new key to the first request that passes with it: (median, highest)."""
        admin = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=60)
        client, times = http.client.HTTPConnection("127.0.0.1", self.program.port, timeout=30), []
        for turn in range(changes):
            number, text = turn * 7919 % count, f"new-{turn}"
            body = json.dumps({"group_id": "free", "plugins": {"key-auth": {"key": text}}})
            began = time.perf_counter()
            admin.request("PUT", f"/weir/v1/resources/consumers/user{number}", body, {"X-API-KEY": ADMIN_KEY})
            answer = admin.getresponse()
            told = answer.read()
            if answer.status != 200:
                raise Failure(f"a change was answered {answer.status} {told[:300]!r}")
            while self.ask(client, text) != 200:
                if time.perf_counter() - began > 10:
                    raise Failure("a changed key is not live after ten seconds")
            times.append(1000 * (time.perf_counter() - began))
            if (status := self.ask(client, key(number))) != 401:
                raise Failure(f"the key before the change was answered {status}")
        return statistics.median(times), max(times)


def measure(run, origin, options, stored):
    found = {}
    for count in (FEW, options.keys):
        gateway = Gateway(run, origin, options, count, stored)
        found[count] = {"find_us": gateway.find(count, options.requests), "resident": gateway.resident()}
        if stored:
            found[count]["live_ms"], found[count]["slowest_ms"] = gateway.change(count, options.changes)
        gateway.program.process.terminate()
        gateway.program.process.wait(60)
    few, many = found[FEW], found[options.keys]
    row = {
        "from": "store" if stored else "file", "keys": options.keys, "find_us": many["find_us"], "find_us_of_1000": few["find_us"],
        "bytes_a_key": (many["resident"] - few["resident"]) / (options.keys - FEW),
    }
    return row | {name: many[name] for name in ("live_ms", "slowest_ms") if name in many}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", required=True, type=pathlib.Path)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--source", choices=("file", "store", "both"), default="both")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.keys <= FEW:
        parser.error(f"--keys: expected more than {FEW}")
    options.weir = options.weir.resolve()
    with programs.Programs() as run:
        origin = run.origin()
        sources = ("file", "store") if options.source == "both" else (options.source,)
        rows = [measure(run, origin, options, source == "store") for source in sources]
    for row in rows:
        live = f", a change live after {row['live_ms']:.1f} ms (at most {row['slowest_ms']:.1f})" if "live_ms" in row else ""
        print(f"{row['keys']:,} keys from a {row['from']}: {row['bytes_a_key']:.0f} bytes each, a request {row['find_us']:.0f} µs "
              f"(with 1,000 keys {row['find_us_of_1000']:.0f}){live}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    reached = [row["live_ms"] <= AIM_LIVE_MS if row["from"] == "store" else row["bytes_a_key"] <= AIM_BYTES for row in rows]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"keys.py: {failure}")
