//! A table of tests for every rule of matching.

use std::net::IpAddr;

use serde_json::json;
use weir_expr::{Expr, Source, Value, Variable};
use weir_router::{BuildError, MethodSet, Mode, Outcome, Params, Query, Route, Router, literal_parameter};

const HOST_URI: Mode = Mode::HostUri;
const URI: Mode = Mode::Uri;
const PARAMETERS: Mode = Mode::UriWithParameter;

struct Request {
    user_agent: &'static [u8],
}

impl Source for Request {
    fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        match variable {
            Variable::Header(name) if &**name == "user-agent" => Some(Value::Bytes(self.user_agent)),
            // The router must not pass an outer value of a parameter through.
            Variable::UriParam(_) => Some(Value::Bytes(b"outer")),
            _ => None,
        }
    }
}

const REQUEST: Request = Request { user_agent: b"curl/8" };

fn query<'a>(host: &'a str, path: &'a str) -> Query<'a> {
    let bare = host.split(':').next().unwrap_or_default();
    Query {
        method: b"GET",
        host: if host.starts_with('[') { &host.as_bytes()[..=host.find(']').unwrap()] } else { bare.as_bytes() },
        host_port: host.as_bytes(),
        path: path.as_bytes(),
        remote: IpAddr::from([127, 0, 0, 1]),
        source: &REQUEST,
    }
}

fn path(path: &str) -> Route {
    Route { paths: vec![path.to_owned()], ..Route::default() }
}

fn hosted(host: &str, text: &str) -> Route {
    Route { hosts: vec![host.to_owned()], ..path(text) }
}

fn prioritised(priority: i64, text: &str) -> Route {
    Route { priority, ..path(text) }
}

fn with_vars(text: &str, vars: &serde_json::Value) -> Route {
    Route { vars: Some(Expr::parse(vars).unwrap()), ..path(text) }
}

fn found(mode: Mode, routes: &[Route], query: &Query<'_>) -> Option<usize> {
    let router = Router::build(mode, routes.to_vec()).unwrap();
    router.find(query, &mut Params::default()).map(|found| found.route as usize)
}

#[test]
fn a_path_takes_what_it_says() {
    let all = [HOST_URI, URI, PARAMETERS];
    type Case<'a> = (&'a [Mode], &'a str, &'a [&'a str], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        (&all, "/", &["/"], &["", "/a"]),
        (&all, "/a", &["/a"], &["/a/", "/A", "/ab", "/"]),
        (&all, "/a/*", &["/a/", "/a/b", "/a/b/c"], &["/a", "/ab", "/"]),
        (&all, "/a*", &["/a", "/ab", "/a/b"], &["/", "/b"]),
        (&all, "/*", &["/", "/a"], &["", "*"]),
        (&all, "*", &["/", "/a", "", "*"], &[]),
        (&all, "/a/*/b", &["/a/x/b", "/a/x/y/b", "/a//b", "/a/b/b"], &["/a/b", "/a/x/b/", "/a/x/bb", "/a/x/y", "/a/"]),
        (
            &all,
            "/a/*/b/*/c",
            &["/a/1/b/2/c", "/a/b/b/b/c", "/a/1/b/2/b/3/c"],
            &["/a/1/b/c", "/a/b/2/c", "/a/1/b/2/c/d"],
        ),
        (&all, "/a/*/*", &["/a/1/2", "/a//", "/a/1/2/3"], &["/a/1", "/a/"]),
        (&all, "/a/*rest", &["/a/", "/a/b/c"], &["/a"]),
        (&all, "/a/b*c", &["/a/b*c"], &["/a/bxc"]),
        (&all, "/a/*/b*", &["/a/x/b*"], &["/a/x/bc"]),
        (&all, "/v1/users:batch", &["/v1/users:batch"], &["/v1/usersx"]),
        (&[HOST_URI, URI], "/a/:id", &["/a/:id"], &["/a/7"]),
        (&[HOST_URI, URI], "/a/*/:id", &["/a/7/:id"], &["/a/7/8"]),
        (&[PARAMETERS], "/a/:id", &["/a/7", "/a/:id", "/a/%20"], &["/a/", "/a", "/a/7/", "/a/7/8"]),
        (&[PARAMETERS], "/a/:id/", &["/a/7/"], &["/a/7", "/a//"]),
        (&[PARAMETERS], "/:x/:y", &["/a/b"], &["/a", "/a/", "//b", "/a/b/c"]),
        (&[PARAMETERS], "/a/:id/*", &["/a/7/", "/a/7/8/9"], &["/a/7", "/a//8"]),
        (&[PARAMETERS], "/a/:id/b*", &["/a/7/b*"], &["/a/7/bc"]),
        (&[PARAMETERS], "/a/*rest/:id", &["/a/x/y/7"], &["/a/7", "/a/x/"]),
    ];
    for (modes, pattern, taken, refused) in cases {
        for mode in *modes {
            for text in *taken {
                assert_eq!(
                    found(*mode, &[path(pattern)], &query("h", text)),
                    Some(0),
                    "{mode:?} {pattern} takes {text}"
                );
            }
            for text in *refused {
                assert_eq!(
                    found(*mode, &[path(pattern)], &query("h", text)),
                    None,
                    "{mode:?} {pattern} refuses {text}"
                );
            }
        }
    }
}

#[test]
fn wildcards_capture_text() {
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);
    let cases: &[Case<'_>] = &[
        ("/users/:id", "/users/42", &[("id", "42")]),
        ("/users/:id/posts/:post", "/users/4/posts/9", &[("id", "4"), ("post", "9")]),
        ("/files/*rest", "/files/a/b.txt", &[("rest", "a/b.txt")]),
        ("/files/*rest", "/files/", &[("rest", "")]),
        ("/files/:disk/*rest", "/files/c/", &[("disk", "c"), ("rest", "")]),
        ("/files/:disk/*", "/files/c/x", &[("disk", "c")]),
        ("/a/*mid/b/:id", "/a/1/b/2/b/3", &[("mid", "1/b/2"), ("id", "3")]),
        ("/a/*one/b/*two", "/a/1/b/2/b/3", &[("one", "1/b/2"), ("two", "3")]),
        ("/a/*one/b/*two/c", "/a/b/b/b/x/c", &[("one", "b/b"), ("two", "x")]),
        ("/:id/:id", "/1/2", &[("id", "2")]),
        ("/plain", "/plain", &[]),
    ];
    let mut params = Params::default();
    for (pattern, text, expected) in cases {
        let router = Router::build(PARAMETERS, vec![path(pattern)]).unwrap();
        let found = router.find(&query("h", text), &mut params).unwrap();
        for (name, value) in *expected {
            let taken = router.param(&found, &params, text.as_bytes(), name);
            assert_eq!(taken, Some(value.as_bytes()), "{pattern} {text} {name}");
        }
        assert_eq!(router.param(&found, &params, text.as_bytes(), "other"), None);
        assert_eq!(router.param(&found, &params, text.as_bytes(), ""), None);
    }
}

#[test]
fn the_more_literal_path_goes_first() {
    // The route at the given index wins for the path.
    let cases: &[(Mode, Vec<Route>, &str, usize)] = &[
        (HOST_URI, vec![prioritised(9, "/a/*"), path("/a/b")], "/a/b", 1),
        (HOST_URI, vec![path("/*"), path("/a/*"), path("/a/b/*")], "/a/b/c", 2),
        (HOST_URI, vec![prioritised(9, "/*"), path("/a*")], "/ab", 1),
        (HOST_URI, vec![path("/a*"), path("/a/*")], "/a/b", 1),
        (HOST_URI, vec![path("*"), path("/*")], "/x", 1),
        (HOST_URI, vec![path("/a/*"), prioritised(1, "/a/*")], "/a/b", 1),
        (HOST_URI, vec![path("/a/*"), prioritised(-1, "/a/*")], "/a/b", 0),
        (HOST_URI, vec![path("/a/b"), prioritised(1, "/a/b")], "/a/b", 1),
        (HOST_URI, vec![path("/a/*"), path("/a/*")], "/a/b", 0),
        (HOST_URI, vec![path("/a/*"), path("/a/*/c")], "/a/b/c", 1),
        (HOST_URI, vec![prioritised(1, "/a/*"), path("/a/*/c")], "/a/b/c", 0),
        (PARAMETERS, vec![path("/a/:id"), path("/a/b")], "/a/b", 1),
        (PARAMETERS, vec![path("/a/*"), path("/a/:id")], "/a/b", 1),
        (PARAMETERS, vec![path("/a/:id"), prioritised(1, "/a/*")], "/a/b", 1),
        (PARAMETERS, vec![path("/:x/b"), path("/a/:y")], "/a/b", 1),
        (PARAMETERS, vec![path("/a/:i/c"), path("/a/:id/:z")], "/a/b/c", 1),
        (PARAMETERS, vec![path("/a/:x/c"), path("/a/:y/:z")], "/a/b/c", 1),
        (PARAMETERS, vec![path("/a/:x/c"), path("/a/:y/c")], "/a/b/c", 0),
    ];
    for (mode, routes, text, winner) in cases {
        assert_eq!(found(*mode, routes, &query("h", text)), Some(*winner), "{mode:?} {text} among {routes:?}");
    }
}

#[test]
fn hosts_decide_first_only_in_host_mode() {
    let routes = [
        path("/a/b"),
        hosted("*", "/a/*"),
        hosted("*.test", "/a/*"),
        hosted("*.api.test", "/a/*"),
        hosted("v1.api.test", "/*"),
        hosted("v1.api.test:8443", "/*"),
        hosted("*.api.test:8443", "/a/*"),
        hosted("[::1]", "/*"),
    ];
    let cases = [
        ("v1.api.test", "/a/b", Some(4)),
        ("v1.api.test:80", "/a/b", Some(4)),
        ("v1.api.test:8443", "/a/b", Some(5)),
        ("v2.api.test", "/a/b", Some(3)),
        ("v2.api.test:8443", "/a/b", Some(6)),
        ("x.v2.api.test", "/a/b", Some(3)),
        ("api.test", "/a/b", Some(2)),
        ("test", "/a/b", Some(1)),
        ("", "/a/b", Some(1)),
        ("[::1]", "/a/b", Some(7)),
        ("[::1]:9080", "/a/b", Some(7)),
        ("[::2]:9080", "/a/b", Some(1)),
        ("test", "/b", None),
        ("v2.api.test", "/b", None),
    ];
    for (host, text, expected) in cases {
        assert_eq!(found(HOST_URI, &routes, &query(host, text)), expected, "{host} {text}");
    }
    // With the host as a condition, the plain path wins for every host.
    for host in ["v1.api.test", "test", ""] {
        assert_eq!(found(URI, &routes, &query(host, "/a/b")), Some(0), "{host}");
    }
    assert_eq!(found(URI, &routes[3..], &query("test", "/a/c")), None);
    assert_eq!(found(URI, &routes[3..], &query("v2.api.test", "/a/c")), Some(0));
}

#[test]
fn upper_case_in_a_host_pattern_does_not_count() {
    for mode in [HOST_URI, URI] {
        assert_eq!(found(mode, &[hosted("*.API.Test", "/")], &query("v1.api.test", "/")), Some(0));
        assert_eq!(found(mode, &[hosted("API.Test", "/")], &query("api.test", "/")), Some(0));
    }
}

#[test]
fn a_match_names_path_and_host() {
    let route =
        Route { paths: vec!["/x".into(), "/a/*".into()], hosts: vec!["*.t".into(), "a.t".into()], ..Route::default() };
    // With the host as a condition, the first matching host in the list; in host mode, the host that led to the
    // route.
    for (mode, host, expected) in [(HOST_URI, "a.t", 1), (HOST_URI, "b.t", 0), (URI, "a.t", 0)] {
        let router = Router::build(mode, vec![path("/other"), route.clone()]).unwrap();
        let found = router.find(&query(host, "/a/b"), &mut Params::default()).unwrap();
        assert_eq!((found.route, found.path, found.host), (1, 1, Some(expected)), "{mode:?} {host}");
    }
    let router = Router::build(HOST_URI, vec![path("/a")]).unwrap();
    assert_eq!(router.find(&query("h", "/a"), &mut Params::default()).unwrap().host, None);
}

#[test]
fn methods_are_a_closed_list() {
    let set = |names: &[&str]| names.iter().map(|name| MethodSet::named(name).unwrap()).collect::<MethodSet>();
    let route = |names: &[&str]| Route { methods: set(names), ..path("/") };
    let cases: &[(&[&str], &str, bool)] = &[
        (&["GET"], "GET", true),
        (&["GET"], "HEAD", false),
        (&["GET"], "get", false),
        (&["GET", "PURGE"], "PURGE", true),
        (&["GET"], "BREW", false),
        (&[], "BREW", true),
        (&["GET"], "", false),
    ];
    for (names, method, expected) in cases {
        let query = Query { method: method.as_bytes(), ..query("h", "/") };
        assert_eq!(found(URI, &[route(names)], &query).is_some(), *expected, "{names:?} {method}");
    }
    for name in MethodSet::names() {
        assert_eq!(set(&[name]).to_string(), *name);
        assert!(set(&[name]).admits(name.as_bytes()));
    }
    assert_eq!(set(&["PURGE", "GET"]).to_string(), "GET, PURGE");
    assert_eq!(MethodSet::named("BREW"), None);
}

#[test]
fn remote_addresses_are_networks() {
    let cases = [
        ("10.0.0.0/8", "10.1.2.3", true),
        ("10.0.0.0/8", "11.1.2.3", false),
        ("10.1.2.3/32", "10.1.2.3", true),
        ("10.0.0.0/8", "::ffff:10.1.2.3", true),
        ("::ffff:10.0.0.0/104", "10.1.2.3", true),
        ("::ffff:10.0.0.0/104", "11.1.2.3", false),
        ("2001:db8::/32", "2001:db8::1", true),
        ("2001:db8::/32", "2001:db9::1", false),
        ("::/0", "10.1.2.3", false),
        ("0.0.0.0/0", "2001:db8::1", false),
    ];
    for (network, remote, expected) in cases {
        let route = Route { remote_addrs: vec![network.parse().unwrap()], ..path("/") };
        let query = Query { remote: remote.parse().unwrap(), ..query("h", "/") };
        assert_eq!(found(HOST_URI, &[route], &query).is_some(), expected, "{remote} in {network}");
    }
}

#[test]
fn vars_see_the_request_and_the_parameters_of_the_candidate() {
    let cases = [
        (with_vars("/:id", &json!([["http_user_agent", "~~", "^curl"]])), true),
        (with_vars("/:id", &json!([["http_user_agent", "~~", "^wget"]])), false),
        (with_vars("/:id", &json!([["uri_param_id", "==", 7]])), true),
        (with_vars("/:id", &json!([["uri_param_id", "==", 8]])), false),
        (with_vars("/:id", &json!([["uri_param_other", "==", null]])), true),
        (with_vars("/7", &json!([["uri_param_id", "==", null]])), true),
        (with_vars("/*", &json!([["uri_param_id", "==", "outer"]])), false),
    ];
    for (route, expected) in cases {
        assert_eq!(found(PARAMETERS, std::slice::from_ref(&route), &query("h", "/7")).is_some(), expected, "{route:?}");
    }
}

#[test]
fn a_candidate_that_fails_gives_way() {
    let post = MethodSet::named("POST").unwrap();
    let routes = vec![
        Route { methods: post, ..hosted("a.t", "/x/y") },
        Route { remote_addrs: vec!["10.0.0.0/8".parse().unwrap()], ..hosted("a.t", "/x/*") },
        Route { hosts: vec!["*.t".into()], ..with_vars("/x/y", &json!([["uri", null], ["http_user_agent", "wget"]])) },
        Route { methods: post, ..path("/x/:id") },
        path("/x/*"),
        path("/*"),
        hosted("b.t", "/x/y"),
        path("/z"),
    ];
    let steps = |mode: Mode, text: &str| {
        let router = Router::build(mode, routes.clone()).unwrap();
        let steps = router.explain(&query("a.t", text));
        steps.into_iter().map(|step| (step.route, step.outcome)).collect::<Vec<_>>()
    };
    use Outcome::*;
    let vars = || Vars("[1]".to_owned());
    let expected = [(0, Method), (1, RemoteAddr), (2, vars()), (4, Chosen), (5, NotTried), (6, Host)];
    assert_eq!(steps(HOST_URI, "/x/y"), expected);
    let expected = [(0, Method), (2, vars()), (6, Host), (3, Method), (1, RemoteAddr), (4, Chosen), (5, NotTried)];
    assert_eq!(steps(PARAMETERS, "/x/y"), expected);
    assert_eq!(steps(HOST_URI, "/z"), [(7, Chosen), (5, NotTried)]);
    assert_eq!(steps(HOST_URI, "none"), []);
    assert_eq!(found(HOST_URI, &routes, &query("a.t", "/x/y")), Some(4));
}

#[test]
fn a_route_that_cannot_be_compiled_is_named() {
    let hosts = |host: &str| Route { hosts: vec!["good".into(), host.into()], ..path("/") };
    let paths =
        |paths: &[&str]| Route { paths: paths.iter().map(|path| (*path).to_owned()).collect(), ..Route::default() };
    let cases = [
        (paths(&[]), "paths", "a route needs at least one path"),
        (paths(&["/", ""]), "paths[1]", "path is empty"),
        (paths(&["/*".repeat(200).as_str()]), "paths[0]", "path has more than 128 segments from its first wildcard on"),
        (hosts(""), "hosts[1]", "host is empty"),
        (hosts("a.*.t"), "hosts[1]", "host 'a.*.t' has a '*' that is not its first character"),
        (hosts("**"), "hosts[1]", "host '**' has a '*' that is not its first character"),
        (hosts("a/b"), "hosts[1]", "host 'a/b' has a character that no host has: '/'"),
        (Route { hosts: vec!["h".into(); 70_000], ..path("/") }, "hosts", "too many hosts for one route"),
        (Route { paths: vec!["/".into(); 70_000], ..path("/") }, "paths", "too many paths for one route"),
    ];
    for (route, field, message) in cases {
        let error = Router::build(HOST_URI, vec![path("/"), route]).err().unwrap();
        assert_eq!(error, BuildError { route: 1, path: field.to_owned(), message: message.to_owned() });
    }
}

#[test]
fn an_empty_router_finds_nothing() {
    for mode in [HOST_URI, URI, PARAMETERS] {
        assert_eq!(found(mode, &[], &query("h", "/")), None);
        assert_eq!(found(mode, &[], &query("", "")), None);
    }
}

#[test]
fn a_path_with_literal_text_like_a_wildcard_is_reported() {
    let cases = [
        (HOST_URI, "/a/:id", Some("':id' in '/a/:id' is matched by its letters")),
        (URI, "/a/:id/b", Some("':id'")),
        (PARAMETERS, "/a/:id", None),
        (HOST_URI, "/a/:", None),
        (HOST_URI, "/v1/users:batch", None),
        (HOST_URI, "/a/b*", None),
        (HOST_URI, "/a/*", None),
        (HOST_URI, "*", None),
        (HOST_URI, "/a/*/b", None),
        (HOST_URI, "/a/*rest", None),
        (HOST_URI, "/a/*.php", Some("'.php' behind the '*'")),
        (HOST_URI, "/a/b*c", Some("the '*' in 'b*c'")),
        (HOST_URI, "/a/b*/c", Some("the '*' in 'b*'")),
        (HOST_URI, "/a/*/b*", Some("the '*' in 'b*'")),
        (PARAMETERS, "/a/:id/b*", Some("the '*' in 'b*'")),
        (HOST_URI, "/a**", Some("the '*' in 'a**'")),
        (HOST_URI, "api/v1", Some("can never match")),
    ];
    for (mode, text, expected) in cases {
        let warning = literal_parameter(mode, text);
        match expected {
            None => assert_eq!(warning, None, "{text}"),
            Some(part) => assert!(warning.as_ref().is_some_and(|w| w.contains(part)), "{text}: {warning:?}"),
        }
    }
}

#[test]
fn a_router_is_shared_between_workers() {
    fn shareable<T: Send + Sync>(_: &T) {}
    shareable(&Router::build(URI, vec![]).unwrap());
}

/// First bytes of the children of one node, from a single one to all that a URI may have, with gaps; and labels on both
/// sides of the length that lies in a node.
#[test]
fn a_node_finds_each_of_its_children() {
    let printable = || (b'!'..=b'~').filter(|byte| !b"*?:#".contains(byte)).map(char::from);
    for step in [1, 2, 7, 63, 64, 65, 90] {
        for label in ["", "1234567", "12345678", "123456789", "a-label-of-many-bytes"] {
            let firsts: Vec<char> = printable().step_by(step).collect();
            let routes: Vec<Route> = firsts.iter().map(|first| path(&format!("/x{first}{label}/*"))).collect();
            let router = Router::build(HOST_URI, routes).unwrap();
            for asked in printable().chain(['\u{e9}', '\u{7f}']) {
                let expected = firsts.iter().position(|first| *first == asked);
                let path = format!("/x{asked}{label}/rest");
                let found = router.find(&query("", &path), &mut Params::default());
                assert_eq!(found.map(|found| found.route as usize), expected, "{path} of {firsts:?}");
                let cut = format!("/x{asked}{}", &label[..label.len().saturating_sub(1)]);
                assert!(router.find(&query("", &cut), &mut Params::default()).is_none(), "{cut}");
            }
        }
    }
}
