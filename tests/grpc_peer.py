#!/usr/bin/python3
"""A gRPC service and its clients, on Debian's grpcio, without generated code: messages are bytes.

  grpc_peer.py serve             serves on a free port, whose number is the first line of the output
  grpc_peer.py CASE HOST:PORT    runs one case through a gateway; the last line of the output is `ok`
"""

import base64
import http.client
import socket
import struct
import sys
import threading
from concurrent import futures

import grpc

MESSAGE = 64 << 20
OPTIONS = [("grpc.max_receive_message_length", MESSAGE + 1024), ("grpc.max_send_message_length", MESSAGE + 1024)]
cancelled = threading.Semaphore(0)
serving = threading.Event()
serving.set()


class Service(grpc.GenericRpcHandler):
    def service(self, call):
        method = call.method.rsplit("/", 1)[-1]
        kinds = {
            "Unary": grpc.unary_unary_rpc_method_handler(lambda request, _: request),
            "Server": grpc.unary_stream_rpc_method_handler(server_stream),
            "Client": grpc.stream_unary_rpc_method_handler(client_stream),
            "Both": grpc.stream_stream_rpc_method_handler(lambda requests, _: (b"<%s>" % r for r in requests)),
            "Fail": grpc.unary_unary_rpc_method_handler(fail),
            "Details": grpc.unary_unary_rpc_method_handler(details),
            "Metadata": grpc.unary_unary_rpc_method_handler(metadata),
            "Hang": grpc.unary_stream_rpc_method_handler(hang),
            # grpc.health.v1.Health/Check: a message whose first field is the status.
            "Check": grpc.unary_unary_rpc_method_handler(lambda *_: b"\x08\x01" if serving.is_set() else b"\x08\x02"),
            "Health": grpc.unary_unary_rpc_method_handler(set_health),
            "Cancelled": grpc.unary_unary_rpc_method_handler(lambda *_: b"%d" % cancelled.acquire(timeout=10)),
        }
        return kinds.get(method)


def server_stream(request, _):
    for number in range(int(request)):
        yield b"%d" % number


def client_stream(requests, _):
    return b"%d" % sum(len(request) for request in requests)


def fail(_, context):
    context.set_trailing_metadata([("reason-bin", b"\x00\xff"), ("reason", "none")])
    context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: ü")


def details(_, context):
    # google.rpc.Status with a test.M whose name is `why`.
    kind, value = b"type.googleapis.com/test.M", b"\x0a\x03why"
    any_of = bytes([0x0a, len(kind)]) + kind + bytes([0x12, len(value)]) + value
    status = b"\x08\x05\x12\x04gone\x1a" + bytes([len(any_of)]) + any_of
    context.set_trailing_metadata([("grpc-status-details-bin", status)])
    context.abort(grpc.StatusCode.NOT_FOUND, "gone")


def metadata(_, context):
    context.send_initial_metadata([("first", "1")])
    told = dict(context.invocation_metadata())
    return b"%s %s" % (told["plain"].encode(), told["some-bin"])


def set_health(request, _):
    serving.set() if request == b"up" else serving.clear()
    return request


def hang(_, context):
    over = threading.Event()
    context.add_callback(lambda: (cancelled.release(), over.set()))
    yield b"begun"
    over.wait(20)


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=OPTIONS)
    server.add_generic_rpc_handlers((Service(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()


def refused(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("the call succeeded")


def web(target, method, message, text):
    """A call in gRPC-Web over HTTP/1.1: gives the status, the head and an iterator of (flags, message)."""
    connection = http.client.HTTPConnection(target, timeout=20)
    connection.connect()
    # Whoever goes in the middle of an answer resets the connection.
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    body = struct.pack(">BI", 0, len(message)) + message
    media = "application/grpc-web-text" if text else "application/grpc-web+proto"
    connection.request("POST", "/web/test.T/" + method, base64.b64encode(body) if text else body,
                       {"Content-Type": media, "X-Grpc-Web": "1"})
    answer = connection.getresponse()
    assert answer.getheader("content-type") == media, answer.headers
    return answer.status, answer.headers, frames(answer, text)


def frames(answer, text):
    received = coded = b""
    while piece := answer.read1(65536):
        if text:
            # Every group of four characters stands for itself, wherever padding ends a text.
            coded += piece
            whole = len(coded) - len(coded) % 4
            received += b"".join(base64.b64decode(coded[at:at + 4], validate=True) for at in range(0, whole, 4))
            coded = coded[whole:]
        else:
            received += piece
        while len(received) >= 5:
            flags, length = struct.unpack(">BI", received[:5])
            if len(received) < 5 + length:
                break
            yield flags, received[5:5 + length]
            received = received[5 + length:]
    assert not received and not coded, (received, coded)


def trailers(frame):
    flags, text = frame
    assert flags == 0x80, frame
    return dict(line.split(":", 1) for line in text.decode().split("\r\n") if line)


def web_calls(target, text):
    for size in [0, 1, 1000, 1_000_000]:
        status, _, answers = web(target, "Unary", bytes(size), text)
        message, end = answers
        assert (status, message) == (200, (0, bytes(size))), size
        assert trailers(end)["grpc-status"] == "0", end
    *numbers, end = web(target, "Server", b"500", text)[2]
    assert numbers == [(0, b"%d" % n) for n in range(500)] and trailers(end)["grpc-status"] == "0", end
    # A message is here although the service goes on, and the service learns that its client has gone.
    _, _, answers = web(target, "Hang", b"", text)
    assert next(answers) == (0, b"begun")
    del answers
    assert next(web(target, "Cancelled", b"", text)[2]) == (0, b"1")
    # An answer without a message has its status in the head or in a frame.
    _, head, answers = web(target, "Fail", b"", text)
    told = {name.lower(): value for name, value in head.items()}
    for frame in answers:
        told |= trailers(frame)
    assert (told["grpc-status"], told["reason"]) == ("5", "none"), told


def case(name, target):
    channel = grpc.insecure_channel(target, options=OPTIONS)
    unary = channel.unary_unary("/test.T/Unary")
    if name == "unary":
        for size in [0, 1, 1000, 100_000, MESSAGE]:
            message = bytes(size)
            assert unary(message, timeout=60) == message, size
        with futures.ThreadPoolExecutor(max_workers=20) as pool:
            for number in pool.map(lambda n: unary(b"%d" % n, timeout=60), range(200)):
                assert number.isdigit()
    elif name == "streams":
        numbers = list(channel.unary_stream("/test.T/Server")(b"2000", timeout=60))
        assert numbers == [b"%d" % n for n in range(2000)], len(numbers)
        total = channel.stream_unary("/test.T/Client")((bytes(1000) for _ in range(2000)), timeout=60)
        assert total == b"2000000", total
        # Each message is sent only when the answer to the one before is there.
        answers = threading.Semaphore(1)
        def one_by_one():
            for number in range(100):
                assert answers.acquire(timeout=10)
                yield b"%d" % number
        for number, answer in enumerate(channel.stream_stream("/test.T/Both")(one_by_one(), timeout=60)):
            assert answer == b"<%d>" % number, answer
            answers.release()
    elif name == "errors":
        error = refused(lambda: channel.unary_unary("/test.T/Fail")(b"", timeout=20))
        assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing: ü"), error
        assert dict(error.trailing_metadata())["reason-bin"] == b"\x00\xff", error.trailing_metadata()
        error = refused(lambda: channel.unary_unary("/test.T/None")(b"", timeout=20))
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
        answer, call = channel.unary_unary("/test.T/Metadata").with_call(
            b"", timeout=20, metadata=[("plain", "p"), ("some-bin", b"\x01\x02")])
        assert answer == b"p \x01\x02" and dict(call.initial_metadata())["first"] == "1", answer
    elif name == "ends":
        call = channel.unary_stream("/test.T/Hang")(b"", timeout=20)
        assert next(call) == b"begun"
        call.cancel()
        # The service learns of it through the gateway.
        told = channel.unary_unary("/test.T/Cancelled")
        assert told(b"", timeout=20) == b"1"
        error = refused(lambda: list(channel.unary_stream("/test.T/Hang")(b"", timeout=1)))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
        assert told(b"", timeout=20) == b"1"
    elif name.startswith("web"):
        web_calls(target, name == "web-text")
    elif name in ("up", "down"):
        assert channel.unary_unary("/test.T/Health")(name.encode(), timeout=20) == name.encode()
    elif name == "gateway":
        for method, code in [("/none/X", "UNIMPLEMENTED"), ("/locked/X", "UNAUTHENTICATED"), ("/dead/X", "UNAVAILABLE"),
                             ("/limited/X", "RESOURCE_EXHAUSTED"), ("/slow/X", "DEADLINE_EXCEEDED")]:
            error = refused(lambda: channel.unary_unary(method)(b"", timeout=20))
            assert error.code() == grpc.StatusCode[code], (method, error)
            assert error.details(), error
    else:
        raise AssertionError(name)
    print("ok")


if sys.argv[1] == "serve":
    serve()
else:
    case(*sys.argv[1:])
