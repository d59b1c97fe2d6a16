"""The programs a measurement runs: nginx, Weir, the relay and wrk, each pinned to a core, and their figures from the kernel.

Python's standard library only. Everything started here is stopped again, whatever ends the script.
"""
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import transfer

GATEWAY_CORE, LOAD_CORE = 0, 1
TICKS = os.sysconf("SC_CLK_TCK")

BODY = "b" * 200
CONNECTIONS = 64
# A message of gRPC: not compressed, its length, and its content, which a gateway does not look at.
REQUEST_MESSAGE, RESPONSE_MESSAGE = (b"\0" + len(content).to_bytes(4, "big") + content for content in (b"n" * 16, BODY.encode()))

# Limits and pools are far above the needs of a run, equally in every program, so that no connection is renewed.
NGINX = """
worker_processes 1;
daemon off;
pid {dir}/pid;
error_log {dir}/error.log warn;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    default_type text/plain;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    client_body_temp_path {dir}/a; proxy_temp_path {dir}/b; fastcgi_temp_path {dir}/c;
    uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;
    {http}
}}
"""
# Debian's nginx loads its module for streams; others have it built in.
NGINX_STREAM = """
{module}
worker_processes 1;
daemon off;
pid {dir}/pid;
error_log {dir}/error.log warn;
events {{ worker_connections 16384; }}
stream {{ server {{ listen 127.0.0.1:{port} backlog=4096; proxy_pass 127.0.0.1:{to}; }} }}
"""
NGINX_STREAM_MODULE = pathlib.Path("/usr/lib/nginx/modules/ngx_stream_module.so")
NGINX_FIXED = 'server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200 "{body}"; }} }}'
NGINX_TLS = "ssl_certificate {cert}; ssl_certificate_key {key}; ssl_session_cache shared:s:4m; ssl_protocols TLSv1.2 TLSv1.3;"
NGINX_FIXED_TLS = 'server {{ listen 127.0.0.1:{port} ssl backlog=4096; {tls} location / {{ return 200 "{body}"; }} }}'
NGINX_PROXY_TLS = """
    upstream origin {{ server 127.0.0.1:{origin}; keepalive 256; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} ssl backlog=4096; {tls}
        location / {{ proxy_pass {scheme}://origin; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
"""
# One connection to the origin for each stream that is under way, as nginx has it.
NGINX_PROXY_H2 = """
    upstream origin {{ server 127.0.0.1:{origin}; keepalive 1024; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} ssl http2 backlog=4096; {tls}
        location / {{ proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
"""
NGINX_GRPC = """
    upstream origin {{ server 127.0.0.1:{origin}; keepalive 1024; keepalive_requests 1000000000; }}
    server {{ listen 127.0.0.1:{port} http2 backlog=4096; location / {{ grpc_pass grpc://origin; }} }}
"""
# A service of which each call is answered with the same message; its bytes stand in the configuration as they are. It reads a
# call whole before it answers: nginx's grpc_pass fails calls whose service has ended the stream before it has sent all.
NGINX_SERVICE = """
    upstream answers {{ server 127.0.0.1:{inner}; keepalive 1024; keepalive_requests 1000000000; }}
    server {{ listen 127.0.0.1:{inner} backlog=4096; default_type application/grpc; location / {{ return 200 "{message}"; }} }}
    server {{
        listen 127.0.0.1:{port} http2 backlog=4096;
        location / {{
            proxy_pass http://answers; proxy_http_version 1.1; proxy_set_header Connection ""; add_trailer grpc-status 0;
        }}
    }}
"""
NGINX_PROXY = """
    upstream origin {{ server 127.0.0.1:{origin}; keepalive 256; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{ proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
"""

# Defines no `response` function, which would cost wrk more CPU than the gateway uses.
WRK_DONE = """
function done(summary, latency, requests)
    local e = summary.errors
    io.write(string.format(
        "@@{\\"requests\\":%d,\\"us\\":%d,\\"connect\\":%d,\\"read\\":%d,\\"write\\":%d,\\"status\\":%d,\\"timeout\\":%d,"
        .. "\\"p50\\":%d,\\"p95\\":%d,\\"p99\\":%d}\\n", summary.requests, summary.duration, e.connect, e.read, e.write,
        e.status, e.timeout, latency:percentile(50), latency:percentile(95), latency:percentile(99)))
end
"""
WRK_WALK = """
local texts, at = {}, 0
function init(args)
    for i, case in ipairs(walk) do
        texts[i] = wrk.format(case[3] or "GET", case[1], case[2], case[4] and ("b"):rep(case[4]))
    end
end
function request()
    at = at % #texts + 1
    return texts[at]
end
"""


class Failure(Exception):
    """A missing precondition of the measurement."""


class Programs:
    """Started programs and their scratch folder; a context manager that stops and removes them."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weir-bench-"))
        self.started = []

    def __enter__(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        return self

    def __exit__(self, *_):
        self.stop(*self.started)
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self, *programs):
        """Ends the started programs; kills those that do not end by themselves."""
        for program in programs:
            program.process.terminate()
        for program in programs:
            try:
                program.process.wait(5)
            except subprocess.TimeoutExpired:
                program.process.kill()
                program.process.wait()
        self.started = [program for program in self.started if program not in programs]

    def start(self, name, command, port, core, wait=30, tls=False):
        """Runs `command` on one core (or several: "0,1") and waits until it accepts connections on `port`."""
        log = self.folder / f"{name}.log"
        with open(log, "wb") as out:
            # pdeathsig: the programs end even after a kill -9 of this script.
            command = ["setpriv", "--pdeathsig", "TERM", "taskset", "-c", str(core), *map(str, command)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        program = Program(name, process, port, tls)
        self.started.append(program)
        deadline = time.monotonic() + wait
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return program
            except OSError:
                if process.poll() is not None:
                    raise Failure(f"{name} ended with status {process.returncode}:\n{log.read_text()[-2000:]}")
                if time.monotonic() > deadline:
                    raise Failure(f"{name} did not listen within {wait} s:\n{log.read_text()[-2000:]}")
                time.sleep(0.01)

    def nginx(self, name, http, port, core, tls=False):
        folder = self.folder / name
        return self.run_nginx(folder, NGINX.format(dir=folder, http=http), port, core, tls)

    def nginx_stream(self, name, to):
        """Passes bytes of TCP on to a port."""
        folder, port = self.folder / name, free_port()
        module = f"load_module {NGINX_STREAM_MODULE};" if NGINX_STREAM_MODULE.exists() else ""
        return self.run_nginx(folder, NGINX_STREAM.format(dir=folder, module=module, port=port, to=to), port, GATEWAY_CORE)

    def run_nginx(self, folder, text, port, core, tls=False):
        name = folder.name
        folder.mkdir()
        (folder / "nginx.conf").write_bytes(text.encode("latin-1"))
        nginx = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
        if not nginx:
            raise Failure("nginx is missing: run tools/install-test-deps")
        return self.start(name, [nginx, "-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"], port, core, tls=tls)

    def origin(self):
        port = free_port()
        return self.nginx("origin", NGINX_FIXED.format(port=port, body=BODY), port, LOAD_CORE)

    def service(self):
        """A gRPC service over HTTP/2 without TLS."""
        port, inner, message = free_port(), free_port(), RESPONSE_MESSAGE.decode("latin-1")
        return self.nginx("service", NGINX_SERVICE.format(port=port, inner=inner, message=message), port, LOAD_CORE)

    def source(self):
        """A service that sends bytes without end."""
        port = free_port()
        return self.start("source", transfer.command("serve", port), port, LOAD_CORE)

    def redis(self):
        """A server that keeps nothing on a disk."""
        port = free_port()
        return self.start("redis", [
            "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", self.folder,
        ], port, LOAD_CORE)

    def certificate(self):
        """Paths of a certificate (ECDSA, P-256) and its key, the same for every program."""
        cert, key = self.folder / "cert.pem", self.folder / "key.pem"
        if not cert.exists():
            subprocess.run([
                "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", "/CN=bench.test", "-addext", "subjectAltName=DNS:bench.test", "-keyout", key, "-out", cert,
            ], check=True, capture_output=True)
        return cert, key

    def secure_origin(self):
        port = free_port()
        return self.nginx("secure-origin", NGINX_FIXED_TLS.format(port=port, body=BODY, tls=self.nginx_tls()), port, LOAD_CORE)

    def nginx_tls(self):
        cert, key = self.certificate()
        return NGINX_TLS.format(cert=cert, key=key)

    def weir(self, binary, name, config, tls=False, prior_knowledge=False, tcp=False, usage=False, core=GATEWAY_CORE):
        """`config` is written as JSON, which is YAML too. `prior_knowledge`: clients may speak HTTP/2 without TLS. `tcp`: the
        port is one of stream routes. `usage`: requests are recorded, and counts are kept, in a folder of its own."""
        file, port = self.folder / f"{name}.yaml", free_port()
        if tls:
            cert, key = self.certificate()
            config = {**config, "ssls": [{"sni": "bench.test", "cert": cert.read_text(), "key": key.read_text()}]}
        file.write_text(json.dumps(config) + "\n#END\n")
        address = f"127.0.0.1:{port}"
        plain = {"address": f"127.0.0.1:{free_port()}" if tls or tcp else address, "http2": prior_knowledge}
        listen = {"http": [plain], "https": [address] if tls else [], "tcp": [address] if tcp else []}
        settings = self.folder / f"{name}.settings.yaml"
        chosen = {"listen": listen, "limits": {"requests_per_connection": 0}}
        if usage:
            chosen |= {"usage": {"enabled": True}, "store": {"data_dir": str(self.folder / f"{name}.data")}}
        settings.write_text(json.dumps(chosen))
        return self.start(name, [
            binary, "run", file, "--settings", settings, "--metrics", "off", "--status", "off", "--workers", "1", "--set", "tls.fallback_sni=bench.test",
        ], port, core, tls=tls)

    def weir_tyk(self, binary, name, apis, sessions):
        """The gateway with API definitions in Tyk's form; the sessions are made over its API."""
        folder, port = self.folder / name, free_port()
        (folder / "apps").mkdir(parents=True)
        for api in apis:
            (folder / "apps" / f"{api['api_id']}.json").write_text(json.dumps(api))
        conf = folder / "tyk.conf"
        conf.write_text(json.dumps({"listen_address": "127.0.0.1", "listen_port": port, "secret": "bench", "app_path": "./apps", "hash_keys": True}))
        program = self.start(name, [
            binary, "run", conf, "--listen-https", "off", "--data-dir", folder / "data", "--metrics", "off", "--status", "off", "--workers", "1",
            "--set", "limits.requests_per_connection=0",
        ], port, GATEWAY_CORE)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        for key, session in sessions.items():
            connection.request("POST", f"/tyk/keys/{key}", json.dumps(session), {"x-tyk-authorization": "bench"})
            answer = connection.getresponse()
            told = answer.read().decode(errors="replace")
            if answer.status != 200:
                raise Failure(f"{name}: the key {key} is answered {answer.status} {told[:400]!r}")
        connection.close()
        return program

    def relay(self, binary, to):
        port = free_port()
        return self.start("relay", [binary, "--listen", f"127.0.0.1:{port}", "--to", f"127.0.0.1:{to}"], port, GATEWAY_CORE)

    def script(self, name, walk=None):
        """A wrk script; `walk` is a list of (path, headers) that it repeats, optionally followed by a method and the size
        of a body."""
        text = WRK_DONE
        if walk:
            rows = ",\n".join(
                f"{{{lua(path)}, {{{', '.join(f'[{lua(k)}]={lua(v)}' for k, v in headers.items())}}}"
                + "".join(f", {json.dumps(one)}" for one in more) + "}" for path, headers, *more in walk)
            text += f"local walk = {{\n{rows}\n}}\n" + WRK_WALK
        path = self.folder / f"{name}.lua"
        path.write_text(text)
        return path


class Program:
    def __init__(self, name, process, port, tls=False):
        self.name, self.process, self.port, self.tls = name, process, port, tls

    def origin(self):
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    def tree(self):
        """Ids of the process and all its descendants (nginx works in a child)."""
        found, queue = [], [self.process.pid]
        while queue:
            pid = queue.pop()
            found.append(pid)
            for thread in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
                queue += [int(child) for child in thread.read_text().split()]
        return found

    def cpu(self):
        """Seconds of (user, system) time spent so far. The sum is the scheduler's, in nanoseconds, if the kernel
        reports it; user and system are counted in ticks of 10 ms and only give the shares."""
        user = system = exact = 0
        for pid in self.tree():
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            user, system = user + int(fields[11]) / TICKS, system + int(fields[12]) / TICKS
            for thread in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
                exact += int(thread.read_text().split()[0]) / 1e9
        return user, system, exact or user + system

    def resident(self):
        """Bytes of resident memory of the whole tree. Memory shared by several processes, such as a configuration that was
        read before a fork, counts once: each process has a proportional share of it."""
        pids = self.tree()
        if len(pids) == 1:
            return int(pathlib.Path(f"/proc/{pids[0]}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        shares = (re.search(r"^Pss:\s+(\d+)", pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE) for pid in pids)
        return 1024 * sum(int(share[1]) for share in shares if share)


def load(program, script, seconds):
    """Runs wrk against `program`; returns a dict of figures, in which `void` is the reason if the run is invalid."""
    command = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t", "1", "-c", str(CONNECTIONS), "-d", f"{seconds}s", "--latency",
               "-s", str(script), f"http{'s' if program.tls else ''}://127.0.0.1:{program.port}/"]
    before = program.cpu()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds + 60)
    after = program.cpu()
    told = [line[2:] for line in done.stdout.splitlines() if line.startswith("@@")]
    if done.returncode != 0 or not told:
        raise Failure(f"wrk against {program.name} failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    told = json.loads(told[0])
    user, system, total = (1e6 * (b - a) / max(told["requests"], 1) for a, b in zip(before, after))
    errors = {kind: told[kind] for kind in ("connect", "read", "write", "status", "timeout") if told[kind]}
    void = ", ".join(f"{count} {kind} errors" for kind, count in errors.items())
    return {
        "program": program.name, "requests": told["requests"], "seconds": told["us"] / 1e6, "cpu_us": total,
        "user_us": total * user / max(user + system, 1e-9), "rps": told["requests"] / (told["us"] / 1e6), "p50_us": told["p50"], "p95_us": told["p95"],
        "p99_us": told["p99"], "void": void or ("" if told["requests"] else "no request was answered"),
    }


def handshakes(program, resumed, seconds):
    """Runs openssl against `program`, one connection after the other with one request each: figures per connection."""
    command = ["taskset", "-c", str(LOAD_CORE), "openssl", "s_time", "-connect", f"127.0.0.1:{program.port}", "-www", "/",
               "-reuse" if resumed else "-new", "-time", str(seconds)]
    before = program.cpu()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds + 60)
    after = program.cpu()
    # With -reuse the first figures belong to the connection that creates the session.
    counts = re.findall(r"(\d+) connections in (\d+) real seconds", done.stdout)
    if done.returncode != 0 or not counts:
        raise Failure(f"openssl against {program.name} failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    count = int(counts[-1][0])
    user, system, total = (1e6 * (b - a) / max(count, 1) for a, b in zip(before, after))
    # One letter per connection: * is a full handshake, r a resumed one.
    marks = "".join(re.findall(r"^[*r3t]+", done.stdout, re.MULTILINE))
    wrong = marks.count("*") if resumed else marks.count("r")
    void = f"{wrong} of {len(marks)} handshakes were of the other kind" if wrong > 1 + len(marks) // 100 else ""
    return {
        "program": program.name, "requests": count, "seconds": seconds, "cpu_us": total, "user_us": total * user / max(user + system, 1e-9),
        "rps": count / seconds, "p50_us": 0, "p95_us": 0, "p99_us": 0, "void": void or ("" if count else "no connection was made"),
    }


_taken = set()


def free_port():
    """A free port of the loopback address, different at each call. It is below the range of outgoing connections, of
    which a run opens thousands, so that none of them takes the port before its program listens."""
    try:
        above = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        above = 32768
    for _ in range(10_000):
        port = random.randrange(10_000, above) if above > 11_000 else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            port = probe.getsockname()[1]
        if port not in _taken:
            _taken.add(port)
            return port
    raise Failure("no free port on 127.0.0.1")


def lua(text):
    """A Lua string literal; JSON's escapes are Lua's for the plain ASCII used here."""
    assert text.isascii() and text.isprintable(), text
    return json.dumps(text)


def machine():
    """Properties of the machine that a reader needs for judging the figures."""
    def first(path, default="?"):
        try:
            return pathlib.Path(path).read_text().strip()
        except OSError:
            return default
    model = next((line.split(":")[1].strip() for line in first("/proc/cpuinfo").splitlines() if line.startswith("model name")), "?")
    before = processor_times()
    time.sleep(0.5)
    busy, steal = shares(before, processor_times())
    return {
        "model": model, "cores": os.cpu_count(), "governor": first("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "unknown"),
        "kernel": os.uname().release, "busy_before": busy, "steal_before": steal,
    }


def processor_times():
    return [int(field) for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


STOLEN = 0.05  # share of a core's time: stolen time is charged to the running program, so figures of such a run are wrong
AGAIN = 3  # number of repetitions of a run or a round with too much stolen time


def core_times(text=None):
    """Maps each core to its times, from /proc/stat."""
    lines = (text or pathlib.Path("/proc/stat").read_text()).splitlines()
    return {int(name[3:]): [int(field) for field in fields[:8]] for name, *fields in map(str.split, filter(None, lines)) if name[:3] == "cpu" and name[3:]}


def cores_of(*lists):
    """Cores in taskset's list format: "0,2-3"."""
    ranges = [part.partition("-") for one in lists for part in str(one).split(",")]
    return {core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)}


def stolen(before, after, cores):
    """Largest share of one core's time that the host has stolen between two readings."""
    return max((shares(before[core], after[core])[1] for core in cores if core in before and core in after), default=0.0)


def unstolen(measure, cores, times=core_times):
    """Result of `measure` while the host steals little time of these cores: (figures, share stolen, shares stolen in
    earlier attempts). After the maximum number of attempts, the last result is returned in any case."""
    spoilt = []
    while True:
        before = times()
        figures = measure()
        share = stolen(before, times(), cores)
        if share <= STOLEN or len(spoilt) == AGAIN:
            return figures, share, spoilt
        spoilt.append(share)


def shares(before, after):
    """Shares of all cores' time between two readings: (busy with anything, stolen by the host)."""
    user, nice, system, idle, wait, irq, soft, steal = (b - a for a, b in zip(before, after))
    total = max(user + nice + system + idle + wait + irq + soft + steal, 1)
    return 1 - (idle + wait) / total, steal / total
