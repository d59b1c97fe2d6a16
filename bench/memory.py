#!/usr/bin/env python3
"""Memory of an idle keep-alive connection: opens many, makes one request on each, and reads the gateway's resident size.
With --busy, memory of a connection whose request waits for the upstream.

The kernel's own socket memory is not in it, for it is the same for every program. The figure is the growth of the
resident set between two numbers of connections, so that start-up costs (code, tables, pools) do not count.

    bench/memory.py --weir target/dist/weir [--connections 10000] [--json OUT]
    bench/memory.py --program nginx                     # nginx, for comparison
    bench/memory.py --busy --connections 2000           # requests under way
    bench/memory.py --http2 --connections 5000          # connections over HTTP/2, without TLS
"""
import argparse
import json
import pathlib
import resource
import socket
import sys
import threading
import time

import programs
from programs import BODY, Failure

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: memory\r\nAccept: */*\r\n\r\n"
# The preface of HTTP/2, SETTINGS, and a request on stream 1: GET, http, / and localhost, by HPACK's static table.
HEADERS = b"\x82\x86\x84\x41\x09localhost"
REQUEST_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) + bytes([0, 0, len(HEADERS), 1, 5, 0, 0, 0, 1]) + HEADERS
SETTINGS_ACK = bytes([0, 0, 0, 4, 1, 0, 0, 0, 0])
AIM = 3 * 1024  # bytes per idle connection
HTTP2_AIM = 12 * 1024  # bytes per idle connection over HTTP/2
BUSY_AIM = 17 * 1024  # bytes per connection with a waiting request
SETTLE = 1.0  # seconds without a change of the resident size


def open_connections(port, count, opened):
    """Opens connections until there are `count`; on each one request is answered before the next one starts."""
    while len(opened) < count:
        connection = socket.create_connection(("127.0.0.1", port), 10)
        opened.append(connection)
        connection.sendall(REQUEST)
        answer = b""
        while not answer.endswith(BODY.encode()):
            read = connection.recv(65536)
            if not read:
                raise Failure(f"connection {len(opened)} was closed after {answer[:200]!r}")
            answer += read
        if not answer.startswith(b"HTTP/1.1 200"):
            raise Failure(f"connection {len(opened)} was answered {answer[:200]!r}")


def open_http2_connections(port, count, opened):
    """The same over HTTP/2."""
    while len(opened) < count:
        connection = socket.create_connection(("127.0.0.1", port), 10)
        opened.append(connection)
        connection.sendall(REQUEST_HTTP2)
        received, content = b"", b""
        while True:
            while len(received) < 9 or len(received) < 9 + int.from_bytes(received[:3], "big"):
                read = connection.recv(65536)
                if not read:
                    raise Failure(f"connection {len(opened)} was closed after {received[:200]!r}")
                received += read
            length, kind, flags = int.from_bytes(received[:3], "big"), received[3], received[4]
            payload, received = received[9:9 + length], received[9 + length:]
            if kind == 0:  # DATA
                content += payload
                if flags & 1:  # END_STREAM
                    break
        if content != BODY.encode():
            raise Failure(f"connection {len(opened)} was answered {content[:200]!r}")
        connection.sendall(SETTINGS_ACK)


class Silent:
    """An origin that accepts requests and never answers."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = self.listener.getsockname()[1]
        self.held = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            self.held.append(self.listener.accept()[0])


def open_busy(port, count, opened, origin):
    """Opens connections until there are `count`, each with a request that has arrived at the origin."""
    while len(opened) < count:
        connection = socket.create_connection(("127.0.0.1", port), 10)
        opened.append(connection)
        connection.sendall(REQUEST)
    deadline = time.monotonic() + 30
    while len(origin.held) < count:
        if time.monotonic() > deadline:
            raise Failure(f"only {len(origin.held)} of {count} requests came to the origin")
        time.sleep(0.05)


def settled(program):
    """Resident size once it has stopped changing, or after ten seconds."""
    deadline = time.monotonic() + 10
    size, since = program.resident(), time.monotonic()
    while time.monotonic() < min(since + SETTLE, deadline):
        time.sleep(0.05)
        if (now := program.resident()) != size:
            size, since = now, time.monotonic()
    return size


def start(run, options, silent):
    origin = silent.port if silent else run.origin().port
    if options.program == "nginx":
        port = programs.free_port()
        text = programs.NGINX_PROXY.format(port=port, origin=origin)
        text = text.replace(" backlog", " http2 backlog") if options.http2 else text
        return run.nginx("nginx", text, port, programs.GATEWAY_CORE)
    config = {"routes": [{"id": "one", "uri": "/*", "upstream": {"nodes": {f"127.0.0.1:{origin}": 1}}}]}
    return run.weir(options.weir, "weir", config, prior_knowledge=options.http2)


def main():
    top = pathlib.Path(__file__).resolve().parent.parent / "target/dist"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default=top / "weir", metavar="PATH", help="the gateway (default: %(default)s)")
    parser.add_argument("--program", choices=["weir", "nginx"], default="weir")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--busy", action="store_true", help="with a request under way on each")
    parser.add_argument("--http2", action="store_true", help="clients speak HTTP/2; not with --busy")
    parser.add_argument("--json", metavar="OUT", help="write the figures there")
    options = parser.parse_args()
    if options.busy and options.http2:
        parser.error("--busy and --http2 do not go together")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the gateway inherits it
    if hard != resource.RLIM_INFINITY and hard < 3 * options.connections + 1500:
        raise Failure(f"the limit of open files is {hard}: too low for {options.connections} connections, since a gateway keeps descriptors for upstreams")
    opened, first = [], options.connections // 10
    with programs.Programs() as run:
        silent = Silent() if options.busy else None
        program = start(run, options, silent)
        grow = (lambda count: open_busy(program.port, count, opened, silent)) if silent else (
            lambda count: (open_http2_connections if options.http2 else open_connections)(program.port, count, opened))
        empty = settled(program)
        grow(first)
        few = settled(program)
        grow(options.connections)
        many = settled(program)
        still = sum(1 for connection in opened if not closed(connection))
    if still != len(opened):
        raise Failure(f"{len(opened) - still} of {len(opened)} connections were closed meanwhile: the figure is void")
    each = (many - few) / (options.connections - first)
    aim = BUSY_AIM if options.busy else HTTP2_AIM if options.http2 else AIM
    figures = {"program": options.program, "connections": options.connections, "resident_empty": empty,
               "resident_few": few, "resident_many": many, "bytes_a_connection": each, "aim": aim}
    print(f"{options.program}: {empty / 2**20:.1f} MiB with no connection, {few / 2**20:.1f} with {first:,}, {many / 2**20:.1f} with "
          f"{options.connections:,}: {each:,.0f} bytes {'a busy' if options.busy else 'an idle'} connection; aim at most {aim:,}: {'PASS' if each <= aim else 'MISS'}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1))
    return 0 if each <= aim or options.program != "weir" else 1


def closed(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, OSError) as failure:
        sys.exit(f"memory: {failure}")
