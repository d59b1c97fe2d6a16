//! The interoperability tests of gRPC, with grpc-go's client and server. `tools/install-test-deps` installs them where Go
//! is, and without Go these tests say so and do nothing.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::json;

use crate::harness::{Start, each, made_with_go};

/// The cases that every implementation has.
const CASES: [&str; 14] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "custom_metadata",
];

fn program(name: &str) -> Option<PathBuf> {
    made_with_go(&format!("grpc-interop/{name}"))
}

/// grpc-go's server, until it is dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(program: PathBuf) -> Self {
        let mut child = Command::new(program)
            .arg("-port=0")
            .env("GRPC_GO_LOG_SEVERITY_LEVEL", "info")
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the server");
        let mut lines = BufReader::new(child.stderr.take().expect("its messages"));
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            assert!(lines.read_line(&mut line).expect("a message") > 0, "the server has ended");
        }
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        // Whatever else it says, until it ends.
        thread::spawn(move || lines.read_to_end(&mut Vec::new()));
        Self { child, port }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_case_of_grpc_go_passes() {
    let (Some(client), Some(server)) = (program("client"), program("server")) else { return };
    let server = Server::start(server);
    let upstream = json!({ "scheme": "grpc", "nodes": { format!("127.0.0.1:{}", server.port): 1 } });
    let gateway = Start::new(json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": upstream }] })).http2().start();
    each(
        &CASES,
        |case| (*case).to_owned(),
        |case| {
            let output = Command::new(&client)
                .args(["-server_host=127.0.0.1", &format!("-server_port={}", gateway.addr.port())])
                .arg(format!("-test_case={case}"))
                .env("GRPC_GO_LOG_SEVERITY_LEVEL", "info")
                .output()
                .expect("run the client");
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{told}");
            assert!(told.lines().any(|line| line.ends_with(" done") || line.ends_with(" done.")), "{told}");
        },
    );
}
