//! The route that takes a request, by the reference's rules of precedence.

use serde_json::{Value, json};

use crate::harness::{Protocol, Start, each, over_both};

over_both!(
    paths_go_from_exact_to_prefix_and_from_long_to_short,
    a_route_whose_conditions_fail_leaves_the_request_to_the_next,
    hosts_go_before_paths_by_default,
    hosts_are_a_condition_with_the_path_router,
    parameters_are_parameters_only_with_their_router,
    every_operator_of_vars_decides,
);

/// A route that answers with its id.
fn route(id: &str, fields: Value) -> Value {
    let mut route = json!({ "id": id, "plugins": { "mocking": { "response_example": id } } });
    let Value::Object(fields) = fields else { panic!("fields are an object") };
    route.as_object_mut().expect("a route is an object").extend(fields);
    route
}

/// A request (method and target, then field lines) and the route that takes it; none is 404.
type Case = (&'static str, &'static str);

fn check(over: Protocol, router: &str, routes: &[Value], cases: &[Case]) {
    let services = json!([{ "id": "hosted", "hosts": ["service.test"] }]);
    let config = json!({ "routes": routes, "services": services });
    let gateway = Start::new(config).settings(json!({ "router": router })).over(over).start();
    each(
        cases,
        |case| format!("{case:?}"),
        |(request, id)| {
            if over == Protocol::Http2 && request.contains(" http://") {
                return; // HTTP/2 has no absolute targets.
            }
            let (line, fields) = request.split_once('\n').unwrap_or((request, "Host: a.test"));
            let fields: String = fields.lines().map(|field| format!("{field}\r\n")).collect();
            let response = gateway.caller().request(format!("{line} HTTP/1.1\r\n{fields}\r\n"));
            match *id {
                "" => assert_eq!(response.status, 404, "{response:?}"),
                id => assert_eq!((response.status, response.text().as_str()), (200, id)),
            }
        },
    );
}

fn paths_go_from_exact_to_prefix_and_from_long_to_short(over: Protocol) {
    let routes = [
        route("exact", json!({ "uri": "/a/b" })),
        route("long", json!({ "uri": "/a/b/*" })),
        route("short", json!({ "uri": "/a/*", "priority": 100 })),
        route("by-character", json!({ "uri": "/ab*" })),
        route("several", json!({ "uris": ["/one", "/two", "/three/*"] })),
        route("slash", json!({ "uri": "/slash/" })),
        route("encoded", json!({ "uri": "/caf\u{e9}/x y" })),
        route("off", json!({ "uri": "/off", "status": 0 })),
        route("star", json!({ "uri": "/star*", "priority": -5 })),
    ];
    check(
        over,
        "radixtree_host_uri",
        &routes,
        &[
            ("GET /a/b", "exact"),
            ("GET /a/b?x=/a/b/c", "exact"),
            ("GET /a/b/c", "long"),
            ("GET /a/b/", "long"),
            ("GET /a/c", "short"),
            ("GET /a/", "short"),
            ("GET /a", ""),
            ("GET /ab", "by-character"),
            ("GET /abc/d", "by-character"),
            ("GET /two", "several"),
            ("GET /three/x", "several"),
            ("GET /three", ""),
            ("GET /slash/", "slash"),
            ("GET /slash", ""),
            ("GET /caf%c3%a9/x%20y", "encoded"),
            ("GET /off", ""),
            ("GET /starry", "star"),
            ("GET /A/B", ""),
            ("GET /", ""),
        ],
    );
}

fn a_route_whose_conditions_fail_leaves_the_request_to_the_next(over: Protocol) {
    let routes = [
        route("post", json!({ "uri": "/m/x", "methods": ["POST", "PUT"] })),
        route(
            "from-elsewhere",
            json!({ "uri": "/m/x", "remote_addrs": ["10.0.0.0/8", "2001:db8::/32"], "priority": 9 }),
        ),
        route("vip", json!({ "uri": "/m/x", "vars": [["arg_vip", "==", "1"]], "priority": 5 })),
        route("rest", json!({ "uri": "/m/*" })),
        route("local", json!({ "uri": "/local", "remote_addr": "127.0.0.0/8" })),
        route("head", json!({ "uri": "/head", "methods": ["HEAD"] })),
        route("first", json!({ "uri": "/order", "priority": 2 })),
        route("second", json!({ "uri": "/order", "priority": 1 })),
    ];
    check(
        over,
        "radixtree_host_uri",
        &routes,
        &[
            ("POST /m/x", "post"),
            ("GET /m/x", "rest"),
            ("GET /m/x?vip=1", "vip"),
            ("POST /m/x?vip=1", "vip"),
            ("GET /m/x?vip=2", "rest"),
            ("GET /local", "local"),
            ("GET /head", ""),
            ("GET /order", "first"),
        ],
    );
}

fn hosts_go_before_paths_by_default(over: Protocol) {
    let routes = [
        route("path", json!({ "uri": "/x" })),
        route("exact-host", json!({ "uri": "/*", "host": "foo.test" })),
        route("any-below", json!({ "uri": "/*", "host": "*.foo.test" })),
        route("deeper-below", json!({ "uri": "/*", "hosts": ["*.a.foo.test", "other.test"] })),
        route("with-port", json!({ "uri": "/*", "host": "port.test:8080" })),
        route("upper", json!({ "uri": "/*", "host": "UPPER.test" })),
        route("of-the-service", json!({ "uri": "/*", "service_id": "hosted" })),
        route("everywhere", json!({ "uri": "/*" })),
    ];
    check(
        over,
        "radixtree_host_uri",
        &routes,
        &[
            ("GET /x\nHost: foo.test", "exact-host"),
            ("GET /x\nHost: FOO.test:81", "exact-host"),
            ("GET /x\nHost: b.foo.test", "any-below"),
            ("GET /x\nHost: c.b.foo.test", "any-below"),
            ("GET /x\nHost: b.a.foo.test", "deeper-below"),
            ("GET /x\nHost: a.foo.test", "any-below"),
            ("GET /x\nHost: other.test", "deeper-below"),
            ("GET /x\nHost: port.test:8080", "with-port"),
            ("GET /x\nHost: port.test:81", "path"),
            ("GET /x\nHost: upper.TEST", "upper"),
            ("GET /x\nHost: service.test", "of-the-service"),
            ("GET /x\nHost: nofoo.test", "path"),
            ("GET /y\nHost: nofoo.test", "everywhere"),
        ],
    );
}

fn hosts_are_a_condition_with_the_path_router(over: Protocol) {
    let routes = [
        route("path", json!({ "uri": "/x" })),
        route("host", json!({ "uri": "/*", "host": "foo.test" })),
        route("high", json!({ "uri": "/p", "priority": 5 })),
        route("low", json!({ "uri": "/p", "host": "foo.test" })),
    ];
    check(
        over,
        "radixtree_uri",
        &routes,
        &[
            ("GET /x\nHost: foo.test", "path"),
            ("GET /y\nHost: foo.test", "host"),
            ("GET /y\nHost: bar.test", ""),
            ("GET /p\nHost: foo.test", "high"),
        ],
    );
}

fn parameters_are_parameters_only_with_their_router(over: Protocol) {
    let routes = [
        route("order", json!({ "uri": "/user/:id/order/:order" })),
        route("user", json!({ "uri": "/user/:id" })),
        route("me", json!({ "uri": "/user/me" })),
        route("tail", json!({ "uri": "/files/*rest" })),
    ];
    check(
        over,
        "radixtree_uri_with_parameter",
        &routes,
        &[
            ("GET /user/7", "user"),
            ("GET /user/me", "me"),
            ("GET /user/", ""),
            ("GET /user/7/", ""),
            ("GET /user/7/order/8", "order"),
            ("GET /user/7/order", ""),
            ("GET /files/a/b", "tail"),
        ],
    );
    check(over, "radixtree_host_uri", &routes[..2], &[("GET /user/7", ""), ("GET /user/:id", "user")]);
}

fn every_operator_of_vars_decides(over: Protocol) {
    let with = |id: &str, vars: Value| route(id, json!({ "uri": "/v", "vars": vars }));
    let cases: &[(Value, &str, bool)] = &[
        (json!([["arg_a", "==", "1"]]), "GET /v?a=1", true),
        (json!([["arg_a", "1"]]), "GET /v?a=1", true),
        (json!([["arg_a", "~=", "1"]]), "GET /v?a=2", true),
        (json!([["arg_a", "~=", "1"]]), "GET /v?a=1", false),
        (json!([["arg_a", ">", 9]]), "GET /v?a=10", true),
        (json!([["arg_a", ">", 9]]), "GET /v?a=9", false),
        (json!([["arg_a", ">=", 9]]), "GET /v?a=9", true),
        (json!([["arg_a", "<", 9]]), "GET /v?a=10", false),
        (json!([["arg_a", "<=", 9]]), "GET /v?a=9", true),
        (json!([["arg_a", "~~", "^[a-c]+$"]]), "GET /v?a=abc", true),
        (json!([["arg_a", "~~", "^[a-c]+$"]]), "GET /v?a=ABC", false),
        (json!([["arg_a", "~*", "^[a-c]+$"]]), "GET /v?a=ABC", true),
        (json!([["arg_a", "in", ["1", "2"]]]), "GET /v?a=2", true),
        (json!([["arg_a", "in", ["1", "2"]]]), "GET /v?a=3", false),
        (json!([["arg_a", "!", "in", ["1", "2"]]]), "GET /v?a=3", true),
        (json!([["remote_addr", "ipmatch", ["127.0.0.0/8"]]]), "GET /v", true),
        (json!([["remote_addr", "ipmatch", ["10.0.0.0/8", "::1"]]]), "GET /v", false),
        (json!([["http_x_kind", "==", "b"]]), "GET /v\nHost: a\nX-Kind: b", true),
        (json!([["cookie_c", "==", "b"]]), "GET /v\nHost: a\nCookie: a=1; c=b", true),
        (json!([["request_method", "==", "PUT"]]), "PUT /v", true),
        (json!([["host", "==", "b.test"]]), "GET /v\nHost: B.test:81", true),
        (json!([["uri", "==", "/v"]]), "GET //v", true),
        (json!([["arg_admin", "==", "true"]]), "GET /v?admin=%74rue", true),
        (json!([["arg_admin", "==", "true"]]), "GET /v?x=%26&%61dmin=true", true),
        (json!([["arg_admin", "==", "true"]]), "GET /v?x=%26admin=true", false),
        (json!([["arg_a b", "==", "c d"]]), "GET /v?a+b=c%20d", true),
        (json!([["arg_a", "==", true]]), "GET /v?a&a=1", true),
        (json!([["arg_a", "==", "true"]]), "GET /v?a", false),
        (json!([["request_uri", "==", "/v?a=%31"]]), "GET /v?a=%31", true),
        (json!([["request_uri", "==", "/v?a=%31"]]), "GET //x/..//%76?a=%31", true),
        (json!([["request_uri", "==", "/v"]]), "GET /v?", true),
        (json!([["request_uri", "==", "/v?a"]]), "GET http://a.test/v?a", true),
        (json!([["real_request_uri", "==", "//x/..//%76?a=%31"]]), "GET //x/..//%76?a=%31", true),
        (json!([["real_request_uri", "==", "/v?"]]), "GET http://a.test/v?", true),
        (json!([["request_uri", "~~", "^/v\\Z"]]), "GET /%76", true),
        (json!([["arg_a", "IN", ["1"]], ["or", ["arg_b", "<", "x"], ["arg_a", "==", "1"]]]), "GET /v?a=1&b=a", true),
        (json!([["arg_a", "<", "b"]]), "GET /v?a=a", false),
        (json!([["arg_none", "==", null]]), "GET /v", true),
        (json!([["arg_a", "==", "1"], ["arg_b", "==", "2"]]), "GET /v?a=1", false),
        (json!(["OR", ["arg_a", "==", "1"], ["arg_b", "==", "2"]]), "GET /v?b=2", true),
        (json!(["!AND", ["arg_a", "==", "1"], ["arg_b", "==", "2"]]), "GET /v?a=1", true),
        (json!(["!OR", ["arg_a", "==", "1"], ["arg_b", "==", "2"]]), "GET /v?b=2", false),
        (json!([["arg_c", "==", "3"], ["OR", ["arg_a", "==", "1"], ["arg_b", "==", "2"]]]), "GET /v?b=2&c=3", true),
    ];
    each(
        cases,
        |case| format!("{case:?}"),
        |(vars, request, holds)| {
            let expected = if *holds { "held" } else { "" };
            let request: &'static str = request;
            check(over, "radixtree_host_uri", &[with("held", vars.clone())], &[(request, expected)]);
        },
    );
}
