"""A service that speaks GraphQL, with the package graphql-core: prints its port, and a line for each question about its schema.

    graphql_peer.py
"""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from graphql import build_schema, graphql_sync

SCHEMA = build_schema("""
interface Node { id: ID }
type Query { products(first: Int = 10, tag: String): Products!, node(id: ID): Node, top: [[Product!]!]! }
type Mutation { restock(count: Int): Product }
type Products { nodes: [Product!]! }
type Product implements Node { id: ID, price: Int, reviews(first: Int): Reviews }
type Reviews { nodes: [Review] }
type Review { body: String }
""")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "__schema" in asked["query"]:
            print(self.path, self.headers["Host"], self.headers["X-Token"], flush=True)
        result = graphql_sync(SCHEMA, asked["query"], variable_values=asked.get("variables"),
                              operation_name=asked.get("operationName"))
        body = json.dumps(result.formatted).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
