//! PostgreSQL behind a stream route: its real server and client, with TLS between both and without.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Authority, Gateway, Kind, LIMIT, Process, Start, free_port, program, wait_until};

/// A server with an empty database on loopback.
pub(crate) struct Postgres {
    pub(crate) port: u16,
    /// The authority of its certificate, which is for `db.test` and `localhost`.
    pub(crate) authority: Authority,
    _process: Process,
    _folder: TempDir,
}

/// A program of the server, which Debian keeps out of the search path.
fn of_server(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| program(name))
}

/// A command of the server's, which root may not run.
fn command(name: &str, user: Option<u32>) -> Command {
    let Some(user) = user.map(|user| user.to_string()) else { return Command::new(of_server(name)) };
    let mut command = Command::new(program("setpriv"));
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(of_server(name));
    command
}

impl Postgres {
    /// For everybody.
    pub(crate) fn start() -> Self {
        Self::with_login("trust")
    }

    /// For the user `postgres` with the password `pg,pass=word`.
    pub(crate) fn with_password() -> Self {
        Self::with_login("scram-sha-256")
    }

    fn with_login(login: &str) -> Self {
        const NOBODY: u32 = 65_534;
        let user = rustix::process::geteuid().is_root().then_some(NOBODY);
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let own = |path: &Path| chown(path, user, user).expect("give the folder away");
        own(folder.path());
        let data = folder.path().join("data");
        let mut init = command("initdb", user);
        let password = folder.path().join("password");
        fs::write(&password, PASSWORD).expect("write a password");
        own(&password);
        init.arg("-D").arg(&data).args(["-U", "postgres", "-A", login, "-E", "UTF8", "--locale=C", "--no-sync"]);
        init.arg("--pwfile").arg(&password);
        let made = init.current_dir("/").output().expect("run initdb");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let authority = Authority::new();
        let certificate = authority.certificate(Kind::P256, &["db.test", "localhost"]);
        for (name, text) in [("server.crt", &certificate.cert), ("server.key", &certificate.key)] {
            let path = data.join(name);
            fs::write(&path, text).expect("write a certificate");
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("set permissions");
            own(&path);
        }
        let mut server = command("postgres", user);
        server.arg("-D").arg(&data).args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        server.args(["-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "ssl=on", "-c", "shared_buffers=4MB"]);
        let process = Process::spawn(server.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null()));
        let server = Self { port, authority, _process: process, _folder: folder };
        wait_until("the database", LIMIT, || (ask(port, "disable", "select 1") == "1").then_some(()));
        server
    }
}

/// The password of the user `postgres`.
const PASSWORD: &str = "pg,pass=word";

/// Output of psql.
pub(crate) fn ask(port: u16, tls: &str, statement: &str) -> String {
    let target = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres sslmode={tls}");
    let mut psql = Command::new(program("psql"));
    psql.env("PGPASSWORD", PASSWORD).args(["-X", "-tA", "-c", statement, &target]);
    let output = psql.output().expect("run psql");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)).trim().to_owned()
}

#[test]
fn a_database_is_served_with_tls_and_without() {
    let database = Postgres::start();
    let config = json!({ "stream_routes": [
        { "id": "db", "upstream": { "scheme": "tcp", "nodes": { format!("127.0.0.1:{}", database.port): 1 } } },
    ] });
    let settings = json!({ "listen": { "http": ["127.0.0.1:0"], "https": [], "tcp": ["127.0.0.1:0"] } });
    let gateway: Gateway = Start::new(&config).settings(settings).workers(2).own_listeners().start();
    let port = gateway.addrs[1].port();
    let is_secret = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    for (tls, expected) in [("disable", "f"), ("require", "t")] {
        assert_eq!(ask(port, tls, is_secret), expected, "{tls}");
        let long = ask(port, tls, "select repeat('x', 3000000)");
        assert!(long.len() == 3_000_000 && long.bytes().all(|byte| byte == b'x'), "{tls}: {} bytes", long.len());
    }
    ask(port, "disable", "create table t as select generate_series(1, 50000) as n");
    assert_eq!(ask(port, "require", "select sum(n) from t"), "1250025000");
    gateway.await_metric("weir_streams_total", &[("route", "db"), ("status", "200")], 6.0);
}
