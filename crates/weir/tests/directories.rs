//! Directories that know passwords: `ldap-auth` with the server of OpenLDAP, and with peers that lie or are slow.

use std::fs;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::harness::{
    Authority, Certificate, Connection, Gateway, Kind, LIMIT, Origin, Process, Relay, Reload, free_port, program,
    wait_until,
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

/// The same routes and consumers with `ldap-auth-advanced`.
fn searching(origin: &Origin, port: u16, more: Value) -> Value {
    let mut conf = json!({ "base_dn": "dc=test", "ldap_uri": format!("127.0.0.1:{port}"), "header_type": "basic" });
    crate::loggers::extend(&mut conf, more);
    let text = rules(origin, &conf).to_string().replace("\"ldap-auth\"", "\"ldap-auth-advanced\"");
    let mut rules: Value = serde_json::from_str(&text).expect("JSON");
    // As this directory writes it.
    rules["consumers"][1]["plugins"]["ldap-auth-advanced"]["user_dn"] = json!("cn=Doe\\2C Jill,ou=users,dc=test");
    rules
}

#[test]
fn a_directory_finds_who_calls() {
    let (origin, directory) = (Origin::hello(), Slapd::start(None));
    let with = |more: Value| searching(&origin, directory.port, more);
    let gateway = Gateway::start(with(json!({})));
    let told = |expected: Option<&str>, pair: &str| {
        let before = origin.requests().len();
        assert_eq!(status(&gateway, pair), if expected.is_some() { 200 } else { 401 }, "{pair}");
        let seen = origin.requests().len() > before;
        assert_eq!(seen, expected.is_some(), "{pair}");
        if let Some(consumer) = expected {
            assert_eq!(origin.last().fields.all("x-consumer-username").join(","), consumer, "{pair}");
        }
    };
    for (pair, consumer) in [
        ("jack:pass:word", Some("jack")),
        ("Doe, Jill:ségret", Some("jill")),
        ("joe:joes", Some("joe")),
        // The directory does not care for case, and the entry's own name is the consumer's.
        ("JACK:pass:word", Some("jack")),
        ("jack:wrong", None),
        ("nobody:nobodys", None),
        ("none:pass", None),
        // Signs of filters and of distinguished names are part of the name.
        ("*:pass:word", None),
        ("jack)(cn=*:pass:word", None),
        ("jack,ou=users:pass:word", None),
    ] {
        told(consumer, pair);
    }
    for text in ["there is no such user", "the password is not the user's", "no consumer has the user's"] {
        gateway.logged(text);
    }
    // Another attribute, which several entries have: more than the server may give, and not more.
    for size in [2, 100] {
        assert_eq!(gateway.reload(with(json!({ "attribute": "objectClass", "size_limit": size }))), Reload::Applied);
        told(None, "person:pass:word");
    }
    gateway.logged("several users have this name");
    assert_eq!(gateway.reload(with(json!({ "attribute": "sn" }))), Reload::Applied);
    told(Some("jack"), "Jack:pass:word");
    // An account that searches.
    let account = |password: &str| json!({ "bind_dn": "cn=nobody,ou=users,dc=test", "ldap_password": password });
    assert_eq!(gateway.reload(with(account("nobodys"))), Reload::Applied);
    for pair in ["jack:pass:word", "Doe, Jill:ségret"] {
        told(Some(if pair.starts_with("jack") { "jack" } else { "jill" }), pair);
    }
    told(None, "jack:nobodys");
    assert_eq!(gateway.reload(with(account("other"))), Reload::Applied);
    assert_eq!(status(&gateway, "jack:pass:word"), 500);
    gateway.logged("does not take the account");
    // Below a part of the tree, and below one that is not there.
    assert_eq!(gateway.reload(with(json!({ "base_dn": "cn=jack,ou=users,dc=test" }))), Reload::Applied);
    told(Some("jack"), "jack:pass:word");
    told(None, "joe:joes");
    assert_eq!(gateway.reload(with(json!({ "base_dn": "dc=none,dc=test" }))), Reload::Applied);
    assert_eq!(status(&gateway, "jack:pass:word"), 500);
    // Users that are no consumers, whatever they say of themselves.
    assert_eq!(gateway.reload(with(json!({ "consumer_required": false, "header_type": "ldap" }))), Reload::Applied);
    let own = "X-Consumer-Username: jack\r\nX-Authenticated-Groups: admins\r\n";
    let request = |fields: String| {
        gateway.client().request(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{own}{fields}\r\n")).status
    };
    let (nobody, wrong) = (STANDARD.encode("nobody:nobodys"), STANDARD.encode("nobody:x"));
    for (fields, expected) in [
        (format!("Authorization: LdaP {nobody}\r\n"), 200),
        (format!("Authorization: Basic {nobody}\r\n"), 401),
        (format!("Proxy-Authorization: ldap {nobody}\r\nAuthorization: ldap {wrong}\r\n"), 200),
        (format!("Proxy-Authorization: ldap {wrong}\r\nAuthorization: ldap {nobody}\r\n"), 401),
        (format!("Proxy-Authorization: Basic {wrong}\r\nAuthorization: ldap {nobody}\r\n"), 200),
    ] {
        assert_eq!(request(fields.clone()), expected, "{fields}");
    }
    let seen = origin.last();
    assert_eq!((seen.fields.all("x-consumer-username").len(), seen.fields.all("x-authenticated-groups").len()), (0, 0));
}

#[test]
fn a_directory_that_searches_is_verified() {
    let authority = Authority::new();
    let certificate = authority.certificate(Kind::P256, &["localhost"]);
    let (origin, directory) = (Origin::hello(), Slapd::start(Some(&certificate)));
    let trusted = json!({ "tls": { "trusted_certificate": authority.file().display().to_string() } });
    let with = |host: &str, port: u16, more: Value| {
        let mut rules = searching(&origin, port, more);
        rules["routes"][0]["plugins"]["ldap-auth-advanced"]["ldap_uri"] = json!(format!("{host}:{port}"));
        rules
    };
    let (tls, start) = (json!({ "use_ldaps": true }), json!({ "use_starttls": true }));
    let gateway = Gateway::with(with("localhost", directory.tls_port, tls.clone()), &trusted);
    assert_eq!(status(&gateway, "jack:pass:word"), 200);
    let unverified = |conf: &Value| {
        let mut conf = conf.clone();
        conf["ssl_verify"] = json!(false);
        conf
    };
    // The plain port has TLS where that is asked for, for the address alone where nobody looks.
    for (host, port, conf, expected) in [
        ("127.0.0.1", directory.port, start.clone(), 500),
        ("127.0.0.1", directory.port, unverified(&start), 200),
        ("127.0.0.1", directory.port, tls.clone(), 500),
        ("localhost", directory.tls_port, unverified(&tls), 200),
        ("localhost", directory.tls_port, start.clone(), 500),
    ] {
        assert_eq!(gateway.reload(with(host, port, conf.clone())), Reload::Applied);
        assert_eq!(status(&gateway, "jack:pass:word"), expected, "{host} {port} {conf}");
    }
}

#[test]
fn a_directory_that_searches_badly_lets_nobody_pass() {
    let origin = Origin::hello();
    let good = b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x00\x04\x00\x04\x00";
    let entry = b"\x30\x10\x02\x01\x01\x64\x0b\x04\x07cn=jack\x30\x00";
    let done = |code: u8| [&b"\x30\x0c\x02\x01\x01\x65\x07\x0a\x01"[..], &[code], b"\x04\x00\x04\x00"].concat();
    let cases: [(&str, Vec<u8>, u16); 5] = [
        ("an end without an entry", done(0), 401),
        ("a server that is busy", done(51), 500),
        ("what is no answer", b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), 500),
        ("an entry without an end", entry.to_vec(), 500),
        ("one entry, and a bind that nobody answers", [&entry[..], &done(0)].concat(), 500),
    ];
    for (name, answer, expected) in cases {
        let directory = Origin::scripted(move |connection: &mut Connection| {
            // The account, the search, and nothing more.
            for answer in [&good[..], &answer] {
                if connection.some().is_err() || !connection.send(answer) {
                    return;
                }
            }
            while connection.some().is_ok() {}
        });
        let conf = json!({ "timeout": 500, "time_limit": 0 });
        let gateway = Gateway::start(searching(&origin, directory.addr().port(), conf));
        assert_eq!(status(&gateway, "jack:pass:word"), expected, "{name}");
        assert_eq!(origin.requests().len(), 0, "{name}");
    }
    // Connections are kept, as many and for as long as the configuration says.
    let slapd = Slapd::start(None);
    let relay = Relay::to(slapd.port);
    for (more, connections) in [
        (json!({}), 1),
        (json!({ "keepalive_pool_size": 1, "keepalive_timeout": 60_000, "keepalive_pool_name": "p" }), 1),
        (json!({ "keepalive": false }), 3),
    ] {
        let before = relay.connections();
        let gateway = Gateway::start(searching(&origin, relay.addr.port(), more.clone()));
        for _ in 0..3 {
            assert_eq!(status(&gateway, "jack:pass:word"), 200);
        }
        assert_eq!(relay.connections() - before, connections, "{more}");
    }
}
