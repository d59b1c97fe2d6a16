#!/usr/bin/env python3
"""Weir against nginx and a byte relay, in about two minutes: CPU per request, throughput, latency, ratios, aims.

Each gateway is pinned to core 0; the load and a 200-byte nginx origin share core 1. The load is wrk with 64 keep-alive
connections or, over HTTP/2, h2load with 16 connections of 32 streams. In each round every case runs its programs one right
after the other (A B A B ...), and a ratio is taken within a round, for absolute figures drift on a shared machine. Both
programs of a pair get byte for byte the same requests. CPU per request is what the kernel charged the program (user and
system) divided by the requests answered. One error makes the run void.
A round of a case in which the host stole more than 5 % of a core's time is measured again, three times at most, and does
not count; a case without a round that counts is void.

    bench/quick.py --weir target/dist/weir --relay target/dist/relay
    bench/quick.py --target-only nginx,relay            # only the references
"""
import argparse
import base64
import functools
import http.client
import json
import os
import pathlib
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time

import programs
import streams
import transfer
from programs import BODY, Failure

# name, subject and reference program, the requests that both get, the aim (ratio of CPU per request; None: no aim set)
PAIRS = [
    ("bare", "weir bare", "nginx bare", "plain", 0.88),
    ("bare / relay", "weir bare", "relay", "plain", 1.06),
    ("key-auth", "weir key-auth", "nginx bare", "one key", None),
    ("limit-count", "weir limit-count", "nginx bare", "plain", None),
    ("limit-count in Redis / local", "weir limit-count in Redis", "weir limit-count", "plain", 1.6),
    ("limit-count by leases / local", "weir limit-count by leases in Redis", "weir limit-count", "plain", 1.05),
    ("key-auth + plan + usage, 100/100", "weir key-auth + plan + usage", "nginx bare", "100 keys", 0.95),
    ("key-auth + limit-count, 100/100", "weir key-auth + limit-count", "nginx bare", "100 keys", 0.92),
    ("basic-auth + limit-count, 100/100", "weir basic-auth + limit-count", "nginx bare", "100 passwords", 0.95),
    ("mocking", "weir mocking", "nginx return", "plain", 0.85),
    ("100,000 routes / 1 route", "weir 100,000 routes", "weir bare", "many paths", 1.03),
    ("http-logger / bare", "weir http-logger", "weir bare", "plain", 1.06),
    ("file-logger / bare", "weir file-logger", "weir bare", "plain", 1.06),
    ("forward-auth / bare", "weir forward-auth", "weir bare", "plain", None),
    ("five plugins", "weir five plugins", "nginx bare", "one key of an origin", 1.0),
    ("HTTPS to HTTP", "weir https", "nginx https", "plain", 0.85),
    ("HTTPS to HTTPS", "weir https to https", "nginx https to https", "plain", 0.85),
    ("handshakes, full", "weir https", "nginx https", "handshakes", 1.0),
    ("handshakes, resumed", "weir https", "nginx https", "resumed handshakes", 1.0),
    ("HTTP/2 over TLS to HTTP/1.1", "weir https http2", "nginx http2", "streams", 0.50),
    ("HTTP/2, key-auth + limit-count, 100/100", "weir https http2 key-auth + limit-count", "nginx http2", "100 keys in streams", 0.55),
    ("HTTP/1.1 to a shared HTTP/2 upstream", "weir to http2", "nginx bare", "plain", 0.75),
    ("unary gRPC", "weir grpc", "nginx grpc", "calls", 0.60),
    ("TCP, requests and answers of 200 bytes", "weir tcp", "nginx tcp", "plain", 0.90),
    ("TCP, one long stream, per MiB", "weir tcp to a source", "nginx tcp to a source", "one stream", 1.0),
    ("Kong's form, bare / APISIX's", "weir kong bare", "weir bare", "plain", 1.03),
    ("Kong's form, rate-limiting / limit-count", "weir kong rate-limiting", "weir limit-count", "plain", 1.03),
    ("Kong's form, key-auth + rate-limiting, 100/100", "weir kong key-auth + rate-limiting", "weir key-auth + limit-count", "100 keys", 1.03),
    ("Kong's form, basic-auth + rate-limiting, 100/100", "weir kong basic-auth + rate-limiting", "weir basic-auth + limit-count", "100 passwords", 1.03),
    ("Kong's form, jwt RS256 / jwt-auth", "weir kong jwt", "weir jwt-auth", "a token", 1.03),
    ("Kong's form, 100,000 routes / 1 route", "weir kong 100,000 routes", "weir kong bare", "many paths", 1.03),
    ("Tyk's form, keyless / APISIX's", "weir tyk keyless", "weir bare", "plain", 1.03),
    ("Tyk's form, key + rate + quota, 100/100", "weir tyk key + rate + quota", "nginx bare", "100 keys", 0.95),
]
# What h2load repeats, as (path, headers): it has the same headers for all of its requests.
STREAMS = {
    "streams": [("/", {})],
    "100 keys in streams": [(f"/service-{k % 100}/item?apikey=key-of-{(k // 100 * 7 + k) % 100}", {}) for k in range(1000)],
    "calls": [("/bench.Service/Call", {"content-type": "application/grpc", "te": "trailers"})],
}
MOCK = {"response_example": BODY, "response_status": 200, "content_type": "text/plain"}
# What file-logger writes; it is removed in the end.
LOG = os.path.join(tempfile.gettempdir(), f"weir-quick-{os.getpid()}.log")
FAIR = "CPU per request, in µs: total (of which user). A ratio is the median over the rounds (lowest to highest)."


@functools.cache
def token():
    """(a public key in PEM, a token of RS256 for the issuer `key-of-0`), made by openssl."""
    def coded(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    with tempfile.TemporaryDirectory() as folder:
        def openssl(*words, data=None):
            return subprocess.run(["openssl", *words], cwd=folder, input=data, check=True, capture_output=True).stdout

        openssl("genrsa", "-out", "key.pem", "2048")
        public = openssl("rsa", "-in", "key.pem", "-pubout").decode()
        claims = {"iss": "key-of-0", "key": "key-of-0", "exp": int(time.time()) + 86_400}
        parts = [coded(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT"}, claims)]
        signed = b".".join(parts)
        return public, b".".join([signed, coded(openssl("dgst", "-sha256", "-sign", "key.pem", data=signed))]).decode()


def requests():
    """Maps each name to the list of (path, headers) that wrk or h2load repeats; None is the one plain request."""
    pairs = [(k % 100, (k // 100 * 7 + k) % 100) for k in range(1000)]
    basic = [base64.b64encode(f"user{c}:password{c}".encode()).decode() for c in range(100)]
    return {
        "plain": None,
        "one key": [("/", {"apikey": "key-of-0"})],
        "one key of an origin": [("/", {"apikey": "key-of-0", "Origin": "https://app.test"})],
        "one stream": None,
        "handshakes": None,
        "resumed handshakes": None,
        "100 keys": [(f"/service-{r}/item", {"apikey": f"key-of-{c}"}) for r, c in pairs],
        "100 passwords": [(f"/service-{r}/item", {"Authorization": f"Basic {basic[c]}"}) for r, c in pairs],
        "a token": [("/", {"Authorization": f"Bearer {token()[1]}"})],
        "many paths": [(f"/service/{k * 99 % 100_000}", {}) for k in range(1000)],
        **STREAMS,
    }


def configs(origin, secure=0, redis=0, batching=0, service=0, source=0):
    """name -> APISIX configuration; `origin`, `secure`, `batching` (over HTTP/2), `service` (gRPC) and `source` (bytes without
    end) are the ports of the origins, `redis` is that of Redis."""
    limit = {"count": 1_000_000_000, "time_window": 60, "rejected_code": 429}
    by_address = {"limit-count": {**limit, "key": "remote_addr"}}
    in_redis = {"limit-count": {**limit, "key": "remote_addr", "policy": "redis", "redis_host": "127.0.0.1", "redis_port": redis or 6379}}
    by_leases = {"limit-count": {**in_redis["limit-count"], "lease": True}}
    by_consumer = {"limit-count": {**limit, "key": "consumer_name"}}
    key_consumers = [{"username": f"user{c}", "plugins": {"key-auth": {"key": f"key-of-{c}"}}} for c in range(100)]
    plan = {"id": "month", "limits": [{"count": 1_000_000_000, "per": "month", "window": "calendar"}]}
    on_plan = [{**consumer, "group_id": "all"} for consumer in key_consumers]
    basic_consumers = [
        {"username": f"user{c}", "plugins": {"basic-auth": {"username": f"user{c}", "password": f"password{c}"}}}
        for c in range(100)
    ]
    pool = {"size": 320, "idle_timeout": 60, "requests": 1_000_000_000}
    upstreams = [{"id": "origin", "nodes": {f"127.0.0.1:{origin}": 1}, "keepalive_pool": pool}]
    upstream = {"upstream_id": "origin"}

    def one(plugins, consumers=(), **route):
        return {"routes": [{"id": "one", "uri": "/*", "plugins": plugins, **route}], "consumers": list(consumers), "upstreams": upstreams}

    def hundred(plugins, consumers, upstreams=upstreams):
        routes = [{"id": f"r{r}", "uri": f"/service-{r}/*", "plugins": plugins, **upstream} for r in range(100)]
        return {"routes": routes, "consumers": consumers, "upstreams": upstreams}

    def tcp(port):
        return {"stream_routes": [{"id": "one", "upstream": {"scheme": "tcp", "nodes": {f"127.0.0.1:{port}": 1}}}]}

    # A connection for each stream that is under way.
    many = [{**upstreams[0], "keepalive_pool": {**pool, "size": 1024}}]
    return {
        "weir bare": one({}, **upstream),
        "weir https": one({}, **upstream),
        "weir https to https": one({}, upstream={"nodes": {f"127.0.0.1:{secure}": 1}, "scheme": "https", "keepalive_pool": pool}),
        "weir five plugins": one({
            "cors": {"allow_origins": "https://app.test,https://other.test"}, "ip-restriction": {"whitelist": ["127.0.0.0/8", "10.0.0.0/8"]},
            "request-id": {}, "key-auth": {}, **by_consumer,
        }, key_consumers[:1], **upstream),
        "weir key-auth": one({"key-auth": {}}, key_consumers[:1], **upstream),
        "weir limit-count": one(by_address, **upstream),
        "weir limit-count in Redis": one(in_redis, **upstream),
        "weir limit-count by leases in Redis": one(by_leases, **upstream),
        "weir key-auth + plan + usage": {
            **hundred({"key-auth": {}}, on_plan), "plans": [plan],
            "consumer_groups": [{"id": "all", "plugins": {"plan": {"plans": ["month"]}}}],
        },
        "weir key-auth + limit-count": hundred({"key-auth": {}, **by_consumer}, key_consumers),
        "weir basic-auth + limit-count": hundred({"basic-auth": {}, **by_consumer}, basic_consumers),
        "weir jwt-auth": one({"jwt-auth": {}}, [
            {"username": "user0", "plugins": {"jwt-auth": {"key": "key-of-0", "algorithm": "RS256", "public_key": token()[0]}}},
        ], **upstream),
        "weir http-logger": one({"http-logger": {"uri": f"http://127.0.0.1:{origin}/logs"}}, **upstream),
        "weir file-logger": one({"file-logger": {"path": LOG}}, **upstream),
        "weir forward-auth": one({"forward-auth": {"uri": f"http://127.0.0.1:{origin}/auth", "keepalive_pool": 320}}, **upstream),
        "weir mocking": one({"mocking": MOCK}),
        "weir https http2": {**one({}, **upstream), "upstreams": many},
        "weir https http2 key-auth + limit-count": hundred({"key-auth": {}, **by_consumer}, key_consumers, many),
        "weir to http2": one({}, upstream={"nodes": {f"127.0.0.1:{batching}": 1}, "scheme": "http", "http2": True, "keepalive_pool": pool}),
        "weir grpc": one({}, upstream={"nodes": {f"127.0.0.1:{service}": 1}, "scheme": "grpc", "keepalive_pool": pool}),
        "weir tcp": tcp(origin),
        "weir tcp to a source": tcp(source),
        "weir 100,000 routes": {
            "routes": [{"id": f"r{r}", "uri": f"/service/{r}", **upstream} for r in range(100_000)], "upstreams": upstreams,
        },
    }


def kong_configs(origin):
    """name -> configuration in Kong's form, which does the same as the one in APISIX's form beside it."""
    limit = {"name": "rate-limiting", "config": {"minute": 1_000_000_000, "policy": "local"}}
    by_address = {**limit, "config": {**limit["config"], "limit_by": "ip"}}
    by_consumer = {**limit, "config": {**limit["config"], "limit_by": "consumer"}}
    key_consumers = [{"username": f"user{c}", "keyauth_credentials": [{"key": f"key-of-{c}"}]} for c in range(100)]
    basic_consumers = [
        {"username": f"user{c}", "basicauth_credentials": [{"username": f"user{c}", "password": f"password{c}"}]} for c in range(100)
    ]

    def kong(paths, plugins, consumers=()):
        routes = [{"name": f"r{number}", "paths": [path], "strip_path": False} for number, path in enumerate(paths)]
        service = {"name": "origin", "url": f"http://127.0.0.1:{origin}", "routes": routes}
        return {"_format_version": "3.0", "services": [service], "plugins": plugins, "consumers": list(consumers)}

    hundred = [f"/service-{r}/" for r in range(100)]
    return {
        "weir kong bare": kong(["/"], []),
        "weir kong rate-limiting": kong(["/"], [by_address]),
        "weir kong key-auth + rate-limiting": kong(hundred, [{"name": "key-auth"}, by_consumer], key_consumers),
        "weir kong basic-auth + rate-limiting": kong(hundred, [{"name": "basic-auth"}, by_consumer], basic_consumers),
        "weir kong jwt": kong(["/"], [{"name": "jwt"}], [
            {"username": "user0", "jwt_secrets": [{"key": "key-of-0", "algorithm": "RS256", "rsa_public_key": token()[0]}]},
        ]),
        "weir kong 100,000 routes": kong([f"/service/{r}" for r in range(100_000)], []),
    }


def tyk_configs(origin):
    """name -> (API definitions in Tyk's form, sessions by the name of their key)."""
    def api(name, path, **fields):
        # The keys of the other forms stand in this header, too.
        return {
            "name": name, "api_id": name, "org_id": "bench", "auth": {"auth_header_name": "apikey"}, **fields,
            "version_data": {"not_versioned": True, "versions": {"Default": {"name": "Default"}}},
            "proxy": {"listen_path": path, "target_url": f"http://127.0.0.1:{origin}{path}", "strip_listen_path": True},
        }

    hundred = [api(f"r{r}", f"/service-{r}/") for r in range(100)]
    session = {
        "org_id": "bench", "rate": 1_000_000_000, "per": 60, "quota_max": 1_000_000_000, "quota_renewal_rate": 2_592_000,
        "access_rights": {one["api_id"]: {"api_id": one["api_id"], "api_name": one["name"], "versions": ["Default"]} for one in hundred},
    }
    return {
        "weir tyk keyless": ([api("bare", "/", use_keyless=True)], {}),
        "weir tyk key + rate + quota": (hundred, {f"key-of-{c}": session for c in range(100)}),
    }


def check_streams(run, program, walk):
    """As `check`, over HTTP/2."""
    for path, headers in (walk[0], walk[-1]):
        status, text = streams.ask(run, program, path, headers)
        if status != 200 or BODY not in text:
            raise Failure(f"{program.name}: {path} answered {status} {text[-400:]!r}")
        if "content-type" in headers and "grpc-status: 0" not in text:
            raise Failure(f"{program.name}: {path} answered without grpc-status: {text[-400:]!r}")
        if "limit-count" in program.name and "x-ratelimit-remaining" not in text.lower():
            raise Failure(f"{program.name}: no X-RateLimit-Remaining: limit-count did not run")
        if "key-auth" in program.name and (status := streams.ask(run, program, path.split("?")[0], headers)[0]) != 401:
            raise Failure(f"{program.name}: {path} without its key answered {status}")


def check(program, walk):
    """Sends the first and the last kind of request once: a program with wrong answers must not be measured. If the
    configuration requires credentials, the same request without them has to be refused."""
    def get(path, headers):
        if program.tls:
            any_certificate = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection("127.0.0.1", program.port, timeout=5, context=any_certificate)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=5)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode(errors="replace")
        connection.close()
        return answer, body

    for path, headers in ([walk[0], walk[-1]] if walk else [("/", {})]):
        answer, body = get(path, headers)
        if answer.status != 200 or body != BODY:
            raise Failure(f"{program.name}: {path} answered {answer.status} {body[:200]!r}")
        if any(limit in program.name for limit in ("limit-count", "plan")) and not answer.getheader("X-RateLimit-Remaining"):
            raise Failure(f"{program.name}: no X-RateLimit-Remaining: the limit did not run")
        if "rate-limiting" in program.name and not answer.getheader("X-RateLimit-Remaining-Minute"):
            raise Failure(f"{program.name}: no X-RateLimit-Remaining-Minute: rate-limiting did not run")
        if "quota" in program.name and not answer.getheader("X-Ratelimit-Remaining"):
            raise Failure(f"{program.name}: no X-Ratelimit-Remaining: the quota did not run")
        if "five" in program.name:
            wanted = {"X-RateLimit-Remaining", "X-Request-Id", "Access-Control-Allow-Origin"}
            if missing := wanted - {name for name in wanted if answer.getheader(name)}:
                raise Failure(f"{program.name}: no {missing}: a plugin did not run")
        if (any(auth in program.name for auth in ("key-auth", "basic-auth", "jwt", "tyk key +")) or "five" in program.name) and (status := get(path, {})[0].status) != 401:
            raise Failure(f"{program.name}: {path} without credentials answered {status}")


def batching_origin(run, binary):
    """An origin that speaks HTTP/2 without TLS and sends all answers that are due with one write; nginx writes each by itself."""
    answers = {"routes": [{"id": "all", "uri": "/*", "plugins": {"mocking": MOCK}}]}
    return run.weir(binary, "batching-origin", answers, prior_knowledge=True, core=programs.LOAD_CORE)


def gateway(run, binary, name, config):
    """Starts the gateway of this name, which says what its clients speak."""
    return run.weir(
        binary, name.replace(" ", "-"), config, tls="https" in name, prior_knowledge="grpc" in name, tcp="weir tcp" in name, usage="usage" in name)


def traffic(run, program, load, walk, seconds):
    """Figures of one run of this load, after a check of the program's answers."""
    if load in STREAMS:
        check_streams(run, program, walk)
        return streams.load(run, program, walk, seconds)
    if load == "one stream":
        return transfer.load(program, seconds, programs.LOAD_CORE)
    check(program, walk)
    if "handshakes" in load:
        return programs.handshakes(program, "resumed" in load, seconds)
    return programs.load(program, run.script(load.replace(" ", "-"), walk), seconds)


def start(run, needed, options, broken):
    """Starts the named programs, of which only the measured one has load; `broken` collects those that do not start."""
    origin = run.origin().port
    secure = run.secure_origin().port if any("to https" in name for name in needed) else 0
    redis = run.redis().port if any("Redis" in name for name in needed) else 0
    service = run.service().port if any("grpc" in name for name in needed) else 0
    source = run.source().port if any("to a source" in name for name in needed) else 0
    batching = batching_origin(run, options.weir).port if "weir to http2" in needed else 0
    known, started = configs(origin, secure, redis, batching, service, source) | kong_configs(origin), {}
    of_tyk = tyk_configs(origin)

    def one(name):
        port = programs.free_port()
        if name == "nginx bare":
            return run.nginx("nginx-bare", programs.NGINX_PROXY.format(port=port, origin=origin), port, programs.GATEWAY_CORE)
        if name.startswith("nginx https"):
            to, scheme = (secure, "https") if "to https" in name else (origin, "http")
            text = programs.NGINX_PROXY_TLS.format(port=port, origin=to, scheme=scheme, tls=run.nginx_tls())
            return run.nginx(name.replace(" ", "-"), text, port, programs.GATEWAY_CORE, tls=True)
        if name == "nginx http2":
            text = programs.NGINX_PROXY_H2.format(port=port, origin=origin, tls=run.nginx_tls())
            return run.nginx("nginx-http2", text, port, programs.GATEWAY_CORE, tls=True)
        if name == "nginx grpc":
            return run.nginx("nginx-grpc", programs.NGINX_GRPC.format(port=port, origin=service), port, programs.GATEWAY_CORE)
        if name == "nginx return":
            return run.nginx("nginx-return", programs.NGINX_FIXED.format(port=port, body=BODY), port, programs.GATEWAY_CORE)
        if name.startswith("nginx tcp"):
            return run.nginx_stream(name.replace(" ", "-"), source if "source" in name else origin)
        if name == "relay":
            return run.relay(options.relay, origin)
        if name in of_tyk:
            return run.weir_tyk(options.weir, name.replace(" ", "-"), *of_tyk[name])
        return gateway(run, options.weir, name, known[name])

    for name in needed:
        try:
            started[name] = one(name)
            started[name].name = name
        except (Failure, OSError) as failure:
            broken[name] = str(failure)
    return started


def measure(run, pairs, options, runs, broken):
    """Appends one dict per run to `runs`, so that results survive an interruption; a program that does not start or
    gives wrong answers is added to `broken` with the reason, and the other cases still run."""
    groups = []  # (requests, programs in their order): pairs that share requests and subject run together
    for _, subject, reference, load, _ in pairs:
        same = next((names for kind, names in groups if kind == load and subject in names), None)
        if same is None:
            groups.append((load, [reference, subject]))
        elif reference not in same:
            same.append(reference)
    wanted = options.target_only.split(",") if options.target_only else None
    if wanted:
        groups = [(load, [name for name in names if name.split()[0] in wanted]) for load, names in groups]
    walks = requests()
    started = start(run, dict.fromkeys(name for _, names in groups for name in names), options, broken)
    warm = set()

    def one_round(turn, load, names):
        measured = []
        for name in names:
            if name in broken:
                continue
            try:
                if name not in warm:
                    warm.add(name)
                    traffic(run, started[name], load if load in (*STREAMS, "one stream") else "plain", walks[load], 1)
                figures = traffic(run, started[name], load, walks[load], options.seconds)
            except (Failure, OSError, http.client.HTTPException) as failure:
                broken[name] = str(failure)
                continue
            measured.append({"round": turn + 1, "load": load, **figures})
            note = f"VOID: {figures['void']}" if figures["void"] else f"{figures['cpu_us']:.2f} µs"
            progress(f"round {turn + 1}/{options.rounds}  {load}: {name}  {note}")
        return measured

    for turn in range(options.rounds):
        for load, names in groups:
            runs += counted(lambda: one_round(turn, load, names))


def counted(one_round, times=programs.core_times):
    """Runs of a round, repeated while the host steals too much time; those of the last attempt are marked if it still did."""
    measured, share, spoilt = programs.unstolen(one_round, {programs.GATEWAY_CORE, programs.LOAD_CORE}, times)
    return [run | {"stolen": share, "again": len(spoilt), "counts": share <= programs.STOLEN} for run in measured]


def repeats(runs):
    """(rounds measured again, rounds that do not count) because of stolen time."""
    rounds = {(run["round"], run["load"]): run for run in runs}.values()
    return sum(run.get("again", 0) for run in rounds), sum(not run.get("counts", True) for run in rounds)


def progress(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def summarise(pairs, runs, broken):
    """One dict per pair: medians of both sides, the ratios of the rounds, and the verdict."""
    rows = []
    for name, subject, reference, load, aim in pairs:
        every = [[run for run in runs if run["program"] == side and run["load"] == load] for side in (subject, reference)]
        sides = [[run for run in side if run.get("counts", True)] for side in every]
        row = {"case": name, "aim": aim, "verdict": "-"}
        for side, found in zip(("subject", "reference"), sides):
            if found:
                row[side] = {"program": found[0]["program"]} | {
                    key: statistics.median(run[key] for run in found) for key in ("cpu_us", "user_us", "rps", "p50_us", "p95_us", "p99_us")}
        void = sorted({f"{run['program']}: {run['void']}" for side in sides for run in side if run["void"]})
        ratios = [a["cpu_us"] / b["cpu_us"] for a in sides[0] for b in sides[1] if a["round"] == b["round"] and b["cpu_us"]]
        void += [broken[side] for side in (subject, reference) if side in broken]
        if any(side and not kept for side, kept in zip(every, sides)):
            void.append(f"the host stole more than {100 * programs.STOLEN:.0f} % of a core in each round")
        if void:
            row |= {"verdict": "VOID", "reasons": void}
        elif ratios:
            row |= {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
            if aim:
                row["verdict"] = "PASS" if round(row["ratio"], 3) <= aim else "MISS"  # as printed
        rows.append(row)
    return rows


HEAD = ["case", "program", "CPU/req (user)", "req/s", "p50 µs", "p99 µs", "ratio", "aim", "verdict"]


def table(rows):
    """Lines of cells: the subject with its ratio, then its reference."""
    lines = []
    for row in rows:
        ratio = f"{row['ratio']:.3f} ({row['lowest']:.3f} to {row['highest']:.3f})" if "ratio" in row else ""
        aim = f"≤ {row['aim']:.2f}" if row["aim"] else ""
        ends = {"subject": [ratio, aim, row["verdict"]], "reference": ["1", "", ""]}
        for side in ("subject", "reference"):
            one = row.get(side)
            if one:
                lines.append([
                    row["case"], one["program"],
                    f"{one['cpu_us']:.2f} ({one['user_us']:.2f})", f"{one['rps']:,.0f}", f"{one['p50_us']:,.0f}", f"{one['p99_us']:,.0f}", *ends[side]])
            elif side == "subject" and row["verdict"] != "-":
                lines.append([row["case"], "", "", "", "", "", *ends[side]])
    for above, line in zip(lines[-2::-1], lines[:0:-1]):
        if line[0] == above[0]:
            line[0] = ""
    return lines


def as_text(lines):
    widths = [max(len(line[column]) for line in [HEAD, *lines]) for column in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in [HEAD, *lines])


def as_markdown(lines, preflight):
    body = "\n".join("| " + " | ".join(line) + " |" for line in [HEAD, ["---"] * len(HEAD), *lines])
    return f"{preflight}\n\n{FAIR}\n\n{body}\n"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top = pathlib.Path(__file__).resolve().parent.parent / "target/dist"
    parser.add_argument("--weir", default=top / "weir", metavar="PATH", help="the gateway (default: %(default)s)")
    parser.add_argument("--relay", default=top / "relay", metavar="PATH", help="the byte relay (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=1, help="length of one run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each case runs (default: %(default)s)")
    parser.add_argument("--only", metavar="TEXT,TEXT", help="only the cases whose name contains one of these")
    parser.add_argument("--target-only", metavar="NAME,NAME", help="only these programs: nginx, weir, relay; then there is no ratio without both")
    parser.add_argument("--json", metavar="OUT", help="write every run and the summary there")
    parser.add_argument("--markdown", metavar="OUT", help="write the table there")
    return parser.parse_args()


def main():
    options = arguments()
    pairs = [pair for pair in PAIRS if not options.only or any(text in pair[0] for text in options.only.split(","))]
    if not pairs:
        raise Failure("--only leaves no case; there are: " + "; ".join(pair[0] for pair in PAIRS))
    if len(os.sched_getaffinity(0)) < 2:
        raise Failure("two cores are needed: one for the gateway, one for the load")
    tools = ["wrk", "taskset", "setpriv", "openssl"] + ["redis-server"] * any("Redis" in pair[1] for pair in pairs)
    tools += ["h2load", "nghttp"] * any(pair[3] in STREAMS for pair in pairs)
    for tool in tools:
        if not shutil.which(tool):
            raise Failure(f"{tool} is missing: run tools/install-test-deps")
    machine = programs.machine()
    preflight = (f"{machine['model']}, {machine['cores']} cores, kernel {machine['kernel']}, governor {machine['governor']}, "
                 f"{100 * machine['busy_before']:.0f} % busy before the start, {100 * machine['steal_before']:.0f} % stolen by the host")
    print(preflight)
    if machine["busy_before"] > 0.10:
        print("warning: something else is running; ratios hold better than absolute figures, but not well")
    began, times, runs, broken, stopped = time.monotonic(), programs.processor_times(), [], {}, False
    try:
        with programs.Programs() as run:
            measure(run, pairs, options, runs, broken)
    except KeyboardInterrupt:
        stopped = True
    finally:
        pathlib.Path(LOG).unlink(missing_ok=True)
    progress("")
    rows = summarise(pairs, runs, broken)
    machine["steal"] = programs.shares(times, programs.processor_times())[1]
    lines = table(rows)
    print(f"{FAIR}\n\n{as_text(lines)}\n")
    for row in rows:
        for reason in row.get("reasons", []):
            print(f"{row['case']} is void: {reason}")
    again, lost = repeats(runs)
    print(f"{len(runs)} runs of {options.seconds} s in {time.monotonic() - began:.0f} s, {100 * machine['steal']:.1f} % stolen by the host, "
          f"{again} rounds measured again for it, {lost} not counted"
          + (", INTERRUPTED" if stopped else ""))
    for path, text in ((options.markdown, as_markdown(lines, preflight)),
                       (options.json, json.dumps({"machine": machine, "interrupted": stopped, "summary": rows, "runs": runs}, indent=1))):
        if path:
            pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
            pathlib.Path(path).write_text(text)
    verdicts = [row["verdict"] for row in rows]
    return 130 if stopped else 2 if "VOID" in verdicts else 1 if "MISS" in verdicts else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"bench-quick: {failure}")
