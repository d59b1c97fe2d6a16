//! A cluster of Kafka on loopback, librdkafka's own unless it is told, and what librdkafka's consumer reads there.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::process::{Process, repository};

/// A running cluster with one topic, and a consumer of it.
pub(crate) struct Kafka {
    /// Hosts and ports.
    pub(crate) brokers: Vec<(String, u16)>,
    folder: TempDir,
    _process: Process,
}

impl Kafka {
    /// A cluster of so many brokers with this topic, which has four partitions.
    pub(crate) fn start(brokers: usize, topic: &str) -> Self {
        Self::with(&brokers.to_string(), topic)
    }

    /// The cluster of this broker.
    pub(crate) fn of(host: &str, port: u16, topic: &str) -> Self {
        Self::with(&format!("{host}:{port}"), topic)
    }

    fn with(brokers: &str, topic: &str) -> Self {
        let folder = tempfile::tempdir().expect("create a folder");
        let mut command = Command::new(repository().join("target/test-tools/bin/python"));
        command.arg(repository().join("crates/weir/tests/harness/kafka.py"));
        command.arg(folder.path()).args([brokers, topic]);
        let log = fs::File::create(folder.path().join("log")).expect("create a file");
        let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log));
        let mut line = String::new();
        let output = process.child().stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("the brokers");
        let broker = |text: &str| {
            let (host, port) = text.rsplit_once(':').expect("a host and a port");
            (host.to_owned(), port.parse().expect("a port"))
        };
        let brokers: Vec<_> = line.split_whitespace().map(broker).collect();
        let log = || fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        assert!(!brokers.is_empty(), "no cluster (run tools/install-test-deps): {}", log());
        Self { brokers, folder, _process: process }
    }

    /// The messages read so far, each with `partition`, `key`, `value` and `time`.
    pub(crate) fn messages(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("messages")).unwrap_or_default();
        // The last line may not be whole yet.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}
