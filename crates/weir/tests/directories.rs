//! Directories that know passwords: `ldap-auth` with the server of OpenLDAP, and with peers that lie or are slow.

use std::fs;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::harness::{
    Authority, Certificate, Connection, Gateway, Kind, LIMIT, Origin, Process, Reload, free_port, program, wait_until,
};

/// OpenLDAP's server with some users.
pub(crate) struct Slapd {
    /// For LDAP, and for LDAP over TLS.
    pub(crate) port: u16,
    pub(crate) tls_port: u16,
    folder: tempfile::TempDir,
    pub(crate) process: Option<Process>,
}

const USERS: &str = "\
dn: dc=test
objectClass: dcObject
objectClass: organization
dc: test
o: test

dn: ou=users,dc=test
objectClass: organizationalUnit
ou: users

dn: cn=jack,ou=users,dc=test
objectClass: person
cn: jack
sn: Jack
userPassword: pass:word

dn: cn=Doe\\, Jill,ou=users,dc=test
objectClass: person
cn: Doe, Jill
sn: Doe
userPassword: ségret

dn: sn=joe,ou=users,dc=test
objectClass: person
cn: joe
sn: joe
userPassword: joes

dn: cn=nobody,ou=users,dc=test
objectClass: person
cn: nobody
sn: nobody
userPassword: nobodys
";

impl Slapd {
    pub(crate) fn start(certificate: Option<&Certificate>) -> Self {
        let (port, tls_port, folder) = (free_port(), free_port(), tempfile::tempdir().expect("a folder"));
        let at = |name: &str| folder.path().join(name).display().to_string();
        fs::create_dir(folder.path().join("data")).expect("a folder");
        let tls = certificate.map_or_else(String::new, |own| {
            format!(
                "TLSCertificateFile {}\nTLSCertificateKeyFile {}\n",
                own.cert_file.display(),
                own.key_file.display()
            )
        });
        let conf = format!(
            "include /etc/ldap/schema/core.schema\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\n{tls}\
             database mdb\nsuffix dc=test\nmaxsize 10485760\ndirectory {}\n",
            at("data")
        );
        fs::write(folder.path().join("conf"), conf).expect("write a file");
        fs::write(folder.path().join("users"), USERS).expect("write a file");
        let mut fill = Command::new(program("slapadd"));
        let output = fill.args(["-f", &at("conf"), "-l", &at("users")]).stdin(Stdio::null()).output().expect("slapadd");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut server = Self { port, tls_port, folder, process: None };
        server.run(certificate.is_some());
        server
    }

    pub(crate) fn run(&mut self, with_tls: bool) {
        let tls = if with_tls { format!(" ldaps://localhost:{}/", self.tls_port) } else { String::new() };
        let urls = format!("ldap://127.0.0.1:{}/{tls}", self.port);
        let mut command = Command::new(program("slapd"));
        command.args(["-d", "0", "-h", &urls, "-f"]).arg(self.folder.path().join("conf"));
        self.process = Some(Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())));
        let ports = if with_tls { vec![self.port, self.tls_port] } else { vec![self.port] };
        for port in ports {
            wait_until("slapd to listen", LIMIT, || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        }
    }
}

fn rules(origin: &Origin, conf: &Value) -> Value {
    let dn = |dn: &str| json!({ "ldap-auth": { "user_dn": dn } });
    json!({
        "routes": [{ "id": "r", "uri": "/*", "upstream": { "nodes": { (origin.node()): 1 } }, "plugins": { "ldap-auth": conf } }],
        "consumers": [
            { "username": "jack", "plugins": dn("cn=jack,ou=users,dc=test") },
            { "username": "jill", "plugins": dn("cn=Doe\\, Jill,ou=users,dc=test") },
            { "username": "joe", "plugins": dn("sn=joe,ou=users,dc=test") },
        ],
    })
}

fn conf(port: u16, more: Value) -> Value {
    let mut conf = json!({ "base_dn": "ou=users,dc=test", "ldap_uri": format!("127.0.0.1:{port}") });
    crate::loggers::extend(&mut conf, more);
    conf
}

/// The status for a name and a password.
fn status(gateway: &Gateway, pair: &str) -> u16 {
    let credentials = STANDARD.encode(pair);
    let request = format!("GET / HTTP/1.1\r\nHost: a.test\r\nAuthorization: Basic {credentials}\r\n\r\n");
    gateway.client().request(request).status
}

#[test]
fn a_directory_says_who_calls() {
    let (origin, mut directory) = (Origin::hello(), Slapd::start(None));
    let gateway = Gateway::start(rules(&origin, &conf(directory.port, json!({}))));
    for (pair, consumer) in [
        ("jack:wrong", None),
        ("jack:pass:word", Some("jack")),
        ("JACK:pass:word", None),
        ("Doe, Jill:ségret", Some("jill")),
        // Known to the directory, and no consumer; and parts of names that are no names.
        ("nobody:nobodys", None),
        ("jack,ou=users:pass:word", None),
        ("*:pass:word", None),
        ("jack:", None),
        ("joe:joes", None),
    ] {
        let before = origin.requests().len();
        assert_eq!(status(&gateway, pair), if consumer.is_some() { 200 } else { 401 }, "{pair}");
        let told = (origin.requests().len() > before).then(|| origin.last());
        let name = told.as_ref().map(|told| told.field("x-consumer-username").expect("a name"));
        assert_eq!(name, consumer, "{pair}");
        assert!(told.is_none_or(|told| told.field("authorization").is_some()), "{pair}");
    }
    // With another attribute, and below another base.
    let more = json!({ "uid": "sn", "hide_credentials": true });
    assert_eq!(gateway.reload(rules(&origin, &conf(directory.port, more))), Reload::Applied);
    assert_eq!(status(&gateway, "joe:joes"), 200);
    assert_eq!((origin.last().field("x-consumer-username"), origin.last().field("authorization")), (Some("joe"), None));
    let more = json!({ "base_dn": "dc=test" });
    assert_eq!(gateway.reload(rules(&origin, &conf(directory.port, more))), Reload::Applied);
    assert_eq!(status(&gateway, "jack:pass:word"), 401);
    // Away, and back again: connections from before are of no use.
    assert_eq!(gateway.reload(rules(&origin, &conf(directory.port, json!({})))), Reload::Applied);
    assert_eq!(status(&gateway, "jack:pass:word"), 200);
    directory.process = None;
    assert_eq!(status(&gateway, "jack:pass:word"), 503);
    gateway.logged("a directory cannot be reached");
    directory.run(false);
    assert_eq!(status(&gateway, "jack:pass:word"), 200);
}

#[test]
fn a_directory_with_tls_is_verified() {
    let (origin, authority) = (Origin::hello(), Authority::new());
    let directory = Slapd::start(Some(&authority.certificate(Kind::Rsa, &["localhost"])));
    let at = |host: &str, more: Value| {
        let mut conf = conf(0, json!({ "ldap_uri": format!("{host}:{}", directory.tls_port), "use_tls": true }));
        crate::loggers::extend(&mut conf, more);
        rules(&origin, &conf)
    };
    let verified = || json!({ "tls_verify": true });
    let trusted = json!({ "tls": { "trusted_certificate": authority.file().display().to_string() } });
    let gateway = Gateway::with(at("localhost", verified()), &trusted);
    for (pair, expected) in [("jack:pass:word", 200), ("jack:wrong", 401), ("jack:pass:word", 200)] {
        assert_eq!(status(&gateway, pair), expected, "{pair}");
    }
    // Another name, no TLS to a server that speaks it, and an authority that nobody trusts.
    for (rules, expected) in [
        (at("127.0.0.1", verified()), 503),
        (at("127.0.0.1", json!({})), 200),
        (at("localhost", json!({ "use_tls": false })), 503),
    ] {
        assert_eq!(gateway.reload(&rules), Reload::Applied);
        assert_eq!(status(&gateway, "jack:pass:word"), expected, "{rules}");
    }
    let gateway = Gateway::start(at("localhost", verified()));
    assert_eq!(status(&gateway, "jack:pass:word"), 503);
}

#[test]
fn a_directory_that_lies_or_is_slow_lets_nobody_pass() {
    let origin = Origin::hello();
    let answering = |pieces: &'static [&'static [u8]]| {
        Origin::scripted(move |connection: &mut Connection| {
            if connection.some().is_ok() {
                pieces.iter().for_each(|piece| {
                    connection.send(piece);
                });
                connection.await_close();
            }
        })
    };
    let port = |peer: &Origin| peer.addr().port();
    let good = b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x00\x04\x00\x04\x00";
    let (first, second) = (&good[..5], &good[5..]);
    let cases: [(&str, Origin, u16); 7] = [
        ("yes, in two pieces", answering(Box::leak(Box::new([first, second]))), 200),
        ("busy", answering(&[b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x33\x04\x00\x04\x00"]), 503),
        ("an answer to something else", answering(&[b"\x30\x0c\x02\x01\x07\x61\x07\x0a\x01\x00\x04\x00\x04\x00"]), 503),
        ("another protocol", answering(&[b"HTTP/1.1 200 OK\r\n\r\n"]), 503),
        (
            "no end of a message",
            answering(Box::leak(Box::new([&[0x30, 0x84, 0x7f, 0xff, 0xff, 0xff][..], &[0; 100_000][..]]))),
            503,
        ),
        ("closed at once", Origin::scripted(|_| {}), 503),
        ("silence", Origin::scripted(Connection::await_close), 503),
    ];
    crate::harness::each(
        &cases,
        |(name, ..)| (*name).to_owned(),
        |(_, peer, expected)| {
            let gateway = Gateway::start(rules(&origin, &conf(port(peer), json!({}))));
            assert_eq!(status(&gateway, "jack:pass:word"), *expected);
        },
    );
    assert_eq!(origin.requests().len(), 1);
}
