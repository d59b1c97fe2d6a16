//! Upstreams behind a forward proxy: the policy `http_proxy`, and `tunnel` of an upstream.

use std::net::TcpListener;
use std::thread;

use serde_json::{Value, json};

use super::{Site, send, told};
use crate::harness::{
    Authority, Haproxy, Kind, Origin, PROXY_USER, Start, Tinyproxy, free_port, get, route_with, weir,
};

/// A service whose upstream is behind a proxy.
fn service(site: &Site, proxy: &Value, more: &Value) -> Value {
    let mut chain = vec![json!({"name": "apicast.policy.http_proxy", "configuration": proxy})];
    chain.extend(more["policies"].as_array().cloned().unwrap_or_default());
    chain.push(json!({"name": "apicast"}));
    let mut service = site.service(json!({"policy_chain": chain}));
    if let Some(url) = more["api_backend"].as_str() {
        service["proxy"]["api_backend"] = url.into();
    }
    service
}

#[test]
fn requests_go_by_way_of_a_proxy() {
    let (site, proxy) = (Site::new(), Tinyproxy::start());
    let url = format!("http://{PROXY_USER}@127.0.0.1:{}", proxy.port);
    let gateway = site.start(json!([service(&site, &json!({"http_proxy": url}), &json!({}))]));
    // One request: tinyproxy asks the origin to close its connection, which this one does not, and relays bytes until then.
    let response = send(&gateway, "GET /a%20b?user_key=good\nProxy-Authorization: Basic Zm9yZ2Vk");
    assert_eq!(response.status, 200, "{}", response.text());
    let seen = site.origin.last();
    assert!(seen.field("via").is_some_and(|via| via.contains("tinyproxy")), "{seen:?}");
    assert_eq!((seen.target.as_str(), seen.field("proxy-authorization")), ("/a%20b?user_key=good", None));
    assert_eq!(seen.field("host"), Some(site.origin.node().as_str()));
    // Other upstreams of the chain as well; and a proxy for the other scheme is not asked.
    let routed = json!({"policies": [{"name": "upstream", "configuration": {"rules": [
        {"regex": "/routed", "url": format!("http://{}/base", site.origin.node())}
    ]}}]});
    let gateway = site.start(json!([service(&site, &json!({"all_proxy": url}), &routed)]));
    assert_eq!(send(&gateway, "GET /routed?user_key=good").status, 200);
    assert_eq!(site.origin.last().target, "/base/routed?user_key=good");
    assert!(site.origin.last().field("via").is_some());
    let other = json!({"https_proxy": "http://127.0.0.1:1"});
    let gateway = site.start(json!([service(&site, &other, &json!({}))]));
    assert_eq!(send(&gateway, "GET /?user_key=good").status, 200);
    assert_eq!(site.origin.last().field("via"), None);
}

#[test]
fn upstreams_with_tls_are_behind_a_tunnel() {
    let (site, proxy, authority) = (Site::new(), Tinyproxy::start(), Authority::new());
    let certificate = authority.certificate(Kind::P256, &["127.0.0.1", "localhost"]);
    let tls = Haproxy::with_tls(&certificate, &site.origin.node());
    let backend = json!({"api_backend": format!("https://127.0.0.1:{}/base", tls.addr.port())});
    let url = |user: &str| json!({"https_proxy": format!("http://{user}@127.0.0.1:{}", proxy.port)});
    let gateway = site.start(json!([service(&site, &url(PROXY_USER), &backend)]));
    for _ in 0..3 {
        let response = send(&gateway, "GET /x?user_key=good");
        assert_eq!(response.status, 200, "{}", response.text());
    }
    assert_eq!(site.origin.last().target, "/base/x?user_key=good");
    assert_eq!(site.origin.last().field("via"), None, "the proxy sees bytes alone");
    // A proxy that refuses.
    let gateway = site.start(json!([service(&site, &url("wrong:user"), &backend)]));
    assert_eq!(told(&send(&gateway, "GET /x?user_key=good")).0, 502);
}

#[test]
fn proxies_that_are_away_slow_or_lie_are_the_upstreams_fault() {
    let site = Site::new();
    let lying = |answer: &'static [u8]| {
        Origin::scripted(move |connection| {
            if connection.head().is_some() {
                connection.send(answer);
                connection.await_close();
            }
        })
    };
    let silent = TcpListener::bind("127.0.0.1:0").expect("listen");
    let held = silent.try_clone().expect("a listener");
    thread::spawn(move || held.incoming().take(4).collect::<Vec<_>>().len());
    let long: &'static [u8] = Box::leak(vec![b'x'; 40_000].into_boxed_slice());
    let origins = [
        lying(b"HTTP/1.1 200 OK\r\n\r\nand more"),
        lying(b"no proxy at all\r\n\r\n"),
        lying(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"),
        lying(long),
    ];
    let mut cases: Vec<(u16, u16)> = origins.iter().map(|origin| (origin.addr().port(), 502)).collect();
    cases.push((free_port(), 502));
    cases.push((silent.local_addr().expect("an address").port(), 504));
    for (port, status) in cases {
        let more = json!({
            "api_backend": "https://behind.test",
            "policies": [{"name": "upstream_connection", "configuration": {"connect_timeout": 0.3}}],
        });
        let proxy = json!({"https_proxy": format!("http://127.0.0.1:{port}")});
        let gateway = site.start(json!([service(&site, &proxy, &more)]));
        let response = send(&gateway, "GET /x?user_key=good");
        assert_eq!(response.status, status, "{}", response.text());
    }
}

#[test]
fn faults_are_told_without_passwords() {
    let site = Site::new();
    let proxy = json!({"http_proxy": "socks://me:secret-word@proxy.test:1080"});
    let file = site.file(&json!({"services": [service(&site, &proxy, &json!({}))]}));
    let (code, out, err) = weir(&["check", file.to_str().expect("a path")]);
    let told = format!("{out}{err}");
    assert!(code != 0 && told.contains("http_proxy") && told.contains("proxy.test"), "{told}");
    assert!(!told.contains("secret-word"), "{told}");
}

#[test]
fn an_upstream_of_its_own_has_a_tunnel() {
    use base64::Engine;
    let (origin, proxy) = (Origin::echo(), Tinyproxy::start());
    let known = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(PROXY_USER));
    let upstream = |more: Value| {
        let addr = origin.addr();
        let mut upstream = json!({
            "nodes": { format!("127.0.0.1:{}", proxy.port): 1 },
            "tunnel": { "host": addr.ip().to_string(), "port": addr.port(), "authorization": known },
        });
        crate::loggers::extend(&mut upstream, more);
        route_with(json!({}), upstream)
    };
    let gateway = Start::new(upstream(json!({}))).start();
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.request(get("/x")).status, 200);
    }
    assert_eq!(origin.connections(), 1, "a tunnel carries several requests");
    for (more, expected) in [
        (json!({ "checks": { "active": { "http_path": "/" } } }), "checks"),
        (json!({ "proxy_protocol": "v1" }), "tunnel together with proxy_protocol"),
        (json!({ "tunnel": { "host": "a b", "port": 1 } }), "tunnel.host"),
        (json!({ "tunnel": { "host": "a", "port": 1, "authorization": "x\r\ny" } }), "tunnel.authorization"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rules.json");
        std::fs::write(&file, upstream(more).to_string()).expect("write a file");
        let (code, out, err) = weir(&["check", file.to_str().expect("a path")]);
        assert!(code != 0 && format!("{out}{err}").contains(expected), "{expected}: {out}{err}");
    }
}
