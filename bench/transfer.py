#!/usr/bin/env python3
"""One long stream of bytes for quick.py: a source that sends as fast as it can, and a client that reads for a while.

    bench/transfer.py serve PORT                # sends without end on each connection
    bench/transfer.py read PORT SECONDS         # prints the bytes that have come, and the seconds
"""
import json
import socket
import subprocess
import sys
import threading
import time

PIECE = 1 << 20  # bytes of one call, and of what counts as a request


def serve(port):
    with socket.create_server(("127.0.0.1", port), backlog=64) as listener:
        while True:
            threading.Thread(target=send, args=listener.accept()[:1], daemon=True).start()


def send(connection):
    piece = memoryview(bytes(PIECE))
    try:
        while True:
            connection.sendall(piece)
    except OSError:
        connection.close()


def read(port, seconds):
    """(bytes, seconds). The kernel drops what is read: the load is to cost as little as it can."""
    count, room = 0, bytearray(PIECE)
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        began = time.monotonic()
        while (took := time.monotonic() - began) < seconds:
            received = connection.recv_into(room, PIECE, socket.MSG_TRUNC)
            if not received:
                break
            count += received
    return count, took


def command(*arguments):
    return [sys.executable, __file__, *map(str, arguments)]


def load(program, seconds, core):
    """Reads one stream through `program`: figures per MiB, as those of `programs.load` are per request."""
    before = program.cpu()
    done = subprocess.run(["taskset", "-c", str(core), *command("read", program.port, seconds)],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds + 60)
    after = program.cpu()
    told = json.loads(done.stdout) if done.returncode == 0 else [0, 0]
    return figures(program.name, told, seconds, before, after)


def figures(name, told, seconds, before, after):
    """Figures of a run: the bytes and seconds that the client has told, and CPU times of the program before and after."""
    count, took = told
    pieces = max(count / PIECE, 1e-9)
    user, system, total = (1e6 * (b - a) / pieces for a, b in zip(before, after))
    void = "" if took >= seconds else f"the stream ended after {count} bytes"
    return {
        "program": name, "requests": pieces, "seconds": took, "cpu_us": total, "user_us": total * user / max(user + system, 1e-9),
        "rps": pieces / max(took, 1e-9), "p50_us": 0, "p95_us": 0, "p99_us": 0, "void": void,
    }


if __name__ == "__main__":
    what, port, *rest = sys.argv[1:]
    if what == "serve":
        serve(int(port))
    else:
        print(json.dumps(read(int(port), float(rest[0]))))
