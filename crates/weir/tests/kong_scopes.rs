//! Plugins of Kong's family by their scopes: of several configurations of one plugin the most specific counts alone.

use std::fs;

use crate::harness::{Gateway, Origin, Start, each, weir};

/// The message of the answer to a request with this key.
fn answer(gateway: &Gateway, path: &str, key: &str) -> String {
    let response = gateway.client().request(format!("GET {path} HTTP/1.1\r\nHost: o\r\napikey: {key}\r\n\r\n"));
    response.json()["message"].as_str().unwrap_or("none").to_owned()
}

/// Each configuration of `request-termination` answers with its scope.
const SCOPES: &str = "
_format_version: '3.0'
services:
- {name: s, url: 'http://ORIGIN', routes: [{name: r, paths: [/r]}, {name: r2, paths: [/r2]}, {name: r3, paths: [/r3]}]}
- {name: t, url: 'http://ORIGIN', routes: [{name: rt, paths: [/t]}]}
consumers:
- {username: a, keyauth_credentials: [{key: a}], groups: [{name: gold}]}
- {username: b, keyauth_credentials: [{key: b}]}
- {username: c, keyauth_credentials: [{key: c}]}
- {username: d, keyauth_credentials: [{key: d}]}
- username: e
  keyauth_credentials: [{key: e}]
  plugins: [{name: request-termination, config: {message: C e}}, {name: key-auth}]
- {username: f, keyauth_credentials: [{key: f}]}
consumer_groups:
- name: silver
  consumers: [{username: b}]
  plugins: [{name: request-termination, config: {message: G silver}}]
- {name: gold, consumers: [b, f]}
plugins:
- {name: key-auth}
- {name: request-termination, consumer: a, route: r, service: s, config: {message: CRS}}
- {name: request-termination, consumer: a, route: r2, config: {message: CR}}
- {name: request-termination, consumer: a, service: s, config: {message: CS}}
- {name: request-termination, consumer: a, config: {message: C}}
- {name: request-termination, consumer_group: gold, route: r, service: s, config: {message: GRS}}
- {name: request-termination, consumer_group: gold, route: r2, config: {message: GR}}
- {name: request-termination, consumer_group: gold, service: s, config: {message: GS}}
- {name: request-termination, consumer_group: gold, config: {message: G gold}}
- {name: request-termination, route: r2, service: s, config: {message: RS}}
- {name: request-termination, route: r3, config: {message: R}}
- {name: request-termination, service: s, config: {message: S}}
- {name: request-termination, consumer: c, route: r, enabled: false, config: {message: off}}
- {name: request-termination, consumer: d, route: rt, config: {message: CR d}}
- {name: request-termination, config: {message: global}}
- {name: correlation-id, service: s, protocols: [https], config: {echo_downstream: true}}
";

#[test]
fn the_most_specific_configuration_counts_alone() {
    let origin = Origin::echo();
    let gateway = Start::text(&SCOPES.replace("ORIGIN", &origin.node())).start();
    let cases = [
        ("/r", "a", "CRS"),
        ("/r2", "a", "CR"),
        ("/r3", "a", "CS"),
        ("/t", "a", "C"),
        // In both groups: on single routes gold's, elsewhere the one whose name comes first.
        ("/r", "b", "GRS"),
        ("/r2", "b", "GR"),
        ("/r3", "b", "GS"),
        ("/t", "b", "G gold"),
        ("/t", "f", "G gold"),
        ("/r", "c", "S"),
        ("/r2", "c", "RS"),
        ("/r3", "c", "R"),
        ("/t", "c", "global"),
        ("/t", "d", "CR d"),
        ("/r", "d", "S"),
        // A consumer's comes before the route's and the service's, and after that of a route with its service.
        ("/r", "e", "C e"),
        ("/r3", "e", "C e"),
        ("/t", "e", "C e"),
        ("/r2", "e", "RS"),
    ];
    each(
        &cases,
        |(path, key, _)| format!("{path} as {key}"),
        |&(path, key, expected)| assert_eq!(answer(&gateway, path, key), expected),
    );
    // A plugin for HTTPS alone does not run without it.
    let response = gateway.client().request("GET /r HTTP/1.1\r\nHost: o\r\napikey: c\r\n\r\n");
    assert_eq!(response.field("Kong-Request-ID"), None);
}

#[test]
fn scopes_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let base = "_format_version: '3.0'\nservices: [{name: s, url: 'http://a', routes: [{name: r, paths: [/]}]}]\n\
        consumers: [{username: c}]\nconsumer_groups: [{name: g}]\n";
    let cases = [
        ("plugins: [{name: key-auth, consumer: c}]", 1, "plugins[0].consumer: value must be null"),
        (
            "plugins: [{name: rate-limiting, consumer: c, consumer_group: g, config: {minute: 1}}]",
            1,
            "plugins[0].consumer_group: a plugin is for a consumer or for a consumer group, not for both",
        ),
        (
            "plugins: [{name: cors, route: r, ordering: {before: {}}}]",
            1,
            "plugins[0].ordering: an order of plugins of its own is Kong Enterprise's",
        ),
        (
            "plugins: [{name: correlation-id, consumer: c, route: r}, {name: correlation-id, consumer: c, route: r}]",
            1,
            "plugins[1].name: the same plugin is configured at plugins[0] for the same requests",
        ),
        (
            "plugins: [{name: correlation-id, protocols: [tcp]}]",
            0,
            "plugins[0].protocols: no effect: no request has any of these protocols",
        ),
        (
            "consumer_groups: [{name: h, consumers: [cc]}]",
            1,
            "consumer_groups[0].consumers: invalid reference 'consumers: cc' (no such entry in 'consumers')",
        ),
    ];
    for (at, (text, expected, says)) in cases.into_iter().enumerate() {
        let file = folder.path().join(format!("{at}.yml"));
        fs::write(&file, format!("{base}{text}\n")).expect("written");
        let (code, _, told) = weir(&["check", &file.display().to_string()]);
        assert!(code == expected && told.contains(says), "{text}: {code} {told}");
    }
}
