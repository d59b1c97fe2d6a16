//! One decision about a path, for matching, plugins and forwarding: nothing reaches what a route guards by way of another
//! route's rules.

use serde_json::{Value, json};

use crate::harness::{Gateway, Origin, Response, each, weir};

/// Result for a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The guarded route takes it and asks for a key.
    Guarded,
    /// No route takes it.
    Unknown,
    /// The target is refused.
    Refused,
    /// The open route takes it; the origin sees this target.
    Open(&'static str),
}
use Outcome::{Guarded, Open, Refused, Unknown};

/// A guarded and an open route on one origin.
fn config(origin: &Origin, guarded: &[&str], open: &str) -> Value {
    let upstream = json!({ "nodes": { (origin.node()): 1 } });
    json!({
        "routes": [
            { "id": "guarded", "uris": guarded, "upstream": upstream, "plugins": { "key-auth": {} } },
            { "id": "open", "uri": open, "upstream": upstream },
        ],
        "consumers": [{ "username": "jack", "plugins": { "key-auth": { "key": "secret" } } }],
    })
}

fn send(gateway: &Gateway, target: &str, fields: &str) -> Response {
    let bytes: Vec<u8> = target.chars().map(|c| u8::try_from(u32::from(c)).expect("ISO 8859-1")).collect();
    let head = format!(" HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
    gateway.client().request([b"GET ", &bytes[..], head.as_bytes()].concat())
}

fn check(settings: &Value, guarded: &[&str], open: &str, cases: &[(&str, Outcome)]) {
    each(
        cases,
        |case| format!("{case:?}"),
        |(target, expected)| {
            let origin = Origin::hello();
            let gateway = Gateway::with(config(&origin, guarded, open), settings);
            let response = send(&gateway, target, "");
            let seen: Vec<_> = origin.requests().into_iter().map(|request| request.target).collect();
            let outcome = match (response.status, seen.first()) {
                (200, Some(_)) => None,
                (401, None) => Some(Guarded),
                (404, None) => Some(Unknown),
                (400, None) => Some(Refused),
                _ => panic!("{} with {seen:?} at the origin", response.status),
            };
            match (outcome, expected) {
                (None, Open(target)) => assert_eq!(seen, [*target]),
                (None, _) => panic!("{seen:?} reached the origin"),
                (Some(outcome), expected) => assert_eq!(outcome, *expected),
            }
            // With the key, what is guarded arrives in its one form.
            if *expected == Guarded {
                assert_eq!(send(&gateway, target, "apikey: secret\r\n").status, 200);
                assert!(origin.last().target.starts_with("/admin"), "{}", origin.last().target);
            }
        },
    );
}

#[test]
fn a_guarded_path_is_guarded_in_every_spelling() {
    check(
        &json!({}),
        &["/admin*"],
        "/public/*",
        &[
            ("/admin", Guarded),
            ("/admin/", Guarded),
            ("/admin?x", Guarded),
            ("/public/../admin", Guarded),
            ("/public/x/../../admin", Guarded),
            ("/public/./../admin", Guarded),
            ("/public/%2e%2e/admin", Guarded),
            ("/public/.%2E/admin", Guarded),
            ("/public/..%2fadmin", Guarded),
            ("/public%2f..%2fadmin", Guarded),
            ("/public/%2e%2e%2fadmin", Guarded),
            ("/%61dmin", Guarded),
            ("/%61%64%6d%69%6e", Guarded),
            ("//admin", Guarded),
            ("///admin//x", Guarded),
            ("/./admin", Guarded),
            ("/%2fadmin", Guarded),
            ("/%2e/admin", Guarded),
            ("/admin%2fx", Guarded),
            ("/admin;x", Guarded),
            ("/admin%3bx", Guarded),
            ("/admin/..;", Refused),
            ("/public/..;/admin", Refused),
            ("/public/..;x=1/admin", Refused),
            ("/public/.;/../admin", Refused),
            ("/public/%2e%2e;/admin", Refused),
            ("/public/..%3b/admin", Refused),
            ("http://a.test/public/../admin", Guarded),
            ("http://a.test//admin", Guarded),
            ("/public/../../admin", Refused),
            ("/..", Refused),
            ("/../admin", Refused),
            ("/public/%00/../../admin", Refused),
            ("/admin%00", Refused),
            ("/%xdmin", Refused),
            ("/public/%", Refused),
            ("/public/%2", Refused),
            ("/public/%zz", Refused),
            ("/public/#/../admin", Refused),
            ("/ADMIN", Unknown),
            ("/", Unknown),
            ("/public", Unknown),
            ("/%2561dmin", Unknown),
            ("/\\admin", Unknown),
        ],
    );
}

#[test]
fn what_is_forwarded_is_the_one_form() {
    check(
        &json!({}),
        &["/admin*"],
        "/public/*",
        &[
            ("/public/x", Open("/public/x")),
            ("/public/", Open("/public/")),
            ("/admin/../public/x", Open("/public/x")),
            ("/public//x///y", Open("/public/x/y")),
            ("/public/a/./b/../c", Open("/public/a/c")),
            ("/public/a%2fb", Open("/public/a/b")),
            ("/public/%41%7e", Open("/public/A~")),
            ("/public/a%20b", Open("/public/a%20b")),
            ("/public/caf%c3%a9", Open("/public/caf%C3%A9")),
            ("/public/caf\u{e9}", Open("/public/caf%E9")),
            ("/public/a%3Fb", Open("/public/a%3Fb")),
            ("/public/a%23b", Open("/public/a%23b")),
            ("/public/%2561dmin", Open("/public/%2561dmin")),
            ("/public/%252e%252e/admin", Open("/public/%252e%252e/admin")),
            ("/public/%c0%ae%c0%ae/admin", Open("/public/%C0%AE%C0%AE/admin")),
            ("/public/a;b=1", Open("/public/a;b=1")),
            ("/public/%0d%0aX-Injected:%201", Open("/public/%0D%0AX-Injected:%201")),
            ("/public/x\\admin", Open("/public/x%5Cadmin")),
            ("/public/...", Open("/public/...")),
            ("/public/.hidden", Open("/public/.hidden")),
            ("/public/x?a=/../admin&b=%2e%2E//", Open("/public/x?a=/../admin&b=%2e%2E//")),
            ("/public/x?", Open("/public/x?")),
            ("/public/x??a=?b", Open("/public/x??a=?b")),
            ("http://a.test/public//x?y", Open("/public/x?y")),
        ],
    );
}

/// Servlet containers cut `;parameters`, some servers take `\\` for `/`: no route's rules hold for another route's path.
#[test]
fn a_path_leads_to_one_route_in_every_reading() {
    let guarded = ["/admin", "/admin/*"];
    check(
        &json!({}),
        &guarded,
        "/*",
        &[
            ("/admin;x", Refused),
            ("/admin;x/y", Refused),
            ("/admin%3bx/y", Refused),
            ("/a/../admin;x?y", Refused),
            ("/\\admin", Refused),
            ("/%5cadmin", Refused),
            ("/a\\..\\admin\\x", Refused),
            ("/a;b\\..\\admin", Refused),
            ("/admin\\..;x\\y", Refused),
            ("/..\\x", Refused),
            ("http://a.test/\\admin", Refused),
            ("/admin/;x", Guarded),
            ("/admin/a\\b;c", Guarded),
            ("/a;b/c", Open("/a;b/c")),
            ("/a%3bb/c?d;e\\f", Open("/a;b/c?d;e\\f")),
            ("/a\\b", Open("/a%5Cb")),
            ("/a?b=\\admin;c", Open("/a?b=\\admin;c")),
        ],
    );
    // The other reading is not allowed if no route matches it.
    check(
        &json!({}),
        &guarded,
        "/public/*",
        &[
            ("/public/..\\secret", Refused),
            ("/public/..\\public\\x", Open("/public/..%5Cpublic%5Cx")),
            ("/secret;x", Unknown),
            ("/\\public\\x", Unknown),
        ],
    );
    let allowed = json!({ "uri": { "allow_ambiguous": true } });
    check(&allowed, &guarded, "/*", &[("/admin;x/y", Open("/admin;x/y")), ("/\\admin", Open("/%5Cadmin"))]);
    let servlet = json!({ "uri": { "normalize_like_servlet": true } });
    check(&servlet, &guarded, "/*", &[("/admin;x/y", Guarded), ("/;x\\admin", Open("/")), ("/\\admin;x", Refused)]);
}

/// Conditions of `vars` about the path apply to each reading, too.
#[test]
fn a_reading_is_matched_by_vars_as_well() {
    let origin = Origin::hello();
    let mut config = config(&origin, &["/*"], "/*");
    config["routes"][0]["vars"] = json!([["uri", "~~", "^/admin"]]);
    let gateway = Gateway::start(config);
    for (target, status) in [("/admin", 401), ("/\\admin", 400), ("/x;/../admin", 401), ("/a\\admin", 200)] {
        assert_eq!(send(&gateway, target, "").status, status, "{target}");
    }
}

#[test]
fn explain_tells_of_another_reading() {
    let folder = tempfile::tempdir().expect("create a folder");
    let file = folder.path().join("rules.yaml");
    let text = "routes: [{id: guarded, uri: /admin, upstream_id: o}, {id: open, uri: '/a*', upstream_id: o}]\n\
                upstreams: [{id: o, nodes: {'127.0.0.1:1': 1}}]\n#END\n";
    std::fs::write(&file, text).expect("write rules");
    let file = file.to_str().expect("a path");
    let told = |target: &str| {
        let (code, out, err) = weir(&["explain", file, "--request", target]);
        assert_eq!(code, 0, "{err}");
        out.lines().find_map(|line| line.strip_prefix("refused:    ")).map(str::to_owned)
    };
    for (target, part) in [
        ("/admin;x", "reads /admin, which is of route guarded (uri.allow_ambiguous)"),
        ("/a\\..\\b", "reads /b, which is of no route"),
        ("/a\\..\\..\\b", "may refuse the path"),
    ] {
        let told = told(target).unwrap_or_else(|| panic!("{target}: nothing told"));
        assert!(told.starts_with("answered 400: ") && told.contains(part), "{target}: {told}");
    }
    assert_eq!(told("/a;x"), None);
}

#[test]
fn parameters_of_segments_are_cut_where_servlets_do() {
    check(
        &json!({ "uri": { "normalize_like_servlet": true } }),
        &["/admin", "/admin/*"],
        "/*",
        &[
            ("/admin;x", Guarded),
            ("/admin;x=1;y=2/z", Guarded),
            ("/public/..;/admin", Guarded),
            ("/;/admin", Guarded),
            ("/public/.;a/../admin", Guarded),
            ("/admin%3bx", Guarded),
            ("/public;x/y", Open("/public/y")),
        ],
    );
}

#[test]
fn a_tail_slash_is_ignored_where_the_settings_say_so() {
    let cases = |with: Outcome| [("/admin", Guarded), ("/admin/", with), ("/admin//", with), ("/admin/.", with)];
    check(&json!({ "uri": { "delete_tail_slash": true } }), &["/admin"], "/*", &cases(Guarded));
    check(&json!({}), &["/admin"], "/*", &cases(Open("/admin/")));
}

#[test]
fn an_encoded_slash_never_hides_a_dot_segment() {
    check(
        &json!({ "uri": { "match_encoded_slash": true } }),
        &["/admin", "/admin/*"],
        "/public/*",
        &[
            ("/admin/a%2fb", Guarded),
            ("/public/a%2fb", Open("/public/a%2Fb")),
            ("/public/a%2Fb/../c", Open("/public/c")),
            ("/public/..%2fadmin", Refused),
            ("/public/x%2f..%2f..%2fadmin", Refused),
            ("/public/x%2f..", Refused),
            ("/public/%2e%2e%2fadmin", Refused),
            ("/public/.%2fadmin", Refused),
        ],
    );
}

#[test]
fn a_path_given_by_a_plugin_is_judged_no_less() {
    // The value of a client's argument ends up in a path: it must not lead out of what the plugin wrote.
    let origin = Origin::hello();
    let gateway = Gateway::start(json!({ "routes": [{
        "id": "file", "uri": "/file", "upstream": { "nodes": { (origin.node()): 1 } },
        "plugins": { "proxy-rewrite": { "uri": "/files/$arg_name" } },
    }]}));
    assert_eq!(send(&gateway, "/file?name=a", "").status, 200);
    assert_eq!(origin.last().target, "/files/a?name=a");
    for name in ["a%20b", "%20HTTP/1.1%0d%0aX-Injected:%201", "a?b", "a%23b", "%00"] {
        let response = send(&gateway, &format!("/file?name={name}"), "");
        let request = origin.last();
        assert!(
            request.target.starts_with("/files/") && request.field("x-injected").is_none(),
            "{response:?} {request:?}"
        );
    }
}
