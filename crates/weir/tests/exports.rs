//! Usage on its way to other databases: the same sums there, whatever ends meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::extensions::ask;
use crate::harness::{
    Answer, Gateway, LIMIT, Origin, Process, Start, free_port, get, repository, route_to, wait_until, weir,
};
use crate::streams_postgres::{Postgres, ask as query};

/// The settings of a gateway with these exports.
fn settings(name: &str, authority: &Path, exports: &Value) -> String {
    json!({
        "usage": { "enabled": true, "gateway": name, "export_interval": "1s", "exports": exports },
        "tls": { "trusted_certificate": authority },
    })
    .to_string()
}

fn start(folder: &Path, settings: &str, origin: &Origin) -> Gateway {
    let gateway = Start::stored().data_dir(folder).settings(settings).workers(2).start();
    gateway.must("PUT", "routes/all", &route_to([&origin.node()])["routes"][0].to_string());
    gateway
}

fn send(gateway: &Gateway, requests: usize) {
    let mut client = gateway.client();
    for _ in 0..requests {
        assert_eq!(client.get("/a").status, 200);
    }
}

/// Requests that a gateway has recorded itself.
pub(crate) fn recorded(gateway: &Gateway) -> u64 {
    let (status, answer) = ask(gateway, "GET", "usage?from=-3h", "");
    assert_eq!(status, 200, "{answer}");
    answer["rows"].as_array().expect("rows").iter().filter_map(|row| row["requests"].as_u64()).sum()
}

#[test]
fn gateways_export_to_one_postgresql_and_lose_and_double_nothing() {
    let (origin, database) = (Origin::hello(), Postgres::with_password());
    let folders = [0, 1].map(|_| tempfile::tempdir().expect("a folder"));
    let csv = folders[0].path().join("csv");
    // Over TLS with a verified certificate, and a password that has to be encoded in a URL.
    let url = format!("postgresql://postgres:pg%2Cpass%3Dword@localhost:{}/postgres", database.port);
    let to_database = json!({ "name": "pg", "to": "postgresql", "url": url });
    let to_files = json!({ "name": "files", "to": "csv", "directory": csv });
    let authority = database.authority.file();
    let first = settings("g1", &authority, &json!([to_database, to_files]));
    let second = settings("g'2", &authority, &json!([to_database]));
    let mut gateways = [start(folders[0].path(), &first, &origin), start(folders[1].path(), &second, &origin)];
    let sum = |gateway: &str| {
        let gateway = gateway.replace('\'', "''");
        query(
            database.port,
            "require",
            &format!("select coalesce(sum(requests), 0) from weir_usage where gateway = '{gateway}'"),
        )
    };
    thread::scope(|scope| gateways.iter().for_each(|gateway| drop(scope.spawn(|| send(gateway, 200)))));
    for name in ["g1", "g'2"] {
        wait_until("all to be there", LIMIT, || (sum(name) == "200").then_some(()));
    }
    // Killed under load: what its own database has is there in the end, and nothing twice.
    thread::scope(|scope| {
        let gateway = &gateways[0];
        let load = scope.spawn(move || {
            let mut client = gateway.client();
            loop {
                client.send(get("/a"));
                if client.try_response().is_err() {
                    break;
                }
            }
        });
        wait_until("some of it to be there", LIMIT, || {
            (sum("g1").parse::<u64>().expect("a number") > 400).then_some(())
        });
        gateway.signal(Signal::KILL);
        load.join().expect("a client");
    });
    gateways[0] = start(folders[0].path(), &first, &origin);
    send(&gateways[0], 50);
    let known = wait_until("the last request to be recorded", LIMIT, || {
        let [one, other] = [(); 2].map(|()| {
            thread::sleep(std::time::Duration::from_secs(1));
            recorded(&gateways[0])
        });
        (one == other).then_some(one)
    });
    assert!(known > 450, "{known}");
    wait_until("the rest to be there", LIMIT, || (sum("g1") == known.to_string()).then_some(()));
    assert_eq!(sum("g'2"), "200");
    let columns = "select distinct api || ' ' || route || ' ' || status, min(p50_us) > 0, max(p99_us) >= min(p50_us) \
                   from weir_usage group by 1";
    assert_eq!(query(database.port, "require", columns), "all all 2|t|t");
    // Files say the same.
    let in_files = || -> u64 {
        let texts =
            fs::read_dir(&csv).expect("the folder").map(|file| fs::read_to_string(file.expect("a file").path()));
        let texts: Vec<String> = texts.map(|text| text.expect("text")).collect();
        let lines = texts.iter().flat_map(|text| text.lines().skip(1));
        lines.map(|line| line.split(',').nth(8).and_then(|number| number.parse::<u64>().ok()).expect("a number")).sum()
    };
    wait_until("files to be complete", LIMIT, || (in_files() == known).then_some(()));
    // A stop exports the last requests.
    send(&gateways[1], 7);
    gateways[1].signal(Signal::TERM);
    assert!(gateways[1].wait().success());
    assert_eq!(sum("g'2"), "207");
    let page = gateways[0].metrics_page();
    assert!(page.value("weir_usage_exported_rows_total", &[("export", "pg")]).is_some_and(|rows| rows > 0.0));
    assert_eq!(page.value("weir_usage_export_failures_total", &[("export", "pg")]), Some(0.0));
}

/// The messages that ClickHouse's documentation of its HTTP interface tells of; there is no package of the server.
#[test]
fn rows_are_sent_to_clickhouse_over_http() {
    let (origin, folder) = (Origin::hello(), tempfile::tempdir().expect("a folder"));
    let house = Origin::answering(|request| {
        let is_known =
            request.field("x-clickhouse-user") == Some("jack") && request.field("x-clickhouse-key") == Some("s/e");
        if is_known { Answer::ok("") } else { Answer::status(516, "Code: 516. DB::Exception: Authentication failed") }
    });
    let exports = json!([{ "name": "ch", "to": "clickhouse", "url": format!("http://jack:s%2Fe@{}/?database=d", house.node()), "table": "t" }]);
    let gateway = start(folder.path(), &settings("g1", Path::new("system"), &exports), &origin);
    send(&gateway, 30);
    // Later rows take the place of earlier ones with the same dimensions, as the table's engine has it.
    let rows = || {
        let mut rows: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for request in house.complete().iter().filter(|request| request.target.contains("INSERT")) {
            for line in String::from_utf8_lossy(&request.body).lines() {
                let row: Value = serde_json::from_str(line).expect("a row");
                let key = format!("{} {} {} {}", row["time"], row["gateway"], row["route"], row["status"]);
                let version = row["version"].as_u64().expect("a version");
                let value = (version, row["requests"].as_u64().expect("a number"));
                let kept = rows.entry(key).or_insert(value);
                *kept = value.max(*kept);
            }
        }
        rows.values().map(|(_, requests)| requests).sum::<u64>()
    };
    wait_until("all to be there", LIMIT, || (rows() == 30).then_some(()));
    let requests = house.complete();
    let made = String::from_utf8_lossy(&requests[0].body).into_owned();
    assert!(
        made.starts_with("CREATE TABLE IF NOT EXISTS t (") && made.contains("ReplacingMergeTree(version)"),
        "{made}"
    );
    assert!(requests.iter().all(|request| request.target.starts_with("/?database=d")), "{}", requests[0].target);
}

/// MongoDB's protocol as another implementation reads it; of the server itself there is no package.
#[test]
fn documents_are_put_into_mongodb() {
    let python = repository().join("target/test-tools/bin/python");
    let (origin, folder) = (Origin::hello(), tempfile::tempdir().expect("a folder"));
    let mut server = Command::new(python);
    server.arg(repository().join("crates/weir/tests/harness/mongod.py")).arg(folder.path()).arg("se/cret");
    let mut server = server.stdout(Stdio::piped()).spawn().expect("run tools/install-test-deps");
    let mut port = String::new();
    BufReader::new(server.stdout.take().expect("its output")).read_line(&mut port).expect("a port");
    let _server = Ends(server);
    let url = |password: &str| format!("mongodb://jack:{password}@127.0.0.1:{}/usage?tls=false", port.trim());
    let exports = json!([
        { "name": "right", "to": "mongodb", "url": url("se%2Fcret"), "table": "sums" },
        { "name": "wrong", "to": "mongodb", "url": url("guessed") },
    ]);
    let gateway = start(folder.path(), &settings("g1", Path::new("system"), &exports), &origin);
    let kept = || -> Option<Value> {
        serde_json::from_str(&fs::read_to_string(folder.path().join("documents.json")).ok()?).ok()
    };
    let requests = || {
        let kept = kept()?;
        let documents = kept["documents"].as_array()?;
        Some(documents.iter().filter_map(|one| one["requests"].as_u64()).sum::<u64>())
    };
    for wanted in [30, 50] {
        send(&gateway, if wanted == 30 { 30 } else { 20 });
        wait_until("all to be there", LIMIT, || (requests() == Some(wanted)).then_some(()));
    }
    let kept = kept().expect("documents");
    let document = &kept["documents"][0];
    let told = (&document["gateway"], &document["route"], &document["status"], &document["consumer"]);
    assert_eq!(told, (&json!("g1"), &json!("all"), &json!(2), &json!("")), "{document}");
    assert!(document["time"].as_f64().is_some_and(|time| time % 60.0 == 0.0 && time > 1.7e9), "{document}");
    let commands = kept["commands"].as_array().expect("commands");
    assert!(commands.iter().all(|one| one.as_str().is_some_and(|one| one.starts_with("usage.sums "))), "{commands:?}");
    wait_until("the wrong password to be refused", LIMIT, || {
        (gateway.metric("weir_usage_export_failures_total", &[("export", "wrong")]) > 0.0).then_some(())
    });
    assert_eq!(gateway.metric("weir_usage_export_failures_total", &[("export", "right")]), 0.0);
}

/// A process that ends with the test.
pub(crate) struct Ends(pub(crate) Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn wrong_exports_stop_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let csv = json!({ "name": "a", "to": "csv", "directory": folder.path().join("csv") });
    let with = |fields: Value| {
        let mut export = json!({ "name": "a", "to": "postgresql", "url": "postgresql://h/d?sslmode=disable" });
        export.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        json!([export])
    };
    let enabled = |exports: Value| json!({ "enabled": true, "exports": exports });
    for (usage, reason) in [
        (json!({ "exports": [csv] }), "usage.exports: needs usage.enabled: true"),
        (enabled(json!([csv, csv])), "usage.exports[1].name: there is another export"),
        (enabled(json!([{ "name": "a", "to": "csv" }])), "usage.exports[0]: directory: the field is missing"),
        (
            enabled(json!([{ "name": "a", "to": "csv", "directory": "x", "url": "y" }])),
            "url: it has no effect with to: csv",
        ),
        (enabled(json!([{ "name": "a", "to": "mongodb" }])), "usage.exports[0]: url: the field is missing"),
        (enabled(with(json!({ "directory": "x" }))), "directory: it has no effect"),
        (
            enabled(with(json!({ "url": "postgresql://u:hidden@h/d?sslmode=prefer" }))),
            "sslmode: expected disable or verify-full",
        ),
        (enabled(with(json!({ "url": "u:hidden" }))), "url: "),
        (enabled(with(json!({ "to": "mongodb", "url": "mongodb://h/?tls=false" }))), "expected the name of a database"),
        (enabled(with(json!({ "to": "clickhouse", "url": "http://h/?user=hidden" }))), "user: unknown argument"),
        (enabled(with(json!({ "table": "a; drop" }))), "table"),
        (enabled(with(json!({ "to": "oracle" }))), "to"),
        (
            json!({ "alerts": [{ "name": "a", "on": "errors", "url": "http://h/" }] }),
            "usage.alerts[0].on: needs usage.enabled",
        ),
        (
            json!({ "alerts": [{ "name": "a", "on": "quota", "url": "ftp://hidden/" }] }),
            "usage.alerts[0]: url: expected http",
        ),
    ] {
        let settings = folder.path().join("weir.yaml");
        let text = json!({
            "store": { "data_dir": folder.path() },
            "usage": usage,
            "listen": { "http": ["127.0.0.1:0"], "https": [], "admin": "off", "control": "off" },
        });
        fs::write(&settings, text.to_string()).expect("write the settings");
        let (status, _, said) = weir(&["run", "--settings", &settings.display().to_string()]);
        assert!(status != 0 && said.contains(reason), "{usage}: {status}: {said}");
        assert!(!said.contains("hidden"), "{usage}: {said}");
    }
}

/// FerretDB, which keeps documents in SQLite.
struct Ferret {
    program: PathBuf,
    port: u16,
    folder: TempDir,
    process: Option<Process>,
}

impl Ferret {
    /// The server, if `make test-peers` has built it.
    fn start() -> Option<Self> {
        let program = repository().join("target/test-tools/ferretdb");
        if !program.exists() {
            println!("left out: make test-peers builds {}", program.display());
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut ferret = Self { program, port: free_port(), folder, process: None };
        ferret.restart();
        Some(ferret)
    }

    /// Ends the server without a word, and starts it with what it had.
    fn restart(&mut self) {
        self.kill();
        let folder = self.folder.path().display();
        let mut command = Command::new(&self.program);
        command.args(["--handler=sqlite", "--telemetry=disable", "--debug-addr=-", "--log-level=error"]);
        command.args([format!("--sqlite-url=file:{folder}/"), format!("--state-dir={folder}")]);
        command.arg(format!("--listen-addr=127.0.0.1:{}", self.port));
        command.args([
            "--test-enable-new-auth",
            "--setup-username=jack",
            "--setup-password=se/cret",
            "--setup-database=usage",
        ]);
        self.process = Some(Process::spawn(command.stdout(Stdio::null()).stderr(Stdio::null())));
        wait_until("FerretDB to answer", LIMIT, || self.documents().map(drop));
    }

    fn kill(&mut self) {
        self.process = None;
    }

    /// All documents of the collection, read by MongoDB's own driver.
    fn documents(&self) -> Option<Vec<Value>> {
        let script = "import json, sys, pymongo\n\
             client = pymongo.MongoClient(sys.argv[1], serverSelectionTimeoutMS=2000)\n\
             print(json.dumps(list(client.usage.sums.find()), default=lambda one: one.timestamp()))";
        let url =
            format!("mongodb://jack:se%2Fcret@127.0.0.1:{}/?authSource=usage&authMechanism=SCRAM-SHA-256", self.port);
        let python = repository().join("target/test-tools/bin/python");
        let output = Command::new(python).args(["-c", script, &url]).output().expect("run tools/install-test-deps");
        serde_json::from_slice(&output.stdout).ok()
    }
}

/// MongoDB's protocol as FerretDB speaks it.
#[test]
fn documents_are_put_into_ferretdb() {
    let Some(mut ferret) = Ferret::start() else { return };
    let (origin, folder) = (Origin::hello(), tempfile::tempdir().expect("a folder"));
    let url = |password: &str| {
        format!("mongodb://jack:{password}@127.0.0.1:{}/usage?tls=false&authSource=usage", ferret.port)
    };
    let exports = json!([
        { "name": "right", "to": "mongodb", "url": url("se%2Fcret"), "table": "sums" },
        { "name": "wrong", "to": "mongodb", "url": url("guessed"), "table": "sums" },
    ]);
    let gateway = start(folder.path(), &settings("g1", Path::new("system"), &exports), &origin);
    let sum = |ferret: &Ferret| {
        let documents = ferret.documents().unwrap_or_default();
        documents.iter().filter_map(|one| one["requests"].as_u64()).sum::<u64>()
    };
    send(&gateway, 30);
    wait_until("all to be there", LIMIT, || (sum(&ferret) == 30).then_some(()));
    ferret.kill();
    send(&gateway, 20);
    wait_until("an attempt that fails", LIMIT, || {
        (gateway.metric("weir_usage_export_failures_total", &[("export", "right")]) > 0.0).then_some(())
    });
    ferret.restart();
    wait_until("the rest to be there, and nothing twice", LIMIT, || (sum(&ferret) == 50).then_some(()));
    let documents = ferret.documents().expect("documents");
    let first = &documents[0];
    let told = (&first["gateway"], &first["route"], &first["status"], &first["consumer"]);
    assert_eq!(told, (&json!("g1"), &json!("all"), &json!(2), &json!("")), "{first}");
    assert!(gateway.metric("weir_usage_export_failures_total", &[("export", "wrong")]) > 0.0);
}
