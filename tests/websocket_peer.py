"""Peers of the WebSocket tests, with the package websockets: a node that echoes, and clients that look at what comes back.

    websocket_peer.py serve              # prints its port, and how each connection was closed
    websocket_peer.py echo|wait|busy URL
"""
import asyncio
import os
import ssl
import sys

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

LARGE = 16 << 20
OPTIONS = {"max_size": 2 * LARGE, "ping_interval": None}


def say(*words):
    print(*words, flush=True)


async def node():
    async def handle(socket):
        try:
            async for message in socket:
                await socket.send(message)
        except ConnectionClosed:
            pass
        say("close", socket.close_code)

    async with serve(handle, "127.0.0.1", 0, **OPTIONS) as server:
        say(server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().create_future()


def opened(url):
    any_certificate = ssl._create_unverified_context() if url.startswith("wss") else None
    return connect(url, ssl=any_certificate, **OPTIONS)


async def echo(url):
    async with opened(url) as socket:
        assert "permessage-deflate" in socket.response.headers.get("Sec-WebSocket-Extensions", ""), socket.response.headers
        for message in ("", "text", "ü" * 1000, b"\x00\x01", b"x" * 65_536, os.urandom(LARGE), "x" * LARGE):
            await socket.send(message)
            assert await socket.recv() == message, len(message)
        # A message in fragments, with a ping between two of them.
        async def fragments():
            for number in range(100):
                if number == 50:
                    await (await socket.ping(b"here"))
                yield f"{number} " * 50
        await socket.send(fragments())
        assert await socket.recv() == "".join(f"{number} " * 50 for number in range(100))
        await (await socket.ping())
    assert socket.close_code == 1000, socket.close_code
    say("ok")


async def wait(url):
    async with opened(url) as socket:
        say("open")
        await socket.wait_closed()
        say("close", socket.close_code)


async def busy(url):
    """Messages in both directions until the connection is closed: each that comes back is whole and in its turn."""
    async with opened(url) as socket:
        sent, received = 0, 0

        async def send():
            nonlocal sent
            while True:
                await socket.send(f"{sent} ".encode() + os.urandom(50_000))
                sent += 1
                # Sending alone does not let others run as long as there is room.
                await asyncio.sleep(0)

        sending = asyncio.create_task(send())
        try:
            while True:
                message = await socket.recv()
                number, content = message.split(b" ", 1)
                assert (int(number), len(content)) == (received, 50_000), (number, received, len(content))
                received += 1
                if received == 20:
                    say("open")
        except ConnectionClosed:
            pass
        sending.cancel()
        assert received >= 20
        say("close", socket.close_code)


if __name__ == "__main__":
    what, *url = sys.argv[1:]
    asyncio.run({"serve": node, "echo": echo, "wait": wait, "busy": busy}[what](*url))
