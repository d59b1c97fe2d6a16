//! The real binary, on free ports, with a folder of its own.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::any_client::{AnyClient, Protocol};
use super::client::RawClient;
use super::message::Response;
use super::process::{self, Process};
use super::{LIMIT, wait_until};

/// Time limit for the log to report an applied or refused change, if it reports the change at all.
const LOG_LIMIT: Duration = Duration::from_secs(2);

/// A running gateway. Its standard error is printed when the test fails.
pub(crate) struct Gateway {
    pub(crate) process: Process,
    pub(crate) addr: SocketAddr,
    /// All addresses with a port and without TLS, in the order of the settings; `addr` is the first.
    pub(crate) addrs: Vec<SocketAddr>,
    /// The address for TLS, with [`Start::https`].
    pub(crate) https: Option<SocketAddr>,
    pub(crate) metrics: SocketAddr,
    pub(crate) status: SocketAddr,
    /// The address of the Admin API, if there is one.
    pub(crate) admin: Option<SocketAddr>,
    /// The address of the control API, if there is one.
    pub(crate) control: Option<SocketAddr>,
    /// The address of the 3scale backend, if there is one.
    pub(crate) threescale: Option<SocketAddr>,
    /// The protocol that clients speak.
    protocol: Protocol,
    folder: TempDir,
    lines: Mutex<Receiver<String>>,
}

/// Options for starting a gateway.
pub(crate) struct Start {
    config: String,
    /// The file or folder of the rules in place of `config`.
    place: Option<PathBuf>,
    settings: String,
    workers: Option<usize>,
    own_listeners: bool,
    http2: bool,
    protocol: Protocol,
    open_files: Option<usize>,
    variables: Vec<(String, String)>,
    linked: bool,
    https: bool,
    stored: bool,
    data_dir: Option<PathBuf>,
    wrapper: Vec<String>,
    admin: bool,
    standalone: bool,
    control: bool,
    metrics: bool,
    arguments: Vec<String>,
    stdin: Stdio,
}

/// The key of the Admin API of gateways that tests start.
pub(crate) const ADMIN_KEY: &str = "the-admin-key-of-a-test";

/// Result of a change of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// The new configuration is in force.
    Applied,
    /// The old configuration is still in force.
    Rejected,
}

/// Maximum number of queued lines of standard output; a gateway writes fewer before `ready`.
const LINES: usize = 4096;

impl Start {
    /// A gateway with this configuration, one worker and no settings.
    pub(crate) fn new(config: impl Display) -> Self {
        let text = format!("{config}\n#END\n");
        Self {
            config: text,
            settings: String::new(),
            workers: Some(1),
            own_listeners: false,
            http2: false,
            protocol: Protocol::Http1,
            open_files: None,
            variables: Vec::new(),
            linked: false,
            https: false,
            stored: false,
            place: None,
            data_dir: None,
            wrapper: Vec::new(),
            admin: true,
            standalone: false,
            control: false,
            metrics: true,
            arguments: Vec::new(),
            stdin: Stdio::null(),
        }
    }

    /// A gateway with the rules in a file or folder that the test has made.
    pub(crate) fn at(place: &Path) -> Self {
        Self { place: Some(place.to_owned()), ..Self::new("") }
    }

    /// A gateway with exactly this text as its rules file.
    pub(crate) fn text(text: &str) -> Self {
        Self { config: text.to_owned(), ..Self::new("") }
    }

    /// A gateway with an empty store and the Admin API, whose key is [`ADMIN_KEY`] unless a variable says otherwise.
    pub(crate) fn stored() -> Self {
        Self { stored: true, ..Self::new("") }.variable("WEIR_ADMIN_KEY", ADMIN_KEY)
    }

    /// Puts the store into a folder that outlives the gateway.
    pub(crate) fn data_dir(mut self, folder: &Path) -> Self {
        self.data_dir = Some(folder.to_owned());
        self
    }

    /// Makes the gateway take over from the process at the other end of this channel.
    pub(crate) fn following(mut self, channel: OwnedFd) -> Self {
        self.stdin = channel.into();
        self.variable("WEIR_HANDOVER", "stdin")
    }

    /// Starts the gateway by another program, which takes it as its last arguments.
    pub(crate) fn wrapper(mut self, words: &[&str]) -> Self {
        self.wrapper = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// A gateway in API-driven standalone mode, with the Admin API as with [`stored`](Self::stored). The settings have to
    /// select that mode.
    pub(crate) fn standalone() -> Self {
        Self { standalone: true, ..Self::new("") }.variable("WEIR_ADMIN_KEY", ADMIN_KEY)
    }

    /// Disables the port for metrics.
    pub(crate) fn without_metrics(mut self) -> Self {
        self.metrics = false;
        self
    }

    /// Enables the control API.
    pub(crate) fn control(mut self) -> Self {
        self.control = true;
        self
    }

    /// Leaves the address of the Admin API to the settings.
    pub(crate) fn admin_by_settings(mut self) -> Self {
        self.admin = false;
        self
    }

    /// Adds an argument to the command line.
    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Sets the gateway's own settings, as the text of a `weir.yaml`. `FOLDER` stands for the gateway's own folder.
    pub(crate) fn settings(mut self, settings: impl Display) -> Self {
        self.settings = settings.to_string();
        self
    }

    pub(crate) fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Listens only at the addresses in the settings.
    pub(crate) fn own_listeners(mut self) -> Self {
        self.own_listeners = true;
        self
    }

    /// Takes HTTP/2 by prior knowledge, too, at the port without TLS.
    pub(crate) fn http2(mut self) -> Self {
        self.http2 = true;
        self
    }

    /// Lets [`Gateway::caller`] and [`Gateway::get`] speak this protocol.
    pub(crate) fn over(mut self, protocol: Protocol) -> Self {
        self.http2 |= protocol == Protocol::Http2;
        self.protocol = protocol;
        self
    }

    /// Listens for TLS as well.
    pub(crate) fn https(mut self) -> Self {
        self.https = true;
        self
    }

    /// Limits the number of file descriptors of the gateway.
    pub(crate) fn open_files(mut self, most: usize) -> Self {
        self.open_files = Some(most);
        self
    }

    /// Sets an environment variable.
    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Leaves the number of workers to the settings.
    pub(crate) fn workers_by_settings(mut self) -> Self {
        self.workers = None;
        self
    }

    /// Starts the program through the link `weir` in the gateway's own folder, which a test may point to another program.
    pub(crate) fn linked(mut self) -> Self {
        self.linked = true;
        self
    }

    pub(crate) fn start(self) -> Gateway {
        let folder = tempfile::tempdir().expect("create a folder");
        let config = folder.path().join("apisix.yaml");
        let settings = folder.path().join("weir.yaml");
        fs::write(&config, &self.config).expect("write the configuration");
        let mut text = self.settings.replace("FOLDER", &folder.path().display().to_string());
        if self.http2 {
            let https = if self.https { json!(["127.0.0.1:0"]) } else { json!([]) };
            let listen = json!({ "http": [{ "address": "127.0.0.1:0", "http2": true }], "https": https });
            match serde_json::from_str::<Value>(&text) {
                Ok(Value::Object(mut settings)) => {
                    settings.insert("listen".to_owned(), listen);
                    text = Value::Object(settings).to_string();
                }
                _ => text.push_str(&format!("\nlisten: {listen}\n")),
            }
        }
        fs::write(&settings, text).expect("write the settings");

        let stderr = File::create(folder.path().join("stderr")).expect("create a file");
        let mut program = process::binary();
        if self.linked {
            let link = folder.path().join("weir");
            std::os::unix::fs::symlink(&program, &link).expect("make a link");
            program = link;
        }
        let mut command = self.command(&program);
        command.args(["run".as_ref(), "--settings".as_ref(), settings.as_os_str()]);
        if self.stored {
            let data = self.data_dir.clone().unwrap_or_else(|| folder.path().join("data"));
            command.arg("--data-dir").arg(data);
            if self.admin {
                command.args(["--admin", "127.0.0.1:0"]);
            }
        } else if self.standalone {
            command.args(["--admin", "127.0.0.1:0"]);
        } else {
            command.arg(self.place.as_ref().unwrap_or(&config));
            // Counts of plans are written there.
            if !self.settings.contains("data_dir") {
                let data = self.data_dir.clone().unwrap_or_else(|| folder.path().join("data"));
                command.arg("--data-dir").arg(data);
            }
        }
        command.args(["--control", if self.control { "127.0.0.1:0" } else { "off" }]);
        command.args(&self.arguments);
        if !self.own_listeners && !self.http2 {
            command.args(["--listen-http", "127.0.0.1:0", "--listen-https"]);
            command.arg(if self.https { "127.0.0.1:0" } else { "off" });
        }
        command.args(["--metrics", if self.metrics { "127.0.0.1:0" } else { "off" }, "--status", "127.0.0.1:0"]);
        if let Some(workers) = self.workers {
            command.args(["--workers", &workers.to_string()]);
        }
        command.stdin(self.stdin).stdout(Stdio::piped()).stderr(stderr);
        let mut process = Process::spawn(&mut command);

        let stdout = process.child().stdout.take().expect("standard output is a pipe");
        let (sender, lines) = sync_channel(LINES);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The pipe has to be drained even after the test has stopped reading lines.
                let _ = sender.try_send(line);
            }
        });
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut gateway = Gateway {
            process,
            addr: nowhere,
            addrs: Vec::new(),
            https: None,
            metrics: nowhere,
            status: nowhere,
            admin: None,
            control: None,
            threescale: None,
            protocol: self.protocol,
            folder,
            lines: lines.into(),
        };
        gateway.await_ready();
        gateway
    }

    fn command(&self, program: &Path) -> Command {
        let mut words = self.wrapper.clone();
        if let Some(most) = self.open_files {
            words.extend(["sh", "-c", r#"ulimit -n "$0" && exec "$@""#].map(str::to_owned));
            words.push(most.to_string());
        }
        words.push(program.display().to_string());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        // Settings in the environment of the test run must not reach the gateway.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WEIR_")) {
            command.env_remove(name);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Gateway {
    /// Starts a gateway with this configuration and no settings.
    pub(crate) fn start(config: impl Display) -> Self {
        Start::new(config).start()
    }

    /// Starts a gateway with this configuration and these settings.
    pub(crate) fn with(config: impl Display, settings: impl Display) -> Self {
        Start::new(config).settings(settings).start()
    }

    fn await_ready(&mut self) {
        loop {
            let Ok(line) = self.lines.get_mut().expect("lines").recv_timeout(LIMIT) else {
                panic!("the gateway did not become ready; it has ended with {:?}", self.process.exited());
            };
            let address = |rest: &str| {
                let rest = rest.split(' ').next().unwrap_or_default();
                let authority =
                    rest.split_once("://").map_or(rest, |(_, rest)| rest).split('/').next().unwrap_or_default();
                authority.parse().unwrap_or_else(|_| panic!("no address in {line:?}"))
            };
            if line.starts_with("listening on ") && line.contains("://unix:") {
                // A Unix socket: the test knows the path.
            } else if let Some(rest) = line.strip_prefix("listening on https://") {
                self.https = Some(address(rest));
            } else if let Some(rest) = line.strip_prefix("listening on ") {
                self.addrs.push(address(rest));
                self.addr = self.addrs[0];
            } else if let Some(rest) = line.strip_prefix("metrics on ") {
                self.metrics = address(rest);
            } else if let Some(rest) = line.strip_prefix("status on ") {
                self.status = address(rest);
            } else if let Some(rest) = line.strip_prefix("control on ") {
                self.control = Some(address(rest));
            } else if let Some(rest) = line.strip_prefix("3scale backend on ") {
                self.threescale = Some(address(rest));
            } else if let Some(rest) = line.strip_prefix("admin on ") {
                self.admin = Some(address(rest));
            } else if line == "ready" {
                return;
            }
        }
    }

    /// A new connection.
    pub(crate) fn client(&self) -> RawClient {
        RawClient::connect(self.addr)
    }

    /// A connection to the gateway over the protocol that its clients speak ([`Start::over`]).
    pub(crate) fn caller(&self) -> AnyClient {
        AnyClient::connect(self.protocol, self.addr)
    }

    /// Sends a request to a host: its line without the version, field lines after it, and after an empty line a body. A Host that
    /// is among the fields takes precedence.
    pub(crate) fn send_to(&self, host: &str, request: &str) -> Response {
        let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
        let (line, fields) = head.split_once('\n').unwrap_or((head, ""));
        let mut text = format!("{line} HTTP/1.1\r\n");
        if !fields.to_ascii_lowercase().contains("host:") {
            text.push_str(&format!("Host: {host}\r\n"));
        }
        fields.lines().for_each(|field| text.push_str(&format!("{field}\r\n")));
        if request.contains("\n\n") {
            text.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        self.client().request(format!("{text}\r\n{body}"))
    }

    /// `GET path` on a connection of its own, over the protocol that its clients speak.
    pub(crate) fn get(&self, path: &str) -> Response {
        self.caller().get(path)
    }

    /// Sends a request to the Admin API, with a path below `/apisix/admin`. Returns the status and the JSON body.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
        let answer = self.send_to_admin(method, path, &format!("X-API-KEY: {ADMIN_KEY}\r\n"), body);
        (answer.status, answer.json())
    }

    /// As [`ask`](Self::ask), and checks that the request succeeds.
    pub(crate) fn must(&self, method: &str, path: &str, body: &str) -> serde_json::Value {
        let (status, answer) = self.ask(method, path, body);
        assert!(status < 300, "{method} {path} {body}: {status} {answer}");
        answer
    }

    /// Sends a request to the Admin API with these fields.
    pub(crate) fn send_to_admin(&self, method: &str, path: &str, fields: &str, body: &str) -> Response {
        let mut client = RawClient::connect(self.admin.expect("the gateway has an Admin API"));
        let length = body.len();
        client.request(format!(
            "{method} /apisix/admin/{path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{fields}\r\n{body}"
        ))
    }

    /// The next line on standard output.
    pub(crate) fn line(&self) -> String {
        self.lines.lock().expect("lines").recv_timeout(LIMIT).expect("a line on standard output")
    }

    /// The text on standard error so far.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.file("stderr")).unwrap_or_default()
    }

    /// A file in the gateway's own folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The configuration file.
    pub(crate) fn config(&self) -> PathBuf {
        self.file("apisix.yaml")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for the gateway's end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// Replaces the configuration atomically, and waits until it is in force or refused.
    pub(crate) fn reload(&self, config: impl Display) -> Reload {
        let (before, reports) = (self.decisions(), self.reports());
        replace(&self.config(), &format!("{config}\n#END\n"));
        let after = wait_until("the configuration to be taken or refused", LIMIT, || {
            let now = self.decisions();
            (now != before).then_some(now)
        });
        // The log is written by a thread of its own; other messages about the change precede the one counted here. The
        // log may be written elsewhere, so the wait has a limit.
        let began = Instant::now();
        wait_until("the log", LIMIT, || (self.reports() > reports || began.elapsed() > LOG_LIMIT).then_some(()));
        if after.1 > before.1 { Reload::Rejected } else { Reload::Applied }
    }

    /// Waits until the log contains this text, and returns the whole log, which is written by a thread of its own.
    pub(crate) fn logged(&self, text: &str) -> String {
        wait_until(&format!("{text:?} in the log"), LIMIT, || {
            let log = self.stderr();
            log.contains(text).then_some(log)
        })
    }

    /// Number of reports of applied or refused changes in the log.
    fn reports(&self) -> usize {
        let log = self.stderr();
        log.matches("the live configuration stays in force").count()
            + log.matches("a change of the rules is live").count()
    }

    /// Revision of the configuration, and number of refused ones.
    fn decisions(&self) -> (u64, u64) {
        let page = self.metrics_page();
        let value = |name| page.value(name, &[]).unwrap_or_else(|| panic!("no metric {name}")) as u64;
        (value("weir_config_revision"), value("weir_config_rejected_total"))
    }

    /// The metrics now.
    pub(crate) fn metrics_page(&self) -> Page {
        let mut client = RawClient::connect(self.metrics);
        let response =
            client.request("GET /apisix/prometheus/metrics HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n");
        assert_eq!(response.status, 200, "{response:?}");
        Page(response.text())
    }

    /// The sum of all series of a metric whose labels include these.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.metrics_page().value(name, labels).unwrap_or(0.0)
    }

    /// The ids of the gateway's running processes: after an upgrade there is more than one.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let folder = self.folder.path().display().to_string();
        let ids = fs::read_dir("/proc").expect("read /proc").filter_map(|entry| {
            let id: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let command = fs::read(format!("/proc/{id}/cmdline")).ok()?;
            String::from_utf8_lossy(&command).contains(&folder).then_some(id)
        });
        ids.collect()
    }

    /// Waits until a metric has a value.
    pub(crate) fn await_metric(&self, name: &str, labels: &[(&str, &str)], wanted: f64) {
        let mut last = f64::NAN;
        wait_until(&format!("{name}{labels:?} to become {wanted}"), LIMIT, || {
            last = self.metric(name, labels);
            ((last - wanted).abs() < 1e-9).then_some(())
        });
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- standard error of the gateway at {} ---\n{}---", self.addr, self.stderr());
            for id in self.processes() {
                eprintln!("process {id}:\n{}", process::threads(id));
            }
        } else {
            // No test may make a task of the gateway panic.
            assert!(!self.stderr().contains("panic: "), "the gateway panicked:\n{}", self.stderr());
        }
    }
}

/// A page of metrics.
pub(crate) struct Page(pub(crate) String);

impl Page {
    /// The sum of all series of this name whose labels include `labels`; `None` if there is no such series.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let series = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (labelled, value) = rest.rsplit_once(' ')?;
            let inside = match labelled {
                "" => "",
                _ => labelled.strip_prefix('{')?.strip_suffix('}')?,
            };
            let has = |(label, value): &(&str, &str)| {
                let wanted = format!("{label}=\"{value}\"");
                inside.starts_with(&wanted) || inside.contains(&format!(",{wanted}"))
            };
            labels.iter().all(has).then(|| value.parse::<f64>().unwrap_or_else(|_| panic!("no number in {line:?}")))
        });
        series.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }
}

/// Replaces a file atomically, as editors do.
pub(crate) fn replace(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    fs::write(&beside, text).expect("write a file");
    fs::rename(&beside, file).expect("rename a file");
}

/// Runs the binary to its end.
pub(crate) fn weir(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(process::binary()).args(arguments).output().expect("run weir");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}
