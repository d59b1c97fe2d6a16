//! A real etcd: one member or several on loopback, with or without TLS.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::process::{Process, program};
use super::{Authority, Certificate, LIMIT, free_port, wait_until};

/// A running cluster.
pub(crate) struct EtcdCluster {
    members: Vec<Member>,
    /// Token that determines the id of the cluster, together with the addresses of its members.
    token: String,
    folder: TempDir,
    tls: Option<Tls>,
    /// User and password of `etcdctl`, once authentication is enabled.
    user: Mutex<Option<String>>,
}

struct Member {
    name: String,
    client: u16,
    peer: u16,
    process: Option<Process>,
}

struct Tls {
    authority: Authority,
    server: Certificate,
    client: Certificate,
    verifies_clients: bool,
}

impl EtcdCluster {
    /// Starts `count` members, over plain HTTP.
    pub(crate) fn start(count: usize) -> Self {
        Self::with(count, None)
    }

    /// Starts one member with TLS, which may require client certificates.
    pub(crate) fn start_tls(verifies_clients: bool) -> Self {
        let authority = Authority::new();
        let server = authority.certificate(super::Kind::P256, &["localhost", "etcd.test"]);
        let client = authority.certificate(super::Kind::P256, &["gateway"]);
        Self::with(1, Some(Tls { authority, server, client, verifies_clients }))
    }

    fn with(count: usize, tls: Option<Tls>) -> Self {
        let folder = tempfile::tempdir().expect("create a folder");
        let member =
            |index| Member { name: format!("m{index}"), client: free_port(), peer: free_port(), process: None };
        let members = (0..count).map(member).collect();
        let mut cluster = Self { members, token: "weir".to_owned(), folder, tls, user: Mutex::new(None) };
        for index in 0..count {
            cluster.start_member(index);
        }
        cluster.await_healthy();
        cluster
    }

    /// Starts a member, with its data from before.
    pub(crate) fn start_member(&mut self, index: usize) {
        let peers: Vec<String> =
            self.members.iter().map(|member| format!("{}=http://127.0.0.1:{}", member.name, member.peer)).collect();
        let member = &self.members[index];
        let (client, peer) = (self.url(index), format!("http://127.0.0.1:{}", member.peer));
        let listen = client.replace("localhost", "127.0.0.1");
        let log = fs::File::create(self.file(&format!("{}.log", member.name))).expect("create a file");
        let mut command = Command::new(program("etcd"));
        command.args(["--name", &member.name, "--data-dir"]).arg(self.file(&member.name));
        command.args(["--listen-client-urls", &listen, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &peers.join(","), "--initial-cluster-state", "new"]);
        command.args(["--initial-cluster-token", &self.token]);
        command.args(["--heartbeat-interval", "100", "--election-timeout", "2000", "--logger", "zap"]);
        if let Some(tls) = &self.tls {
            command.arg("--cert-file").arg(&tls.server.cert_file);
            command.arg("--key-file").arg(&tls.server.key_file);
            if tls.verifies_clients {
                command.arg("--trusted-ca-file").arg(tls.authority.file()).arg("--client-cert-auth");
            }
        }
        // The data of a test does not have to survive a crash of the machine.
        command.arg("--unsafe-no-fsync");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.members[index].process = Some(Process::spawn(&mut command));
    }

    /// Waits until every running member answers linearizable reads.
    pub(crate) fn await_healthy(&mut self) {
        for index in 0..self.members.len() {
            if self.members[index].process.is_none() {
                continue;
            }
            wait_until("a member of etcd to be healthy", LIMIT, || {
                let ended = self.members[index].process.as_mut().and_then(Process::exited);
                assert!(ended.is_none(), "etcd ended: {}", self.log(index));
                self.ctl_at(&self.url(index), &["endpoint", "health"]).is_ok().then_some(())
            });
        }
    }

    /// Kills a member.
    pub(crate) fn kill(&mut self, index: usize) {
        self.members[index].process = None;
    }

    /// Kills all members.
    pub(crate) fn kill_all(&mut self) {
        for index in 0..self.members.len() {
            self.kill(index);
        }
    }

    /// Starts all killed members.
    pub(crate) fn start_all(&mut self) {
        for index in 0..self.members.len() {
            if self.members[index].process.is_none() {
                self.start_member(index);
            }
        }
        self.await_healthy();
    }

    /// Kills a member and starts it without data, as another cluster.
    pub(crate) fn forget(&mut self, index: usize) {
        self.kill(index);
        fs::remove_dir_all(self.file(&self.members[index].name)).expect("remove etcd's data");
        self.members[index].name.push('x');
        self.token.push('x');
        self.start_all();
    }

    /// Saves the data directory of a killed member.
    pub(crate) fn keep(&self, index: usize) {
        self.copy(&self.members[index].name, "kept");
    }

    /// Restores the saved data directory of a killed member.
    pub(crate) fn set_back(&self, index: usize) {
        let name = &self.members[index].name;
        fs::remove_dir_all(self.file(name)).expect("remove etcd's data");
        self.copy("kept", name);
    }

    fn copy(&self, from: &str, to: &str) {
        let status = Command::new("cp").arg("-r").arg(self.file(from)).arg(self.file(to)).status().expect("run cp");
        assert!(status.success(), "copy {from} to {to}");
    }

    /// Stops a member without closing its connections, which looks to its clients like a network that drops all packets.
    pub(crate) fn freeze(&self, index: usize) {
        self.signal(index, Signal::STOP);
    }

    /// Resumes a frozen member.
    pub(crate) fn thaw(&self, index: usize) {
        self.signal(index, Signal::CONT);
    }

    fn signal(&self, index: usize, signal: Signal) {
        self.members[index].process.as_ref().expect("a running member").signal(signal);
    }

    /// The address of a member.
    pub(crate) fn url(&self, index: usize) -> String {
        let port = self.members[index].client;
        if self.tls.is_some() { format!("https://localhost:{port}") } else { format!("http://127.0.0.1:{port}") }
    }

    /// The addresses of all members.
    pub(crate) fn urls(&self) -> Vec<String> {
        (0..self.members.len()).map(|index| self.url(index)).collect()
    }

    /// The port of a member, for a relay in front of it.
    pub(crate) fn port(&self, index: usize) -> u16 {
        self.members[index].client
    }

    /// The authority of the cluster's certificates, and a client certificate.
    pub(crate) fn tls(&self) -> (PathBuf, &Certificate) {
        let tls = self.tls.as_ref().expect("a cluster with TLS");
        (tls.authority.file(), &tls.client)
    }

    /// Writes a value below `/apisix/`.
    pub(crate) fn put(&self, key: &str, value: impl std::fmt::Display) {
        self.ctl(&["put", "--", &format!("/apisix/{key}"), &value.to_string()]);
    }

    /// Deletes a key below `/apisix/`.
    pub(crate) fn delete(&self, key: &str) {
        self.ctl(&["del", "--", &format!("/apisix/{key}")]);
    }

    /// The value of a key below `/apisix/`.
    pub(crate) fn value(&self, key: &str) -> Option<Value> {
        let text = self.ctl(&["get", "--print-value-only", "--", &format!("/apisix/{key}")]);
        (!text.trim().is_empty()).then(|| serde_json::from_str(&text).expect("a value in JSON"))
    }

    /// The store's revision.
    pub(crate) fn revision(&self) -> u64 {
        let text = self.ctl(&["get", "nothing", "--write-out", "json"]);
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        answer["header"]["revision"].as_u64().expect("a revision")
    }

    /// Compacts the history up to the current revision.
    pub(crate) fn compact(&self) {
        self.ctl(&["compact", &self.revision().to_string()]);
    }

    /// Enables authentication, with the users `root`, and `reader` with read permission. Both have the password `secret`.
    pub(crate) fn require_users(&self) {
        for command in [
            "user add root:secret",
            "user grant-role root root",
            "role add reader",
            "role grant-permission reader --prefix=true read /apisix/",
            "user add reader:secret",
            "user grant-role reader reader",
            "auth enable",
        ] {
            self.ctl(&command.split(' ').collect::<Vec<_>>());
        }
        *self.user.lock().unwrap_or_else(PoisonError::into_inner) = Some("root:secret".to_owned());
    }

    /// The output of `etcdctl`, from any running member.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        let running = (0..self.members.len()).filter(|index| self.members[*index].process.is_some());
        let urls: Vec<String> = running.map(|index| self.url(index)).collect();
        match self.ctl_at(&urls.join(","), arguments) {
            Ok(text) => text,
            Err(words) => panic!("etcdctl {arguments:?}: {words}"),
        }
    }

    fn ctl_at(&self, endpoints: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program("etcdctl"));
        command.env("ETCDCTL_API", "3").args(["--endpoints", endpoints]);
        command.args(["--dial-timeout", "20s", "--command-timeout", "20s"]);
        if let Some(tls) = &self.tls {
            command.arg("--cacert").arg(tls.authority.file());
            command.arg("--cert").arg(&tls.client.cert_file).arg("--key").arg(&tls.client.key_file);
        }
        if let Some(user) = &*self.user.lock().unwrap_or_else(PoisonError::into_inner) {
            command.args(["--user", user]);
        }
        let done = command.args(arguments).stdin(Stdio::null()).output().expect("run etcdctl");
        if done.status.success() {
            Ok(String::from_utf8_lossy(&done.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&done.stderr).into_owned())
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self, index: usize) -> String {
        fs::read_to_string(self.file(&format!("{}.log", self.members[index].name))).unwrap_or_default()
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        if thread::panicking() {
            for index in 0..self.members.len() {
                let log = self.log(index);
                let tail: Vec<&str> = log.lines().rev().take(5).collect();
                eprintln!("--- etcd {} ---\n{}\n---", self.url(index), tail.join("\n"));
            }
        }
    }
}
