"""A server of MongoDB's wire protocol (OP_MSG) with one collection in memory, which reads and writes BSON by pymongo.

    mongod.py FOLDER PASSWORD      prints its port; keeps the documents in FOLDER/documents.json

It knows the commands that exports of usage send. A user has to log in by SCRAM-SHA-256 before any but hello."""
import base64
import hashlib
import hmac
import json
import os
import socket
import struct
import sys
import threading

import bson

OP_MSG, ROUNDS = 2013, 4096
folder, password = sys.argv[1], sys.argv[2].encode()
salt, lock, documents, commands = os.urandom(16), threading.Lock(), {}, []


def keep():
    """Writes what is there, whole or not at all."""
    plain = [{name: value.timestamp() if hasattr(value, "timestamp") else value for name, value in one.items()} for one in documents.values()]
    path = os.path.join(folder, "documents.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({"documents": plain, "commands": commands}, file, default=str)
    os.rename(path + ".new", path)


class Login:
    """The server's side of SCRAM-SHA-256 (RFC 5802)."""

    def start(self, payload):
        assert payload.startswith("n,,n="), payload
        self.first = payload[3:]
        nonce = dict(part.split("=", 1) for part in self.first.split(","))["r"]
        self.nonce = nonce + base64.b64encode(os.urandom(18)).decode()
        self.server = f"r={self.nonce},s={base64.b64encode(salt).decode()},i={ROUNDS}"
        return self.server

    def finish(self, payload):
        last, proof = payload.rsplit(",p=", 1)
        assert last == f"c=biws,r={self.nonce}", payload
        salted = hashlib.pbkdf2_hmac("sha256", password, salt, ROUNDS)
        sign = lambda key, text: hmac.digest(key, text.encode() if isinstance(text, str) else text, "sha256")
        client = sign(salted, "Client Key")
        whole = f"{self.first},{self.server},{last}"
        mask = sign(hashlib.sha256(client).digest(), whole)
        if base64.b64decode(proof) != bytes(a ^ b for a, b in zip(client, mask)):
            return None
        return "v=" + base64.b64encode(sign(sign(salted, "Server Key"), whole)).decode()


def exactly(connection, count):
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def serve(connection):
    login, known = Login(), False
    try:
        while True:
            length, number, _, code = struct.unpack("<iiii", exactly(connection, 16))
            body = exactly(connection, length - 16)
            assert code == OP_MSG and body[:5] == b"\0\0\0\0\0", (code, body[:5])
            command = bson.decode(body[5:])
            name = next(iter(command))
            answer = {"ok": 1.0}
            if name == "hello":
                answer["maxWireVersion"] = 21
            elif name == "saslStart":
                assert command["mechanism"] == "SCRAM-SHA-256" and command["$db"] == "admin", command
                answer |= {"conversationId": 1, "done": False, "payload": login.start(command["payload"].decode()).encode()}
            elif name == "saslContinue":
                payload = command["payload"].decode()
                shown = login.finish(payload) if payload else ""
                if shown is None:
                    answer = {"ok": 0.0, "errmsg": "Authentication failed.", "code": 18}
                else:
                    known = known or not payload
                    answer |= {"conversationId": 1, "done": not payload, "payload": shown.encode()}
            elif not known:
                answer = {"ok": 0.0, "errmsg": f"Command {name} requires authentication", "code": 13}
            else:
                with lock:
                    answer |= run(name, command)
                    commands.append(f"{command['$db']}.{command[name]} {name}")
                    keep()
            reply = bson.encode(answer)
            connection.sendall(struct.pack("<iiii", 21 + len(reply), 0, number, OP_MSG) + b"\0\0\0\0\0" + reply)
    except EOFError:
        connection.close()


def run(name, command):
    if name == "createIndexes":
        assert command["indexes"] == [{"key": {"gateway": 1, "time": 1}, "name": "gateway_time"}], command
        return {}
    if name == "delete":
        [deletion] = command["deletes"]
        query = deletion["q"]
        assert deletion["limit"] == 0, command
        gone = [key for key, one in documents.items() if one["gateway"] == query["gateway"] and one["time"] in query["time"]["$in"]]
        for key in gone:
            del documents[key]
        return {"n": len(gone)}
    if name == "insert":
        twice = [one["_id"] for one in command["documents"] if one["_id"] in documents]
        if twice:
            return {"n": 0, "writeErrors": [{"index": 0, "code": 11000, "errmsg": f"E11000 duplicate key: {twice[0]}"}]}
        documents.update((one["_id"], one) for one in command["documents"])
        return {"n": len(command["documents"])}
    return {"ok": 0.0, "errmsg": f"no such command: '{name}'", "code": 59}


listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
