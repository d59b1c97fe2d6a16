//! Kong's `acme` with a real authority, Let's Encrypt's pebble, which asks the gateway for its proofs.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::dns::Dnsmasq;
use crate::harness::{
    Authority, Gateway, Kind, LIMIT, Origin, Process, Redis, Reload, Start, free_port, made_with_go, wait_until,
};
use crate::kong_admin;
use crate::tls::{curl, https, s_client};

/// A running authority.
struct Pebble {
    _process: Process,
    folder: TempDir,
    _names: Dnsmasq,
}

/// The ports of an authority that does not run yet, and the certificate by which it is known.
struct Place {
    directory: u16,
    management: u16,
    authority: Authority,
}

impl Place {
    fn new() -> Self {
        Self { directory: free_port(), management: free_port(), authority: Authority::new() }
    }

    /// A document with the plugin for some names.
    fn document(&self, origin: &Origin, conf: Value) -> Value {
        let mut config = json!({
            "account_email": "admin@shop.test",
            "api_uri": format!("https://localhost:{}/dir", self.directory),
            "domains": ["shop.test", "*.wild.test"],
            "cert_type": "ecc",
        });
        crate::loggers::extend(&mut config, conf);
        json!({
            "_format_version": "3.0",
            "services": [{ "name": "s", "url": format!("http://{}", origin.node()), "routes": [{ "name": "r", "paths": ["/"] }] }],
            "plugins": [{ "name": "acme", "config": config }],
        })
    }

    /// A gateway that trusts it.
    fn gateway(&self, document: &Value) -> Gateway {
        Start::new(document)
            .https()
            .settings(json!({ "tls": { "trusted_certificate": self.authority.file() } }))
            .start()
    }

    /// Starts the authority, whose certificates hold for so many seconds. It asks the gateway for proofs.
    fn start(&self, pebble: &std::path::Path, gateway: &Gateway, seconds: u64) -> Pebble {
        let names = Dnsmasq::with("", &["--address=/test/127.0.0.1"]);
        let folder = tempfile::tempdir().expect("create a folder");
        let own = self.authority.certificate(Kind::P256, &["localhost"]);
        let config = json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{}", self.directory),
            "managementListenAddress": format!("127.0.0.1:{}", self.management),
            "certificate": own.cert_file,
            "privateKey": own.key_file,
            "httpPort": gateway.addr.port(),
            "tlsPort": 1,
            "certificateValidityPeriod": seconds,
        } });
        let file = folder.path().join("config.json");
        fs::write(&file, config.to_string()).expect("write the configuration");
        let log = fs::File::create(folder.path().join("log")).expect("create a file");
        let mut command = Command::new(pebble);
        command.args(["-dnsserver", &format!("127.0.0.1:{}", names.port), "-config"]).arg(&file);
        command.env("PEBBLE_VA_NOSLEEP", "1").stdout(log).stderr(Stdio::null());
        let running = Pebble { _process: Process::spawn(&mut command), folder, _names: names };
        wait_until("the authority to answer", LIMIT, || {
            let root = Command::new("curl")
                .args(["-sk", "-o"])
                .arg(running.root())
                .arg("-f")
                .arg(format!("https://localhost:{}/roots/0", self.management))
                .output()
                .expect("run curl");
            root.status.success().then_some(())
        });
        running
    }
}

impl Pebble {
    /// The file with the root of its certificates.
    fn root(&self) -> std::path::PathBuf {
        self.folder.path().join("root.pem")
    }

    /// Its log.
    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("read the log")
    }

    /// Body of a request over TLS whose certificate the authority has issued for the name.
    fn ask(&self, gateway: &Gateway, host: &str) -> Option<String> {
        let root = self.root();
        let seen = curl(gateway, None, (host, "/"), &["--no-insecure", "--cacert", root.to_str().expect("a path")]);
        seen.good.then_some(seen.out)
    }

    fn await_certificate(&self, gateway: &Gateway, host: &str) {
        let body = wait_until(&format!("a certificate for {host}"), LIMIT, || self.ask(gateway, host));
        assert_eq!(body, "hello");
    }
}

/// Serial number of the certificate that a client is shown.
fn serial(gateway: &Gateway, name: &str) -> String {
    let shown = s_client(https(gateway), &["-servername", name]).out;
    let mut openssl = Command::new("openssl");
    openssl.args(["x509", "-noout", "-serial"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = openssl.spawn().expect("run openssl");
    std::io::Write::write_all(&mut child.stdin.take().expect("its input"), shown.as_bytes()).expect("write");
    String::from_utf8(child.wait_with_output().expect("its output").stdout).expect("text")
}

#[test]
fn a_name_has_a_certificate_once_it_was_asked_for() {
    let Some(pebble) = made_with_go("pebble") else { return };
    let (place, origin) = (Place::new(), Origin::hello());
    let document = place.document(&origin, json!({}));
    let gateway = place.gateway(&document);
    let authority = place.start(&pebble, &gateway, 86_400);
    assert_eq!(authority.ask(&gateway, "shop.test"), None);
    authority.await_certificate(&gateway, "shop.test");
    authority.await_certificate(&gateway, "a.wild.test");
    // The same account has ordered both, and one certificate each.
    let log = authority.log();
    assert_eq!(log.matches("Issued certificate serial").count(), 2, "{log}");
    // Names that are not listed are shown what is there without the plugin, and nothing is ordered for them.
    assert_eq!(authority.ask(&gateway, "other.test"), None);
    // A change of other things keeps them; without the plugin they are shown no more.
    let held = serial(&gateway, "shop.test");
    let mut other = document.clone();
    other["services"][0]["retries"] = json!(1);
    assert_eq!(gateway.reload(&other), Reload::Applied);
    assert_eq!(serial(&gateway, "SHOP.test"), held);
    other["plugins"] = json!([]);
    assert_eq!(gateway.reload(&other), Reload::Applied);
    wait_until("the certificate to be gone", LIMIT, || (serial(&gateway, "shop.test") != held).then_some(()));
    assert_eq!(gateway.reload(&document), Reload::Applied);
    authority.await_certificate(&gateway, "shop.test");
    assert_eq!(serial(&gateway, "shop.test"), held);
}

#[test]
fn a_certificate_is_renewed_before_its_end() {
    let Some(pebble) = made_with_go("pebble") else { return };
    let (place, origin) = (Place::new(), Origin::hello());
    let gateway = place.gateway(&place.document(&origin, json!({ "cert_type": "rsa", "rsa_key_size": 2048 })));
    // Two thirds of that pass before the renewal; the rest is time enough on a machine that does other things as well.
    let authority = place.start(&pebble, &gateway, 24);
    let _ = authority.ask(&gateway, "shop.test");
    authority.await_certificate(&gateway, "shop.test");
    let first = serial(&gateway, "shop.test");
    wait_until("another certificate", Duration::from_secs(60), || {
        // No moment without a certificate.
        assert_eq!(authority.ask(&gateway, "shop.test").as_deref(), Some("hello"));
        (serial(&gateway, "shop.test") != first).then_some(())
    });
}

#[test]
fn gateways_share_certificates_and_proofs_by_redis() {
    let Some(pebble) = made_with_go("pebble") else { return };
    let (place, origin, redis) = (Place::new(), Origin::hello(), Redis::start());
    let server = json!({ "host": "127.0.0.1", "port": redis.port, "extra_options": { "namespace": "edge:" } });
    let document = place.document(&origin, json!({ "storage": "redis", "storage_config": { "redis": server } }));
    let gateways = [place.gateway(&document), place.gateway(&document)];
    // The authority asks the gateway that has not ordered.
    let authority = place.start(&pebble, &gateways[1], 86_400);
    let _ = authority.ask(&gateways[0], "shop.test");
    authority.await_certificate(&gateways[0], "shop.test");
    authority.await_certificate(&gateways[1], "shop.test");
    assert_eq!(serial(&gateways[0], "shop.test"), serial(&gateways[1], "shop.test"));
    let log = authority.log();
    assert_eq!(log.matches("Issued certificate serial").count(), 1, "{log}");
    // As Kong's plugin keeps it.
    let held: Value = serde_json::from_str(&redis.cli(&["GET", "edge:kong_acme:cert_key:shop.test"])).expect("JSON");
    assert!(held["cert"].as_str().is_some_and(|cert| cert.starts_with("-----BEGIN CERTIFICATE-----")), "{held}");
    assert!(held["key"].as_str().is_some_and(|key| key.starts_with("-----BEGIN PRIVATE KEY-----")), "{held}");
    // A gateway that starts later orders nothing.
    let third = place.gateway(&document);
    let _ = authority.ask(&third, "shop.test");
    authority.await_certificate(&third, "shop.test");
    assert_eq!(authority.log().matches("Issued certificate serial").count(), 1);
}

#[test]
fn a_store_keeps_certificates_and_orders_them_ahead() {
    let Some(pebble) = made_with_go("pebble") else { return };
    let (place, origin, data) = (Place::new(), Origin::hello(), tempfile::tempdir().expect("create a folder"));
    let trusted = json!({ "tls": { "trusted_certificate": place.authority.file() } });
    let start = || {
        let start = Start::stored().argument("--family").argument("kong").data_dir(data.path());
        start.https().settings(&trusted).start()
    };
    let kong = |gateway: &Gateway, path: &str, body: Value| kong_admin::ask(gateway, "POST", path, body);
    let mut gateway = start();
    assert_eq!(kong(&gateway, "/acme", json!({ "host": "shop.test" })).0, 404);
    let document = place.document(&origin, json!({ "storage": "kong" }));
    let service = json!({ "name": "s", "url": format!("http://{}", origin.node()) });
    let plugin = &document["plugins"][0];
    for (path, body) in
        [("/services", &service), ("/services/s/routes", &json!({ "paths": ["/"] })), ("/plugins", plugin)]
    {
        let (status, answer) = kong(&gateway, path, body.clone());
        assert_eq!(status, 201, "{path}: {answer}");
    }
    let authority = place.start(&pebble, &gateway, 86_400);
    let asked = kong(&gateway, "/acme", json!({ "host": "shop.test" }));
    assert_eq!(asked, (201, json!({ "message": "certificate for host shop.test is created" })));
    authority.await_certificate(&gateway, "shop.test");
    for (body, message) in [
        (json!({}), "host must be provided and containing a single domain"),
        (json!({ "host": "shop.test:80" }), "port is not allowed in host"),
        (json!({ "host": "other.test" }), "the plugin has no domain other.test"),
    ] {
        assert_eq!(kong(&gateway, "/acme", body), (400, json!({ "message": message })));
    }
    let held = serial(&gateway, "shop.test");
    gateway.signal(Signal::TERM);
    gateway.wait();
    // The next process shows the same certificate, without the authority.
    drop(authority);
    let gateway = start();
    wait_until("the certificate", LIMIT, || (serial(&gateway, "shop.test") == held).then_some(()));
}

#[test]
fn without_an_authority_everything_else_goes_on() {
    let (place, origin) = (Place::new(), Origin::hello());
    let gateway = place.gateway(&place.document(&origin, json!({})));
    for _ in 0..3 {
        let seen = curl(&gateway, None, ("shop.test", "/"), &[]);
        assert_eq!(seen.out, "hello", "{}", seen.err);
    }
    gateway.logged("no certificate: ");
    // Another handshake orders nothing for a while.
    assert_eq!(curl(&gateway, None, ("shop.test", "/"), &[]).out, "hello");
    assert_eq!(gateway.stderr().matches("no certificate: ").count(), 1);
}

#[test]
fn a_lying_authority_is_believed_nothing() {
    let (place, origin) = (Place::new(), Origin::hello());
    // Whatever is asked for, the answer is a page; over HTTP, which Kong takes as well.
    let liar = Origin::hello();
    let conf = json!({ "api_uri": format!("http://{}/dir", liar.node()) });
    let gateway = place.gateway(&place.document(&origin, conf));
    assert_eq!(curl(&gateway, None, ("shop.test", "/"), &[]).out, "hello");
    let line = gateway.logged("no certificate: ");
    assert!(line.contains("shop.test"), "{line}");
    assert_eq!(curl(&gateway, None, ("shop.test", "/"), &[]).out, "hello");
}

#[test]
fn proofs_are_asked_for_over_http() {
    let (place, origin) = (Place::new(), Origin::hello());
    let gateway = place.gateway(&place.document(&origin, json!({})));
    let ask = |host: &str, path: &str| {
        let response = gateway.send_to(host, &format!("GET {path}"));
        (response.status, response.text())
    };
    let challenge = "/.well-known/acme-challenge/";
    for (host, path, seen) in [
        ("shop.test", format!("{challenge}x"), (404, "Not found\n")),
        ("a.wild.test", format!("{challenge}token"), (404, "Not found\n")),
        // Questions for other names are for the upstream.
        ("other.test", format!("{challenge}x"), (200, "hello")),
        ("shop.test", challenge.to_owned(), (200, "hello")),
        ("shop.test", "/".to_owned(), (200, "hello")),
    ] {
        assert_eq!(ask(host, &path), (seen.0, seen.1.to_owned()), "{host}{path}");
    }
    // An authority asks without TLS alone.
    assert_eq!(curl(&gateway, None, ("shop.test", &format!("{challenge}x")), &[]).out, "hello");
}
