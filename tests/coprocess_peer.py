"""A service with middleware for Tyk's users (driver `grpc`): the protocol `coprocess`, on Debian's grpcio.

    coprocess_peer.py            prints its port, and serves until its input ends

Each function of the class Functions is middleware by its name. What a call was about is told in the header X-Told.
"""
import concurrent.futures
import json
import sys
import threading

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Fields by message: name, number, type; `name*` is repeated, `name{}` a map from texts.
MESSAGES = {
    "Header": ["key 1 string", "values* 2 string"],
    "ResponseObject": ["status_code 1 int32", "raw_body 2 bytes", "body 3 string", "headers{} 4 string", "multivalue_headers* 5 Header"],
    "ReturnOverrides": [
        "response_code 1 int32", "response_error 2 string", "headers{} 3 string", "override_error 4 bool", "response_body 5 string",
    ],
    "MiniRequestObject": [
        "headers{} 1 string", "set_headers{} 2 string", "delete_headers* 3 string", "body 4 string", "url 5 string",
        "params{} 6 string", "add_params{} 7 string", "extended_params{} 8 string", "delete_params* 9 string",
        "return_overrides 10 ReturnOverrides", "method 11 string", "request_uri 12 string", "scheme 13 string", "raw_body 14 bytes",
    ],
    "AccessSpec": ["url 1 string", "methods* 2 string"],
    "AccessDefinition": ["api_name 1 string", "api_id 2 string", "versions* 3 string", "allowed_urls* 4 AccessSpec"],
    "SessionState": [
        "last_check 1 int64", "allowance 2 double", "rate 3 double", "per 4 double", "expires 5 int64", "quota_max 6 int64",
        "quota_renews 7 int64", "quota_remaining 8 int64", "quota_renewal_rate 9 int64", "access_rights{} 10 AccessDefinition",
        "org_id 11 string", "oauth_client_id 12 string", "oauth_keys{} 13 string", "hmac_enabled 16 bool", "hmac_secret 17 string",
        "is_inactive 18 bool", "apply_policy_id 19 string", "data_expires 20 int64", "metadata{} 23 string", "tags* 24 string",
        "alias 25 string", "last_updated 26 string", "id_extractor_deadline 27 int64", "session_lifetime 28 int64",
        "apply_policies* 29 string", "key_id 32 string",
    ],
    "Object": [
        "hook_type 1 HookType", "hook_name 2 string", "request 3 MiniRequestObject", "session 4 SessionState",
        "metadata{} 5 string", "spec{} 6 string", "response 7 ResponseObject",
    ],
}
HOOKS = ["Unknown", "Pre", "Post", "PostKeyAuth", "CustomKeyCheck", "Response"]


def add_field(message, text, names):
    name, number, kind = text.split()
    field = message.field.add(name=name.rstrip("*{}"), number=int(number), label=3 if name.endswith(("*", "{}")) else 1)
    of = field
    if name.endswith("{}"):
        entry = message.nested_type.add(name="".join(part.title() for part in field.name.split("_")) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=9)
        of = entry.field.add(name="value", number=2, label=1)
        field.type, field.type_name = 11, f".coprocess.{message.name}.{entry.name}"
    if kind in names:
        of.type, of.type_name = 14 if kind == "HookType" else 11, f".coprocess.{kind}"
    else:
        of.type = {"double": 1, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}[kind]


def object_class():
    file = descriptor_pb2.FileDescriptorProto(name="coprocess.proto", package="coprocess", syntax="proto3")
    hooks = file.enum_type.add(name="HookType")
    for number, name in enumerate(HOOKS):
        hooks.value.add(name=name, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            add_field(message, field, {*MESSAGES, "HookType"})
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName("coprocess.Object"))


class Functions:
    def tell(self, thing):
        request = thing.request
        told = {
            "hook": HOOKS[thing.hook_type], "url": request.url, "uri": request.request_uri, "method": request.method,
            "scheme": request.scheme, "body": request.body, "raw": len(request.raw_body), "host": request.headers["Host"],
            "in": request.headers.get("X-In", ""), "params": dict(request.params), "spec": dict(thing.spec),
            "meta": dict(thing.metadata), "rate": thing.session.rate, "rights": sorted(thing.session.access_rights),
            "code": request.return_overrides.response_code,
        }
        request.set_headers[f"X-Told-{HOOKS[thing.hook_type]}"] = json.dumps(told, sort_keys=True)

    def change(self, thing):
        request = thing.request
        request.set_headers["X-New"] = "new"
        request.delete_headers.append("X-Gone")
        request.add_params["added"] = "a b"
        request.delete_params.append("gone")
        request.raw_body = request.raw_body + b"!"
        request.method = "PUT"

    def move(self, thing):
        thing.request.url = "/gr/moved"

    def refuse(self, thing):
        overrides = thing.request.return_overrides
        overrides.response_code = int(thing.request.params["code"])
        overrides.response_error = thing.request.params.get("text", "")
        overrides.headers["X-Own"] = "own"
        overrides.override_error = "override" in thing.request.params

    def fail(self, _):
        raise ValueError("as it should")

    def sleep(self, _):
        threading.Event().wait()

    def header_of_two_lines(self, thing):
        thing.request.set_headers["X-New"] = "a\r\nX-Other: b"

    def tell_answer(self, thing):
        response = thing.response
        told = {
            "hook": HOOKS[thing.hook_type], "status": response.status_code, "body": response.body, "raw": len(response.raw_body),
            "single": response.headers["X-Two"], "two": [list(one.values) for one in response.multivalue_headers if one.key == "X-Two"],
            "method": thing.request.method, "url": thing.request.url, "name": thing.metadata["name"],
        }
        response.headers["X-Told"] = json.dumps(told, sort_keys=True)

    def change_answer(self, thing):
        response = thing.response
        response.status_code = 201
        response.raw_body = response.raw_body.upper()
        response.headers["X-New"] = "new"
        response.headers["X-Two"] = "first"
        del response.headers["X-Gone"]

    def all_values(self, thing):
        thing.response.multivalue_headers.add(key="X-Many", values=["a", "b"])

    def no_answer(self, thing):
        thing.ClearField("response")

    def bad_status(self, thing):
        thing.response.status_code = int(thing.request.params["code"])

    def answer_of_two_lines(self, thing):
        thing.response.headers["X-New"] = "a\r\nX-Other: b"

    def know(self, thing):
        key = thing.request.headers.get("Authorization", "")
        if key == "stop":
            thing.request.return_overrides.response_code = 401
            thing.request.return_overrides.response_error = "Go away"
        if not key.startswith("key-"):
            return
        session = thing.session
        session.metadata["token"] = key
        session.metadata["name"] = "n"
        session.rate, session.per, session.quota_max, session.quota_renewal_rate = 1000, 1, 2, 3600
        if key.startswith("key-policy"):
            session.apply_policies.append(key.removeprefix("key-"))
        right = session.access_rights["elsewhere" if key == "key-elsewhere" else "gr"]
        right.api_id = "gr"
        right.versions.append("Default")
        if key == "key-path":
            right.allowed_urls.add(url="^/ok", methods=["GET"])
        thing.request.set_headers["X-Known"] = key


def main():
    Object, functions = object_class(), Functions()

    def dispatch(thing, context):
        getattr(functions, thing.hook_name)(thing)
        return thing

    handler = grpc.unary_unary_rpc_method_handler(dispatch, Object.FromString, Object.SerializeToString)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("coprocess.Dispatcher", {"Dispatch": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
