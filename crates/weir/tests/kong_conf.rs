//! Kong's own settings: `kong.conf`, variables `KONG_…`, and what the gateway tells of itself.

use std::fs;

use crate::harness::{Origin, Start, free_port, weir};

const DOCUMENT: &str = "_format_version: '3.0'\nservices: [{name: s, url: 'http://ORIGIN', routes: [{paths: [/]}]}]\n";

fn document(origin: &Origin) -> String {
    DOCUMENT.replace("ORIGIN", &origin.node())
}

#[test]
fn variables_of_kong_are_settings() {
    let (origin, port) = (Origin::echo(), free_port());
    let gateway = Start::text(&document(&origin))
        .variable("KONG_PROXY_LISTEN", &format!("127.0.0.1:{port} reuseport backlog=16384"))
        .variable("KONG_HEADERS", "X-Kong-Upstream-Status, Via")
        .variable("KONG_HEADERS_UPSTREAM", "off")
        .variable("KONG_PG_HOST", "db")
        .variable("WEIR_KONG_ANSWERS_VERSION", "3.4.0")
        .own_listeners()
        .start();
    assert_eq!(gateway.addrs[0].port(), port);
    let response = gateway.get("/");
    let told = ["X-Kong-Upstream-Status", "Via", "X-Kong-Request-Id", "X-Kong-Proxy-Latency", "Server"];
    let told = told.map(|name| response.field(name));
    assert_eq!(told, [Some("200"), Some("1.1 kong/3.4.0"), None, None, None], "{response:?}");
    let seen = origin.last();
    assert_eq!((seen.field("X-Kong-Request-Id"), seen.field("Via")), (None, Some("1.1 kong/3.4.0")));
    gateway.logged("pg_host");
}

#[test]
fn a_kong_conf_is_a_settings_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let conf = folder.path().join("kong.conf");
    let rules = folder.path().join("rules.yml");
    fs::write(&rules, DOCUMENT.replace("ORIGIN", "127.0.0.1:1")).expect("written");
    let text = "# comment\ndatabase = off\ndeclarative_config = RULES\nproxy_listen = 127.0.0.1:1, 127.0.0.1:2 ssl\n\
        ssl_cert = /x.pem\nlog_levl = info\n";
    fs::write(&conf, text.replace("RULES", &rules.display().to_string())).expect("written");
    let (code, out, told) = weir(&["check", "--settings", &conf.display().to_string()]);
    assert_eq!(code, 0, "{told}");
    assert!(out.contains("rules.yml: 1 route, 1 service"), "{out}");
    for says in ["kong.conf:5:1: warning: ssl_cert", "certificates for clients are entities", "did you mean log_level?"]
    {
        assert!(told.contains(says), "no {says:?} in {told}");
    }
    fs::write(&conf, "proxy_listen = 127.0.0.1:1 sl\n").expect("written");
    let (code, _, told) = weir(&["check", "--settings", &conf.display().to_string(), &rules.display().to_string()]);
    assert!(code == 1 && told.contains("kong.conf:1:1: proxy_listen: expected addresses"), "{code} {told}");
}
