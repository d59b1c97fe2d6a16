"""A collector of OpenTelemetry's protocol over gRPC.

    otlp.py FOLDER PORT [CERTIFICATE KEY]      prints its port; keeps calls in FOLDER/calls, one a line of JSON

While there is a file FOLDER/status, calls fail with the status that it names, and with what follows that word as message."""
import json
import os
import sys
import threading
from concurrent import futures

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

folder, asked, pair = sys.argv[1], sys.argv[2], sys.argv[3:]
lock = threading.Lock()


class Collector(service.TraceServiceServicer):
    def Export(self, request, context):
        call = {"peer": context.peer(), "fields": dict(context.invocation_metadata()), "request": MessageToDict(request)}
        with lock, open(os.path.join(folder, "calls"), "a", encoding="utf-8") as file:
            file.write(json.dumps(call) + "\n")
        try:
            with open(os.path.join(folder, "status"), encoding="utf-8") as file:
                status, message = file.read().split(" ", 1)
        except FileNotFoundError:
            return messages.ExportTraceServiceResponse()
        context.abort(grpc.StatusCode[status], message)


server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
service.add_TraceServiceServicer_to_server(Collector(), server)
if pair:
    certificate, key = (open(name, "rb").read() for name in pair)
    port = server.add_secure_port(f"127.0.0.1:{asked}", grpc.ssl_server_credentials([(key, certificate)]))
else:
    port = server.add_insecure_port(f"127.0.0.1:{asked}")
server.start()
print(port, flush=True)
server.wait_for_termination()
