//! Credentials in queries do not get into the access log.

use std::fs;

use crate::harness::{Gateway, LIMIT, Start, wait_until};

const RULES: &str = r#"
routes:
  - {id: key, uri: /key/*, plugins: {key-auth: {query: "my key"}, mocking: {response_example: a}}}
  - {id: jwt, uri: /jwt/*, plugins: {jwt-auth: {query: tok}, mocking: {response_example: a}}}
  - {id: multi, uri: /multi/*, plugins: {multi-auth: {auth_plugins: [{jwt-auth: {query: of-jwt}}, {key-auth: {query: of-key}}]}, mocking: {response_example: a}}}
  - {id: hidden, uri: /hidden/*, plugins: {key-auth: {hide_credentials: true}, mocking: {response_example: a}}}
  - {id: early, uri: /early/*, plugins: {key-auth: {query: late}, uri-blocker: {block_rules: [early]}}}
  - {id: open, uri: /open/*, plugins: {mocking: {response_example: a}}}
consumers:
  - {username: jack, plugins: {key-auth: {key: s3cret}}}
"#;

const FORMAT: &str =
    "$request_method $request_uri | $real_request_uri | $args | $query_string | $arg_apikey | $uri | $http_referer";

fn start(settings: &str) -> Gateway {
    Start::new(RULES).settings(format!("access_log: {{path: FOLDER/access.log, format: '{FORMAT}'{settings}}}")).start()
}

fn logged(gateway: &Gateway, lines: usize) -> Vec<String> {
    wait_until("lines of the log", LIMIT, || {
        let text = fs::read_to_string(gateway.file("access.log")).unwrap_or_default();
        (text.lines().count() >= lines).then(|| text.lines().map(str::to_owned).collect())
    })
}

#[test]
fn arguments_that_carry_credentials_are_masked() {
    // The target, the status, and what is logged in place of path and query.
    let cases = [
        ("/key/a?x=1&my+key=s3cret&y=2", 200, "/key/a?x=1&my+key=***&y=2"),
        ("/key/a?x=1&my%20key=wr0ng", 401, "/key/a?x=1&my%20key=***"),
        ("/key/a/../a?my+key=s3cret", 200, "/key/a/../a?my+key=***"),
        ("http://a.test/key/a?my+key=s3cret", 200, "/key/a?my+key=***"),
        ("/jwt/a?tok=s3cret.s3cret.s3cret", 401, "/jwt/a?tok=***"),
        ("/multi/a?of-key=s3cret", 200, "/multi/a?of-key=***"),
        ("/multi/a?of-jwt=s3cret&b=1&of-key=wr0ng", 401, "/multi/a?of-jwt=***&b=1&of-key=***"),
        ("/hidden/a?b=1&apikey=s3cret", 200, "/hidden/a?b=1&apikey=***"),
        ("/early/a?late=s3cret", 403, "/early/a?late=***"),
        // The names of all plugins count everywhere: a client may have the wrong path.
        ("/open/a?tok=s3cret&apikey=s3cret", 200, "/open/a?tok=***&apikey=***"),
        ("/nowhere?apikey=s3cret", 404, "/nowhere?apikey=***"),
        ("/open/a?%61pikey=s3cret&other=1", 200, "/open/a?%61pikey=***&other=1"),
        ("/open/a?other=1&apikeys=2", 200, "/open/a?other=1&apikeys=2"),
        ("/open/%?apikey=s3cret", 400, "/open/%?apikey=***"),
    ];
    let gateway = start("");
    for (target, status, _) in cases {
        // The same in the page that a browser came from.
        let referer = format!("Referer: http://a.test{}", target.replace("http://a.test", ""));
        let answer = gateway.client().request(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{referer}\r\n\r\n"));
        assert_eq!(answer.status, status, "{target}");
    }
    let lines = logged(&gateway, cases.len());
    for (target, _, shown) in cases {
        assert!(
            lines.iter().any(|line| line.starts_with(&format!("GET {shown} | {shown} | "))),
            "{target}: {lines:#?}"
        );
        let referer = format!("http://a.test{shown}");
        assert!(lines.iter().any(|line| line.ends_with(&referer)), "{target}: {lines:#?}");
    }
    for secret in ["s3cret", "wr0ng"] {
        assert!(!lines.iter().any(|line| line.contains(secret)), "{lines:#?}");
    }
    // Pipelined requests come through whole.
    let mut client = gateway.client();
    client.send(
        "GET /open/1?apikey=s3cret HTTP/1.1\r\nHost: a.test\r\n\r\n\
         GET /hidden/2?apikey=s3cret HTTP/1.1\r\nHost: a.test\r\n\r\n",
    );
    assert_eq!((client.response().status, client.response().status), (200, 200));
    assert!(logged(&gateway, cases.len() + 2).iter().any(|line| line.contains("/hidden/2?apikey=***")));
}

#[test]
fn the_setting_turns_it_off() {
    let gateway = start(", hide_credentials: false");
    assert_eq!(gateway.get("/open/a?apikey=s3cret").status, 200);
    assert!(logged(&gateway, 1)[0].starts_with("GET /open/a?apikey=s3cret | "));
}

#[test]
fn names_come_and_go_with_changes() {
    let gateway = Start::stored().settings("access_log: {path: FOLDER/access.log, format: '$request_uri'}").start();
    let route = |query: &str| {
        format!(r#"{{"uri":"/*","plugins":{{"key-auth":{{"query":"{query}"}},"mocking":{{"response_example":"a"}}}}}}"#)
    };
    gateway.must("PUT", "routes/1", &route("first"));
    gateway.get("/a?first=1111&second=2222");
    gateway.must("PUT", "routes/2", &route("second").replace("/*", "/other"));
    gateway.get("/b?first=1111&second=2222");
    let lines = logged(&gateway, 2);
    assert_eq!(lines, ["/a?first=***&second=2222", "/b?first=***&second=***"]);
}
