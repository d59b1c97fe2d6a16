"""Load tools: the command line of each, and its output as one set of figures.

Figures of a run: requests, seconds, latency (µs: mean, stddev, p50, p75, p90, p95, p99, max; what a tool does not tell is
left out) and errors by class (connect, read, write, status, timeout, other)."""
import json
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess

from programs import Failure, lua

PERCENTILES = (50, 75, 90, 95, 99)
FOLDER = pathlib.Path(__file__).resolve().parent.parent.parent / "target/bench-tools/bin"
NAMES = ("wrk", "oha", "h2load", "k6")
HOW = {"wrk": "tools/install-test-deps", "h2load": "tools/install-test-deps", "oha": "bench/install-tools", "k6": "bench/install-tools"}


def find(name):
    """Path of a tool: first in the suite's own folder, then in the system's; None if it is missing."""
    found = shutil.which(name, path=f"{os.environ.get('BENCH_TOOLS', FOLDER)}{os.pathsep}{os.environ.get('PATH', '')}")
    return found and os.path.abspath(found)


def version(name):
    flag = {"k6": "version"}.get(name, "--version")
    told = subprocess.run([find(name), flag], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return (told.stdout + told.stderr).strip().splitlines()[0].split(" Copyright")[0]


def run(command, cores, seconds, folder, env=None):
    """Output of a tool pinned to its cores, and the seconds of CPU it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(["taskset", "-c", cores, *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=seconds + 120, cwd=folder, env=os.environ | (env or {}))
    except subprocess.TimeoutExpired:
        raise Failure(f"{command[0]} did not end within {seconds + 120} s") from None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # k6 ends with 99 when a threshold is crossed; the suite sets none.
    if done.returncode != 0:
        raise Failure(f"{pathlib.Path(command[0]).name} failed: {(done.stderr + done.stdout).strip()[-600:]}")
    return done.stdout, spent


# --- wrk: closed loop over HTTP/1.1

# Defines no `response` function, which would cost wrk more CPU than the gateway uses.
WRK = """
local texts, at = {}, 0
function init(args)
    for i, one in ipairs(walk) do texts[i] = wrk.format("GET", one[1], one[2]) end
    at = math.random(#texts)
end
function request()
    at = at % #texts + 1
    return texts[at]
end
function done(summary, latency, requests)
    local e = summary.errors
    io.write(string.format("@@{\\"requests\\":%d,\\"us\\":%d,\\"connect\\":%d,\\"read\\":%d,\\"write\\":%d,\\"status\\":%d,\\"timeout\\":%d,"
        .. "\\"mean\\":%f,\\"stddev\\":%f,\\"max\\":%d", summary.requests, summary.duration, e.connect, e.read, e.write, e.status, e.timeout,
        latency.mean, latency.stdev, latency.max))
    for _, p in ipairs({50, 75, 90, 95, 99}) do io.write(string.format(",\\"p%d\\":%d", p, latency:percentile(p))) end
    io.write("}\\n")
end
"""


def wrk_script(folder, requests):
    rows = ",\n".join(f"{{{lua(path)}, {{{', '.join(f'[{lua(k)}]={lua(v)}' for k, v in fields.items())}}}}}" for path, fields in requests)
    file = folder / "walk.lua"
    file.write_text(f"local walk = {{\n{rows}\n}}\n{WRK}")
    return file


def wrk(url, load, seconds, threads, folder, requests):
    threads = min(load["threads"] or threads, load["connections"])
    return [find("wrk"), "-t", threads, "-c", load["connections"], "-d", f"{seconds}s", "--timeout", f"{load['timeout']}s",
            "-s", wrk_script(folder, requests), url]


def read_wrk(output):
    told = next((line[2:] for line in output.splitlines() if line.startswith("@@")), None)
    if told is None:
        raise Failure(f"wrk told nothing: {output[-300:]}")
    told = json.loads(re.sub(r"-?nan|inf", "0", told))
    return {
        "requests": told["requests"], "seconds": told["us"] / 1e6,
        "latency": {name: told[name] for name in ("mean", "stddev", *(f"p{p}" for p in PERCENTILES), "max")},
        "errors": {kind: told[kind] for kind in ("connect", "read", "write", "status", "timeout") if told[kind]},
    }


# --- oha: constant rate, latency from when a request was due

def oha(url, load, seconds, threads, folder, requests):
    command = [find("oha"), "--no-tui", "--output-format", "json", "-z", f"{seconds}s", "-w", "--insecure", "--no-color", "-c", load["connections"],
               "-q", load["rate"], "--latency-correction", "-t", f"{load['timeout']}s"]
    fields = requests[0][1]
    for name, value in fields.items():
        command += ["-H", f"{name}: {value}"]
    if len(requests) > 1:
        # Fields are the same for all requests: cases of a constant rate differ only in the path.
        file = folder / "urls"
        file.write_text("".join(f"{url.rstrip('/')}{path}\n" for path, _ in requests))
        return [*command, "--urls-from-file", file]
    return [*command, url.rstrip("/") + requests[0][0]]


OHA_ERRORS = (("timeout", "timeout|timed out"), ("connect", "connect|refused|dns|address"), ("read", "read|eof|closed|reset|incomplete"), ("write", "write|broken pipe"))


def read_oha(output):
    try:
        told = json.loads(output[output.index("{"):])
    except ValueError:
        raise Failure(f"oha told nothing: {output[-300:]}") from None
    summary, percentiles, errors = told["summary"], told["latencyPercentiles"], {}
    answered = 0
    for status, count in told["statusCodeDistribution"].items():
        answered += count
        if not status.startswith("2"):
            errors["status"] = errors.get("status", 0) + count
    for text, count in told["errorDistribution"].items():
        if "deadline" not in text:  # requests under way at the end
            kind = next((kind for kind, pattern in OHA_ERRORS if re.search(pattern, text.lower())), "other")
            errors[kind] = errors.get(kind, 0) + count
    latency = {f"p{p}": percentiles[f"p{p}"] * 1e6 for p in PERCENTILES if percentiles.get(f"p{p}") is not None}
    for name, key in (("mean", "average"), ("max", "slowest")):
        if summary.get(key) is not None:
            latency[name] = summary[key] * 1e6
    return {"requests": answered, "seconds": summary["total"], "latency": latency, "errors": errors}


# --- h2load: HTTP/2

def h2load(url, load, seconds, threads, folder, requests):
    command = [find("h2load"), "-D", seconds, "-c", load["connections"], "-m", 32, "-t", min(threads, load["connections"]),
               "--log-file", folder / "h2load.log"]
    for name, value in requests[0][1].items():
        command += ["-H", f"{name}: {value}"]
    (folder / "h2load.log").unlink(missing_ok=True)
    return [*command, url.rstrip("/") + requests[0][0]]


def read_h2load(output, log):
    """h2load reports mean and extremes; percentiles are computed from its log of requests: start, status, microseconds."""
    time = re.search(r"finished in ([\d.]+)(us|ms|s)", output)
    counts = re.search(r"requests: .*?(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", output)
    statuses = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", output)
    if not (time and counts and statuses):
        raise Failure(f"h2load told nothing: {output[-300:]}")
    took = sorted(int(line.split()[2]) for line in log.splitlines() if len(line.split()) == 3)
    latency = percentiles_of(took)
    _, succeeded, failed, errored, timeouts = map(int, counts.groups())
    errors = {"status": sum(map(int, statuses.groups()[1:])), "other": max(failed, errored), "timeout": timeouts}
    return {"requests": succeeded, "seconds": float(time[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1}[time[2]], "latency": latency,
            "errors": {kind: count for kind, count in errors.items() if count}}


def percentiles_of(took):
    """Figures of sorted latencies in µs."""
    if not took:
        return {}
    figures = {f"p{p}": took[min(len(took) * p // 100, len(took) - 1)] for p in PERCENTILES}
    return figures | {"mean": statistics.fmean(took), "stddev": statistics.pstdev(took), "max": took[-1]}


# --- k6: users with a script

K6 = """
import http from 'k6/http';
import { sleep } from 'k6';
import { Counter } from 'k6/metrics';

const cases = JSON.parse(open(__ENV.CASES));
const late = new Counter('requests_at_the_end');
const timeouts = new Counter('timeouts'), connects = new Counter('connect_errors'), statuses = new Counter('status_errors'), others = new Counter('other_errors');
const rush = __ENV.RUSH === '1', seconds = Number(__ENV.SECONDS), users = Number(__ENV.USERS);
const began = Date.now();

export const options = {
  insecureSkipTLSVerify: true,
  discardResponseBodies: true,
  summaryTrendStats: ['avg', 'p(50)', 'p(75)', 'p(90)', 'p(95)', 'p(99)', 'max'],
  scenarios: {
    load: rush
      ? { executor: 'ramping-vus', startVUs: 0, stages: [{ duration: `${seconds}s`, target: users }], gracefulRampDown: '5s', gracefulStop: '5s' }
      : { executor: 'constant-vus', vus: users, duration: `${seconds}s`, gracefulStop: '5s' },
  },
};

// A normal deviate by Box and Muller; `normal` is [mean, deviation] or absent.
function choose() {
  if (cases.normal === null) return Math.floor(Math.random() * cases.requests.length);
  const deviate = Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  return Math.min(Math.max(Math.round(cases.normal[0] + cases.normal[1] * deviate), 0), cases.requests.length - 1);
}

export function setup() { return { began: Date.now() }; }

export default function (data) {
  const [path, headers] = cases.requests[choose()];
  const answer = http.get(cases.url + path, { headers, timeout: `${cases.timeout}s`, tags: { name: 'all' } });
  if (answer.status !== 200) {
    const code = answer.error_code;
    (code === 1050 ? timeouts : code >= 1100 && code < 1400 ? connects : answer.status >= 300 ? statuses : others).add(1);
  }
  if (rush) {
    if (Date.now() - data.began > (seconds - cases.end) * 1000) late.add(1);
    sleep(1);
  }
}

export function handleSummary(data) { return { [__ENV.OUT]: JSON.stringify(data) }; }
"""
END = 2  # seconds at the end of a rush over which its final rate is measured


def k6(url, load, seconds, threads, folder, requests, normal=None):
    (folder / "load.js").write_text(K6)
    (folder / "k6.json").write_text(json.dumps(
        {"url": url.rstrip("/"), "requests": requests, "normal": normal, "timeout": load["timeout"], "end": min(END, seconds)}))
    (folder / "k6-out.json").unlink(missing_ok=True)
    settings = {"CASES": folder / "k6.json", "OUT": folder / "k6-out.json", "RUSH": int(load["kind"] == "rush"), "SECONDS": seconds,
                "USERS": load["connections"]}
    flags = sum((["-e", f"{name}={value}"] for name, value in settings.items()), [])
    return [find("k6"), "run", "--quiet", "--no-usage-report", "--address", "", *flags, folder / "load.js"]


def read_k6(text, seconds, rush):
    told = json.loads(text)["metrics"]

    def count(name):
        return int(told.get(name, {}).get("values", {}).get("count", 0))
    times = told.get("http_req_duration", {}).get("values", {})
    latency = {name: times[key] * 1e3 for name, key in (("mean", "avg"), ("max", "max"), *((f"p{p}", f"p({p})") for p in PERCENTILES)) if key in times}
    errors = {kind: count(name) for kind, name in (("timeout", "timeouts"), ("connect", "connect_errors"), ("status", "status_errors"), ("other", "other_errors"))}
    figures = {"requests": count("http_reqs") - sum(errors.values()), "seconds": seconds, "latency": latency,
               "errors": {kind: number for kind, number in errors.items() if number}}
    if rush:
        figures |= {"rps_at_the_end": count("requests_at_the_end") / min(END, seconds), "hits_a_day": figures["requests"] * 86400 / seconds}
    return figures


def load(tool, url, spec, seconds, cores, folder, requests, normal=None):
    """One run of a tool: figures, with `tool_cpu`, the seconds of CPU the tool took."""
    threads = len(os.sched_getaffinity(0)) if cores is None else cores.count(",") + 1
    if not find(tool):
        raise Failure(f"{tool} is missing: {HOW[tool]}")
    env = {"TOKIO_WORKER_THREADS": str(threads), "GOMAXPROCS": str(threads)}
    if tool == "k6":
        unique = [list(one) for one in dict.fromkeys((path, tuple(fields.items())) for path, fields in requests)] if normal is None else requests
        unique = [(path, dict(fields)) for path, fields in unique]
        _, spent = run(k6(url, spec, seconds, threads, folder, unique, normal), cores, seconds, folder, env)
        figures = read_k6((folder / "k6-out.json").read_text(), seconds, spec["kind"] == "rush")
    else:
        make = {"wrk": wrk, "oha": oha, "h2load": h2load}[tool]
        output, spent = run(make(url, spec, seconds, threads, folder, requests), cores, seconds, folder, env)
        if tool == "h2load":
            figures = read_h2load(output, (folder / "h2load.log").read_text())
        else:
            figures = {"wrk": read_wrk, "oha": read_oha}[tool](output)
    return figures | {"tool_cpu": spent, "rps": figures["requests"] / max(figures["seconds"], 1e-9)}
