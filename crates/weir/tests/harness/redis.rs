//! A real Redis: one server, with sentinels, or a cluster, on loopback.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use super::process::{Process, program};
use super::{Certificate, LIMIT, free_port, wait_until};

/// A running server, which keeps nothing on a disk.
pub(crate) struct Redis {
    pub(crate) port: u16,
    arguments: Vec<String>,
    process: Option<Process>,
    folder: TempDir,
    /// Credentials for `redis-cli`.
    access: Vec<String>,
}

impl Redis {
    /// A server for everybody.
    pub(crate) fn start() -> Self {
        Self::with(&[], &[])
    }

    /// A server with further arguments; `access` are those of `redis-cli`.
    pub(crate) fn with(arguments: &[&str], access: &[&str]) -> Self {
        Self::at(free_port(), arguments, access)
    }

    /// A server that speaks nothing but TLS.
    pub(crate) fn with_tls(certificate: &Certificate) -> Self {
        Self::with_tls_and(certificate, &[])
    }

    /// The same, as a cluster of its own.
    pub(crate) fn cluster_with_tls(certificate: &Certificate) -> Self {
        let (bus, authority) = (free_port().to_string(), certificate.cert_file.display().to_string());
        let cluster = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--tls-cluster", "yes"];
        let arguments = [&cluster[..], &["--tls-ca-cert-file", &authority]].concat();
        let server = Self::with_tls_and(certificate, &arguments);
        assert_eq!(server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
        wait_until("the cluster to be whole", LIMIT, || {
            server.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok").then_some(())
        });
        server
    }

    fn with_tls_and(certificate: &Certificate, more: &[&str]) -> Self {
        let (port, own) = (free_port(), |file: &PathBuf| file.display().to_string());
        let (cert, key) = (own(&certificate.cert_file), own(&certificate.key_file));
        let tls = ["--tls-port", &port.to_string(), "--tls-cert-file", &cert, "--tls-key-file", &key];
        let arguments = [&tls[..], &["--tls-auth-clients", "no", "--port", "0"], more].concat();
        Self::at(port, &arguments, &["--tls", "--insecure"])
    }

    fn at(port: u16, arguments: &[&str], access: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("create a folder");
        let listen = ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let arguments = [&listen[..], arguments].concat();
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let (arguments, access) = (owned(&arguments), owned(access));
        let mut server = Self { port, arguments, process: None, folder, access };
        server.restart();
        server
    }

    /// Ends the server without a word, and starts it with nothing in it.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let mut command = Command::new(program("redis-server"));
        command.args(&self.arguments).arg("--dir").arg(self.folder.path());
        self.run(command);
    }

    fn run(&mut self, mut command: Command) {
        let log = fs::File::create(self.folder.path().join("log")).expect("create a file");
        self.process = Some(Process::spawn(command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null())));
        wait_until("Redis to answer", LIMIT, || {
            let ended = self.process.as_mut().and_then(Process::exited);
            let log = || fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(ended.is_none(), "Redis ended: {}", log());
            (self.cli(&["PING"]) == "PONG").then_some(())
        });
    }

    /// Ends the server without a word.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Stops it in the middle of whatever it does: connections stay open, and nothing answers.
    pub(crate) fn hang(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("a running server").signal(signal);
    }

    /// The output of `redis-cli` for a command.
    pub(crate) fn cli(&self, command: &[&str]) -> String {
        let mut cli = Command::new(program("redis-cli"));
        cli.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "--no-auth-warning"]).args(&self.access);
        let output = cli.args(command).stdin(Stdio::null()).output().expect("run redis-cli");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// All keys.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.cli(&["--scan"]).lines().map(str::to_owned).collect()
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// A master with a replica, and three sentinels that watch over them.
pub(crate) struct Sentinels {
    /// The first is the master at the beginning.
    pub(crate) servers: Vec<Redis>,
    pub(crate) sentinels: Vec<Redis>,
}

impl Sentinels {
    /// Servers that want `password`, and sentinels that want `sentinel_password`, of the master `cases`.
    pub(crate) fn start(password: &str, sentinel_password: &str) -> Self {
        let auth = ["--requirepass", password, "--masterauth", password];
        let master = Redis::with(&auth, &["-a", password]);
        let of = ["--replicaof", &format!("127.0.0.1 {}", master.port), "--repl-diskless-sync-delay", "0"];
        let replica = Redis::with(&[&auth[..], &of].concat(), &["-a", password]);
        wait_until("the replica to follow", LIMIT, || {
            replica.cli(&["INFO", "replication"]).contains("master_link_status:up").then_some(())
        });
        let address = format!("127.0.0.1 {}", master.port);
        let text = |port: u16| {
            format!(
                "port {port}\nbind 127.0.0.1\nrequirepass {sentinel_password}\nsentinel sentinel-pass {sentinel_password}\n\
                 sentinel monitor cases {address} 2\nsentinel auth-pass cases {password}\n\
                 sentinel down-after-milliseconds cases 500\nsentinel failover-timeout cases 2000\n"
            )
        };
        let sentinels = (0..3).map(|_| Redis::sentinel(text, sentinel_password)).collect::<Vec<_>>();
        wait_until("the sentinels to know each other", LIMIT, || {
            let knows = |sentinel: &Redis| {
                let known = sentinel.cli(&["SENTINEL", "MASTER", "cases"]);
                known.contains("num-other-sentinels\n2") && known.contains("num-slaves\n1")
            };
            sentinels.iter().all(knows).then_some(())
        });
        Self { servers: vec![master, replica], sentinels }
    }

    /// As `redis_sentinels` has them.
    pub(crate) fn addresses(&self) -> serde_json::Value {
        self.sentinels
            .iter()
            .map(|sentinel| serde_json::json!({ "host": "127.0.0.1", "port": sentinel.port }))
            .collect()
    }

    /// Waits until the sentinels have made the replica the master.
    pub(crate) fn await_failover(&self) {
        let replica = &self.servers[1];
        wait_until("the replica to become the master", LIMIT, || {
            replica.cli(&["INFO", "replication"]).contains("role:master").then_some(())
        });
    }
}

impl Redis {
    fn sentinel(text: impl Fn(u16) -> String, password: &str) -> Self {
        let (port, folder) = (free_port(), tempfile::tempdir().expect("create a folder"));
        let file = folder.path().join("sentinel.conf");
        fs::write(&file, text(port)).expect("write a file");
        let access = ["-a", password].map(str::to_owned).to_vec();
        let mut server = Self { port, arguments: Vec::new(), process: None, folder, access };
        let mut command = Command::new(program("redis-server"));
        command.arg(file).arg("--sentinel").arg("--dir").arg(server.folder.path());
        server.run(command);
        server
    }
}

/// A cluster of three masters with a replica each.
pub(crate) struct RedisCluster {
    pub(crate) servers: Vec<Redis>,
}

impl RedisCluster {
    pub(crate) fn start() -> Self {
        let server = |_| {
            let bus = free_port().to_string();
            let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", &bus];
            Redis::with(&[&arguments[..], &["--repl-diskless-sync-delay", "0"]].concat(), &[])
        };
        let cluster = Self { servers: (0..6).map(server).collect() };
        let addresses: Vec<String> = cluster.servers.iter().map(Redis::address).collect();
        let mut create = vec!["create"];
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", "1", "--cluster-yes"]);
        cluster.manage(&create);
        cluster.await_whole();
        cluster
    }

    /// Runs `redis-cli --cluster`.
    pub(crate) fn manage(&self, arguments: &[&str]) -> String {
        let output = Command::new(program("redis-cli")).arg("--cluster").args(arguments).stdin(Stdio::null()).output();
        let output = output.expect("run redis-cli");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "redis-cli --cluster {arguments:?}: {text}");
        text
    }

    /// Waits until every server knows all slots and their replicas.
    fn await_whole(&self) {
        wait_until("the cluster to be whole", LIMIT, || {
            let is_whole = |server: &Redis| {
                server.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && server.cli(&["CLUSTER", "NODES"]).matches("slave").count() == 3
            };
            self.servers.iter().all(is_whole).then_some(())
        });
    }

    /// As `redis_cluster_nodes` has them: two are enough.
    pub(crate) fn seeds(&self) -> Vec<String> {
        self.servers.iter().take(2).map(Redis::address).collect()
    }

    /// Ids of the masters with the number of their slots.
    pub(crate) fn masters(&self) -> Vec<(String, u16)> {
        let nodes = self.servers[0].cli(&["CLUSTER", "NODES"]);
        let masters = nodes.lines().filter(|line| line.contains("master"));
        let count = |range: &str| match range.split_once('-') {
            Some((first, last)) => last.parse::<u16>().expect("a slot") - first.parse::<u16>().expect("a slot") + 1,
            None => 1,
        };
        masters
            .map(|line| {
                let mut parts = line.split(' ');
                let id = parts.next().expect("an id").to_owned();
                (id, parts.skip(7).filter(|part| !part.starts_with('[')).map(count).sum())
            })
            .collect()
    }
}
