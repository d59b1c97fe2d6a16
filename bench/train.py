#!/usr/bin/env python3
"""Trains the compiler: sends traffic like production's through an instrumented gateway, for tools/build-dist.

The gateway writes its profile when it ends. The mixture is wider than the benchmarks, so that a build tuned by it is no
build for a benchmark: many routes, bodies both ways and of many sizes, refusals, TLS, each authentication and the
plugins that most configurations turn on. A wrong answer fails the training: an untrained path would go unnoticed.

    bench/train.py --weir target/pgo/weir
"""
import argparse
import base64
import hashlib
import hmac
import http.client
import json
import pathlib
import random
import shutil
import sys

import programs
import quick
from programs import Failure

SIZES = [0, 100, 1_000, 10_000, 100_000]


def token(secret, key):
    def part(value):
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
    text = ".".join(part(json.dumps(value).encode()) for value in ({"alg": "HS256", "typ": "JWT"}, {"key": key, "exp": 4_102_444_800}))
    return f"{text}.{part(hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest())}"


def configuration(origin):
    """A typical production configuration: services, consumers with several kinds of credentials, limits, everyday plugins."""
    pool = {"size": 320, "idle_timeout": 60, "requests": 1_000_000_000}
    nodes = {f"127.0.0.1:{origin}": 1}
    limit = {"count": 1_000_000_000, "time_window": 60, "rejected_code": 429, "key": "consumer_name"}
    routes = [
        {"uri": "/jwt/*", "plugins": {"jwt-auth": {}, "limit-count": limit}},
        {"uri": "/key/*", "plugins": {"key-auth": {}, "limit-req": {"rate": 1_000_000, "burst": 1_000_000, "key": "remote_addr"}}},
        {"uri": "/basic/*", "methods": ["GET", "POST"], "plugins": {"basic-auth": {}, "proxy-rewrite": {"regex_uri": ["^/basic/(.*)", "/$1"]}}},
        {"uri": "/full", "plugins": {"limit-count": {**limit, "count": 1, "time_window": 600, "key": "remote_addr"}}},
        {"uris": ["/cors/*", "/cors"], "plugins": {
            "cors": {"allow_origins": "https://app.test,https://other.test"}, "request-id": {}, "limit-conn": {
                "conn": 100_000, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr"}}},
        {"uri": "/rewrite/*", "plugins": {
            "proxy-rewrite": {"uri": "/new", "headers": {"set": {"X-Tenant": "$http_x_tenant", "X-From": "$remote_addr"}, "remove": ["X-Old"]}},
            "response-rewrite": {"headers": {"set": {"X-Served-By": "weir"}, "remove": ["ETag"]}}}},
        {"uri": "/zip/*", "plugins": {"gzip": {"types": "*"}}},
        {"uri": "/body/*", "plugins": {"client-control": {"max_body_size": 10_000_000}}},
        {"uri": "/vars/*", "vars": [["arg_version", "==", "2"], ["http_x_tenant", "~~", "^[a-z]+$"]], "plugins": {
            "ip-restriction": {"whitelist": ["127.0.0.0/8"]}, "ua-restriction": {"denylist": ["bad-bot"]}}},
        {"uri": "/split/*", "plugins": {"traffic-split": {"rules": [{"weighted_upstreams": [
            {"upstream": {"nodes": nodes, "type": "roundrobin"}, "weight": 1}, {"weight": 9}]}]}}},
        {"uri": "/*", "hosts": ["*.example.test", "example.test"], "priority": -1},
        {"uri": "/sticky/*", "upstream_id": "hashed"},
    ]
    consumers = [{"username": f"user{c}", "plugins": {
        "key-auth": {"key": f"key-of-{c}"}, "basic-auth": {"username": f"user{c}", "password": f"password{c}"},
        "jwt-auth": {"key": f"jwt-{c}", "secret": f"a-secret-of-user-{c}-that-is-long"}}} for c in range(100)]
    return {
        "routes": [{"id": f"r{at}", "upstream_id": "origin", **route} for at, route in enumerate(routes)], "consumers": consumers,
        "upstreams": [
            {"id": "origin", "nodes": nodes, "keepalive_pool": pool},
            {"id": "hashed", "type": "chash", "key": "remote_addr", "nodes": nodes, "keepalive_pool": pool}],
        "global_rules": [{"id": "all", "plugins": {"prometheus": {}}}],
    }


def mixture():
    """(method, path, fields, bytes of body, expected status), the walk that wrk goes over."""
    browser = {
        "User-Agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36",
        "Accept": "text/html,application/json;q=0.9,*/*;q=0.8", "Accept-Encoding": "gzip, deflate, br", "Accept-Language": "en",
        "Cookie": "session=0123456789abcdef; theme=dark", "Referer": "https://app.test/start", "Cache-Control": "no-cache",
    }
    rows = []
    for c in range(100):
        basic = base64.b64encode(f"user{c}:password{c}".encode()).decode()
        rows += [
            ("GET", f"/jwt/{c}", {"Authorization": f"Bearer {token(f'a-secret-of-user-{c}-that-is-long', f'jwt-{c}')}"}, 0, 200),
            ("GET", f"/key/{c}/items/{c * 7}?page={c}", {"apikey": f"key-of-{c}", **browser}, 0, 200),
            ("POST", f"/basic/{c}", {"Authorization": f"Basic {basic}", "Content-Type": "application/json"}, 300, 200),
            ("PUT", f"/body/{c}?from=%2Fhome", {"Content-Type": "application/octet-stream"}, SIZES[c % len(SIZES)], 200),
            ("GET", f"/rewrite/{c}", {"X-Tenant": "acme", "X-Old": "1"}, 0, 200),
            ("GET", f"/zip/{c}", browser, 0, 200),
            ("GET", f"/vars/{c}?version=2&x=1", {"X-Tenant": "acme", **browser}, 0, 200),
            ("GET", f"/split/{c}", {}, 0, 200),
            ("GET", f"/sticky/{c}", {}, 0, 200),
            ("GET", f"/cors/{c}", {"Origin": "https://app.test", **browser}, 0, 200),
            ("GET", f"/a/b/{c}.json", {"Host": "api.example.test", **browser}, 0, 200),
            ("GET", f"/size/{SIZES[c % len(SIZES)]}", {"Host": "example.test"}, 0, 200),
        ]
    rows += [("GET", "/key/1/items/2", {}, 0, 401), ("GET", "/jwt/x", {"Authorization": "Bearer x"}, 0, 401), ("GET", "/nowhere", {}, 0, 404), ("GET", "/full", {}, 0, 429)]
    random.Random(7).shuffle(rows)
    return rows


def check(program, rows):
    """Sends each kind of request once: the training must not consist of errors."""
    for method, path, fields, size, expected in rows:
        connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=5)
        connection.request(method, path, body=b"b" * size if size else None, headers=fields)
        status = connection.getresponse().status
        connection.close()
        if status != expected and not (path == "/full" and status == 200):
            raise Failure(f"{method} {path} was answered {status}, not {expected}")


def main():
    top = pathlib.Path(__file__).resolve().parent.parent / "target"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=top / "pgo/weir", metavar="PATH", help="the instrumented gateway (default: %(default)s)")
    parser.add_argument("--origin", default=top / "dist/origin", metavar="PATH", help="the origin of the suite (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=2, help="length of one run (default: %(default)s)")
    options = parser.parse_args()
    for tool in ("wrk", "h2load", "nghttp", "taskset", "setpriv", "openssl", "redis-server"):
        if not shutil.which(tool):
            raise Failure(f"{tool} is missing: run tools/install-test-deps")
    with programs.Programs() as run:
        port = programs.free_port()
        run.start("origin", [options.origin, "--listen", f"127.0.0.1:{port}"], port, programs.LOAD_CORE)
        rows = mixture()
        walk = run.script("mixture", [(path, fields, method, *([size] if size else [])) for method, path, fields, size, _ in rows])
        for name, tls in (("mixture", False), ("mixture-tls", True)):
            gateway = run.weir(options.weir, name, configuration(port), tls=tls)
            if not tls:
                check(gateway, rows)
            programs.load(gateway, walk, 3 * options.seconds)
            run.stop(gateway)
        walks = quick.requests()
        ports = run.origin().port, run.secure_origin().port, run.redis().port, quick.batching_origin(run, options.weir).port, run.service().port
        for name, config in quick.configs(*ports).items():
            load = next((load for _, subject, _, load, _ in quick.PAIRS if subject == name and load in walks), None)
            gateway = quick.gateway(run, options.weir, name, config)
            figures = quick.traffic(run, gateway, load, walks[load], options.seconds)
            if figures["void"]:
                raise Failure(f"{name}: {figures['void']}")
            if name == "weir https":
                for resumed in (False, True):
                    programs.handshakes(gateway, resumed, options.seconds)
            print(f"{name}: {figures['requests']:,} requests")
            run.stop(gateway)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"train: {failure}")
