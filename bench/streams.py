"""Load over HTTP/2 for quick.py: h2load against a program, and single requests with nghttp to check its answers."""
import re
import subprocess

from programs import LOAD_CORE, REQUEST_MESSAGE, Failure
from suite.tools import read_h2load

CONNECTIONS, STREAMS = 16, 32


def load(run, program, walk, seconds):
    """Runs h2load against `program` with the list of (path, headers) in `walk`; the headers are the same for all paths.
    Returns figures as `programs.load` does. `run` is the `Programs` whose folder is used."""
    log, uris = run.folder / "h2load.log", run.folder / "h2load.uris"
    log.unlink(missing_ok=True)
    uris.write_text("".join(f"{program.origin()}{path}\n" for path, _ in walk))
    command = ["taskset", "-c", str(LOAD_CORE), "h2load", "-t", "1", "-c", str(CONNECTIONS), "-m", str(STREAMS), "-D", str(seconds),
               "--log-file", log, "-i", uris, *fields(walk[0][1]), *(["-d", message(run)] if is_call(walk[0]) else [])]
    before = program.cpu()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds + 60)
    after = program.cpu()
    if done.returncode != 0:
        raise Failure(f"h2load against {program.name} failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return figures(program.name, read_h2load(done.stdout, log.read_text()), before, after)


def figures(name, told, before, after):
    """Figures of a run: what h2load has told, and CPU times of the program before and after."""
    count, latency = told["requests"], told["latency"]
    user, system, total = (1e6 * (b - a) / max(count, 1) for a, b in zip(before, after))
    void = ", ".join(f"{number} {kind} errors" for kind, number in told["errors"].items())
    return {
        "program": name, "requests": count, "seconds": told["seconds"], "cpu_us": total, "user_us": total * user / max(user + system, 1e-9),
        "rps": count / told["seconds"], **{f"{p}_us": latency.get(p, 0) for p in ("p50", "p95", "p99")},
        "void": void or ("" if count else "no request was answered"),
    }


def ask(run, program, path, headers):
    """Sends one request: its status, and all that was received, fields and content, as text."""
    command = ["nghttp", "-v", "--timeout=5", *fields(headers)]
    if is_call((path, headers)):
        command += ["-d", message(run), "-H", ":method: POST"]
    done = subprocess.run([*command, program.origin() + path], stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    text = done.stdout.decode("latin-1")
    status = re.search(r"recv \(stream_id=\d+\) :status: (\d+)", text)
    return int(status[1]) if status else 0, text


def is_call(request):
    """True for a call of gRPC, which has a message."""
    return request[1].get("content-type") == "application/grpc"


def message(run):
    """Path of the message of a call."""
    path = run.folder / "message"
    path.write_bytes(REQUEST_MESSAGE)
    return path


def fields(headers):
    return [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
