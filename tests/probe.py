#!/usr/bin/env python3
"""Runs an HTTP/1.1 framing probe against the gateway, as its set-up asks: one catch-all route to the probe's own recording
backend, header, body and idle timeouts of 5 s, upstream connect 3 s and read 5 s, upgrades allowed.

    tests/probe.py --weir target/release/weir --probe PATH/h1_probe.py [further options of the probe]

The exit status is the probe's: 0 only without FAIL and CRIT. The probe judges by the clock: what failed while the machine
itself was starved (a virtual machine that is paused or throttled) is run again, and only then.
"""
import argparse
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

# Seconds that a tenth of a second and a little work may take on a machine that is not starved: usually it is 0.11, and 0.4
# on one that gives a hundredth of a processor.
STARVED = 0.3
# Runs, while the machine goes on to be starved.
MOST_RUNS = 3


def free_ports(count):
    """Free ports of the loopback address, held together while they are chosen so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", required=True)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--json", type=pathlib.Path, help="where the probe writes its results")
    options, further = parser.parse_known_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    port, backend = free_ports(2)
    with tempfile.TemporaryDirectory() as folder:
        config, settings = pathlib.Path(folder, "apisix.yaml"), pathlib.Path(folder, "weir.yaml")
        config.write_text(json.dumps({"routes": [{
            "id": "all", "uri": "/*", "enable_websocket": True,
            "upstream": {"nodes": {f"127.0.0.1:{backend}": 1}, "timeout": {"connect": 3, "send": 5, "read": 5}},
        }]}) + "\n#END\n")
        settings.write_text(json.dumps({"timeouts": {"head": 5, "idle": 5, "body": 5, "send": 5}}) + "\n")
        gateway = subprocess.Popen([
            options.weir, "run", config, "--settings", settings, "--listen-http", f"127.0.0.1:{port}", "--listen-https", "off",
            "--metrics", "off", "--status", "off", "--workers", "1"])
        try:
            await_port(port, gateway)
            results = options.json or pathlib.Path(folder, "results.json")
            probe = [
                sys.executable, options.probe, "--target", f"127.0.0.1:{port}", "--backend-port", str(backend),
                "--pid", str(gateway.pid), "--label", "weir", "--json", results, *further]
            status = run_probe(probe, results)
            if gateway.poll() is not None:
                print(f"probe: the gateway ended with status {gateway.returncode}")
                return 1
            return status
        finally:
            gateway.terminate()
            try:
                gateway.wait(10)
            except subprocess.TimeoutExpired:
                gateway.kill()
                gateway.wait()


def run_probe(command, results):
    """The probe's exit status, without what failed only while the machine was starved."""
    only = []
    for _ in range(MOST_RUNS):
        with Clock() as clock:
            status = subprocess.run(command + only).returncode
        if status != 1 or clock.longest < STARVED:
            break
        cases = json.loads(results.read_text())["results"]
        failed = [each["case"] for each in cases if each["verdict"] not in ("PASS", "WARN")]
        if not failed:
            break
        print(f"probe: the machine was starved ({clock.longest:.1f} s); once more: {', '.join(failed)}", flush=True)
        only = ["--only", "^({})$".format("|".join(map(re.escape, failed)))]
    return status


class Clock:
    """Takes the time of a rest and a little work again and again, for the longest one."""

    def __enter__(self):
        self.longest, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self):
        last = time.time()
        while not self.done.wait(0.1):
            sum(range(100_000))
            now = time.time()
            self.longest, last = max(self.longest, now - last), now

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def await_port(port, process):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None:
                sys.exit(f"probe: the gateway ended with status {process.returncode}")
            time.sleep(0.02)
    sys.exit("probe: the gateway did not listen within 30 s")


if __name__ == "__main__":
    sys.exit(main())
