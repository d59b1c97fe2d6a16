//! A collector of OpenTelemetry's protocol over gRPC, by gRPC's own library for Python.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::certificate::Certificate;
use super::process::{Process, repository};

/// A running collector.
pub(crate) struct Otlp {
    pub(crate) port: u16,
    folder: TempDir,
    _process: Process,
}

impl Otlp {
    /// A collector, with TLS where there is a certificate.
    pub(crate) fn start(certificate: Option<&Certificate>) -> Self {
        Self::start_at(0, certificate)
    }

    /// The same at this port; 0: at any.
    pub(crate) fn start_at(port: u16, certificate: Option<&Certificate>) -> Self {
        let folder = tempfile::tempdir().expect("create a folder");
        let mut command = Command::new(repository().join("target/test-tools/bin/python"));
        command.arg(repository().join("crates/weir/tests/harness/otlp.py")).arg(folder.path()).arg(port.to_string());
        if let Some(certificate) = certificate {
            command.arg(&certificate.cert_file).arg(&certificate.key_file);
        }
        let log = fs::File::create(folder.path().join("log")).expect("create a file");
        let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log));
        let mut line = String::new();
        let output = process.child().stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("the port");
        let log = || fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        let port = line.trim().parse();
        let port = port.unwrap_or_else(|_| panic!("no collector (run tools/install-test-deps): {}", log()));
        Self { port, folder, _process: process }
    }

    /// Has further calls fail with this status and message; `None`: they succeed.
    pub(crate) fn fail_with(&self, status: Option<&str>) {
        let file = self.folder.path().join("status");
        match status {
            Some(status) => fs::write(file, status).expect("write a file"),
            None => fs::remove_file(file).expect("remove a file"),
        }
    }

    /// The calls so far, each with `peer`, `fields` and `request`.
    pub(crate) fn calls(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        // The last line may not be whole yet.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}
