//! Kong's `ldap-auth` with the server of OpenLDAP.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::directories::Slapd;
use crate::harness::{Authority, Gateway, Kind, Origin, Reload, Response, Start};

fn document(origin: &Origin, port: u16, conf: Value) -> Value {
    let mut config =
        json!({ "ldap_host": "127.0.0.1", "ldap_port": port, "base_dn": "ou=users,dc=test", "attribute": "cn" });
    crate::loggers::extend(&mut config, conf);
    json!({
        "_format_version": "3.0",
        "services": [{
            "name": "s", "url": format!("http://{}", origin.node()), "routes": [{ "name": "r", "paths": ["/"] }],
            "plugins": [{ "name": "ldap-auth", "config": config }],
        }],
        "consumers": [{ "username": "guest" }, { "username": "jack", "keyauth_credentials": [{ "key": "k" }] }],
    })
}

fn ask(gateway: &Gateway, scheme: &str, pair: &str, fields: &str) -> Response {
    let credentials = STANDARD.encode(pair);
    let request = format!("GET / HTTP/1.1\r\nHost: a.test\r\nAuthorization: {scheme} {credentials}\r\n{fields}\r\n");
    gateway.client().request(request)
}

#[test]
fn a_directory_takes_names_and_passwords() {
    let (origin, mut directory) = (Origin::hello(), Slapd::start(None));
    let gateway = Start::new(document(&origin, directory.port, json!({ "cache_ttl": 0 }))).start();
    for (pair, status) in [
        ("jack:pass:word", 200),
        ("jack:wrong", 401),
        ("Doe, Jill:ségret", 200),
        ("nobody:nobodys", 200),
        ("jack,ou=users:pass:word", 401),
        ("jack:", 401),
        (":pass:word", 401),
    ] {
        assert_eq!(ask(&gateway, "LDAP", pair, "X-Consumer-Username: forged\r\n").status, status, "{pair}");
    }
    let told = origin.last();
    assert_eq!(["X-Credential-Identifier", "X-Consumer-Username"].map(|name| told.field(name)), [Some("nobody"), None]);
    assert!(told.field("authorization").is_some());
    // Kong's words, and another scheme.
    let refused = ask(&gateway, "Basic", "jack:pass:word", "");
    assert_eq!((refused.status, refused.field("WWW-Authenticate")), (401, Some("LDAP")));
    assert_eq!(refused.json()["message"], "Unauthorized");
    // The other field comes first, and a wrong password in it does not spoil the right one.
    for pair in ["jack:wrong", "jack:pass:word"] {
        let fields = format!("Proxy-Authorization: ldap {}\r\n", STANDARD.encode(pair));
        assert_eq!(ask(&gateway, "ldap", "Doe, Jill:ségret", &fields).status, 200);
        let name = if pair == "jack:wrong" { "Doe, Jill" } else { "jack" };
        assert_eq!(origin.last().field("X-Credential-Identifier"), Some(name));
    }
    let conf = json!({ "header_type": "basic", "realm": "home", "hide_credentials": true, "cache_ttl": 60 });
    assert_eq!(gateway.reload(document(&origin, directory.port, conf)), Reload::Applied);
    assert_eq!(ask(&gateway, "Basic", "jack:pass:word", "").status, 200);
    assert_eq!(origin.last().field("authorization"), None);
    let refused = ask(&gateway, "ldap", "jack:pass:word", "");
    assert_eq!((refused.status, refused.field("WWW-Authenticate")), (401, Some("BASIC realm=\"home\"")));
    // Away: those whom the directory has taken pass for some time, and no others.
    directory.process = None;
    assert_eq!(ask(&gateway, "Basic", "jack:pass:word", "").status, 200);
    for pair in ["jack:wrong", "nobody:nobodys"] {
        let failed = ask(&gateway, "Basic", pair, "");
        assert_eq!((failed.status, &failed.json()["message"]), (500, &json!("An unexpected error occurred")), "{pair}");
    }
    directory.run(false);
    assert_eq!(ask(&gateway, "Basic", "nobody:nobodys", "").status, 200);
}

#[test]
fn callers_of_a_directory_stand_beside_consumers() {
    let (origin, directory) = (Origin::hello(), Slapd::start(None));
    let mut document = document(&origin, directory.port, json!({ "anonymous": "guest" }));
    let both = json!([document["services"][0]["plugins"][0], { "name": "key-auth", "config": { "anonymous": "guest" } },
        { "name": "basic-auth", "config": { "anonymous": "guest" } }]);
    document["services"][0]["plugins"] = both;
    let gateway = Start::new(&document).start();
    for (fields, pair, told) in [
        ("", "jack:wrong", [Some("guest"), None, Some("true")]),
        ("", "jack:pass:word", [None, Some("jack"), None]),
        ("apikey: k\r\n", "nobody:wrong", [Some("jack"), Some("k"), None]),
    ] {
        assert_eq!(ask(&gateway, "ldap", pair, fields).status, 200);
        let names = ["X-Consumer-Username", "X-Credential-Identifier", "X-Anonymous-Consumer"];
        let mut found = names.map(|name| origin.last().field(name).map(str::to_owned));
        if told[1] == Some("k") {
            // The id of a key is made up.
            found[1] = found[1].take().map(|_| "k".to_owned());
        }
        assert_eq!(found, told.map(|text| text.map(str::to_owned)), "{pair}");
    }
    // Groups are those of consumers: a caller without one has none.
    for config in [json!({ "deny": ["x"] }), json!({ "allow": ["x"] })] {
        document["plugins"] = json!([{ "name": "acl", "config": config }]);
        assert_eq!(gateway.reload(&document), Reload::Applied);
        let refused = ask(&gateway, "ldap", "jack:pass:word", "");
        assert_eq!((refused.status, &refused.json()["message"]), (403, &json!("You cannot consume this service")));
    }
}

#[test]
fn connections_to_a_directory_are_secured() {
    let (origin, authority) = (Origin::hello(), Authority::new());
    let directory = Slapd::start(Some(&authority.certificate(Kind::Rsa, &["localhost"])));
    let at = |host: &str, port: u16, conf: Value| {
        let mut all = json!({ "ldap_host": host, "verify_ldap_host": true, "cache_ttl": 0 });
        crate::loggers::extend(&mut all, conf);
        document(&origin, port, all)
    };
    let start_tls = || json!({ "start_tls": true });
    let trusted = json!({ "tls": { "trusted_certificate": authority.file().display().to_string() } });
    let gateway = Start::new(at("localhost", directory.port, start_tls())).settings(trusted).start();
    for (pair, expected) in [("jack:pass:word", 200), ("jack:wrong", 401), ("jack:pass:word", 200)] {
        assert_eq!(ask(&gateway, "ldap", pair, "").status, expected, "{pair}");
    }
    for (document, expected) in [
        (at("localhost", directory.tls_port, json!({ "ldaps": true })), 200),
        (at("127.0.0.1", directory.port, start_tls()), 500),
        (at("127.0.0.1", directory.port, json!({ "start_tls": true, "verify_ldap_host": false })), 200),
        (at("localhost", directory.tls_port, start_tls()), 500),
    ] {
        assert_eq!(gateway.reload(&document), Reload::Applied);
        assert_eq!(ask(&gateway, "ldap", "jack:pass:word", "").status, expected, "{document}");
    }
    // A directory that refuses TLS is not asked without it.
    let plain = Slapd::start(None);
    assert_eq!(gateway.reload(at("localhost", plain.port, start_tls())), Reload::Applied);
    assert_eq!(ask(&gateway, "ldap", "jack:pass:word", "").status, 500);
    gateway.logged("no TLS");
}
