//! Every limit of the resource model: what is just inside is taken, what is just outside is refused at its place.

use serde_json::{Value, json};
use weir_config::resource::{HostKind, NodeHost, Status};
use weir_config::unsupported::{Owner, UNSUPPORTED, When};
use weir_config::{Document, Id, Node, load};

use crate::support::{OPTIONS, load_with};

/// A field, values that are taken and values that are refused.
struct Limit {
    section: &'static str,
    field: &'static str,
    good: Vec<Value>,
    bad: Vec<Value>,
}

fn limit(section: &'static str, field: &'static str, good: Value, bad: Value) -> Limit {
    let list = |value: Value| value.as_array().cloned().expect("values come as a list");
    Limit { section, field, good: list(good), bad: list(bad) }
}

/// A text that looks like PEM.
fn pem(length: usize) -> String {
    let begin = "-----BEGIN ";
    format!("{begin}{}", "x".repeat(length - begin.len()))
}

fn text(length: usize) -> Value {
    "x".repeat(length).into()
}

fn limits() -> Vec<Limit> {
    let path = |length: usize| format!("/{}", "x".repeat(length - 1));
    let mut limits = vec![
        limit("routes", "uri", json!(["/", path(4096), "*"]), json!(["", path(4097), 5, null, ["/a"]])),
        limit("routes", "uris", json!([["/a"], ["/a", "/a/*"]]), json!([[], ["/a", "/a"], "/a", [""], [path(4097)]])),
        limit("routes", "priority", json!([0, -1, 400, i64::MAX]), json!(["1", 1.5, true])),
        limit(
            "routes",
            "methods",
            json!([[], ["GET"], ["PURGE", "TRACE", "CONNECT"]]),
            json!([["get"], ["GET", "GET"], "GET", ["LINK"], [1]]),
        ),
        limit(
            "routes",
            "host",
            json!(["a", "*", "*.a.b", "A-b_c.d", "[::1]:80", "a:80", "*x"]),
            json!(["", "a b", "a*", "a.*", "**", "http://a", "ä.de", 1]),
        ),
        limit("routes", "hosts", json!([["a"], ["a", "*.b"]]), json!([[], ["a", "a"], "a", ["a/b"]])),
        limit(
            "routes",
            "remote_addr",
            json!(["127.0.0.1", "10.0.0.0/8", "10.1.2.3/8", "::1", "fd00::/8", "0.0.0.0/0"]),
            json!(["", "localhost", "10.0.0.0/33", "1.2.3", "::1/129", "10.0.0.0/", 1]),
        ),
        limit(
            "routes",
            "remote_addrs",
            json!([["127.0.0.1"]]),
            json!([[], ["127.0.0.1", "127.0.0.1"], ["x"], "127.0.0.1"]),
        ),
        limit(
            "routes",
            "vars",
            json!([[["arg_a", "==", 1]], []]),
            json!(["x", [["arg_a", "???", 1]], [["no_such_thing", "==", 1]], {}]),
        ),
        limit("routes", "enable_websocket", json!([true, false]), json!(["true", 1])),
        limit("routes", "status", json!([0, 1]), json!([2, "1", true, -1])),
        limit("routes", "plugin_config_id", json!([1]), json!([0, "", "a b", -1, 1.5, [], true])),
        limit("routes", "service_id", json!([1]), json!([0, "", "a/b"])),
        limit("routes", "upstream_id", json!([1, "1"]), json!([0, "", "ü"])),
        limit(
            "routes",
            "plugins",
            json!([{}, {"prometheus": {}}]),
            json!([[], "x", {"prometheus": 1}, {"prometheus": []}]),
        ),
        limit(
            "routes",
            "timeout",
            json!([{"connect": 0.001, "send": 1, "read": 60}]),
            json!([{}, 5, {"connect": 1, "send": 1}]),
        ),
        limit("services", "hosts", json!([["a"]]), json!([[], ["a", "a"]])),
        limit("services", "enable_websocket", json!([true]), json!(["yes"])),
        limit(
            "upstreams",
            "nodes",
            json!([{}, [], {"a:1": 0}, {"a:65535": 4294967295_u32}, {"[::1]:80": 1}, [{"host": "a", "port": 1, "weight": 0, "priority": -5, "metadata": {}}], {"unix:/run/a.sock": 1}, [{"host": "unix:/a b", "weight": 1}]]),
            json!([5, {"unix:a.sock": 1}, {"unix:/a.sock:80": 1}, {"unix:/": 1}, {"unix:": 1}, {"unix@/a": 1}, {"/a.sock": 1}, [{"host": "unix:/a", "port": 80, "weight": 1}], [{"host": "unix:a", "weight": 1}], "a:80", {"a:0": 1}, {"a:65536": 1}, {"a:80": -1}, {"a:80": 1.5}, {"a:80": "1"}, {"::1": 1}, {"::1:80": 1}, {"http://a:80": 1}, {"a:80/x": 1}, {"": 1}, {"a:": 1}, {"a b:1": 1},
                [{"host": "a", "port": 1}], [{"port": 1, "weight": 1}], [{"host": "a", "port": 0, "weight": 1}], [{"host": "a", "port": 65536, "weight": 1}], [{"host": "::1", "port": 1, "weight": 1}],
                [{"host": "a", "port": 1, "weight": 1, "x": 1}], [{"host": "a", "port": 1, "weight": 1, "priority": 1.5}], ["a:80"]]),
        ),
        limit("upstreams", "type", json!(["roundrobin", "ewma", "least_conn"]), json!(["random", 5])),
        limit("upstreams", "retries", json!([0, 5]), json!([-1, 1.5, "1"])),
        limit("upstreams", "retry_timeout", json!([0, 0.5, 60]), json!([-0.1, "1"])),
        limit(
            "upstreams",
            "scheme",
            json!(["http", "https", "grpc", "grpcs", "tcp", "tls", "udp"]),
            json!(["kafka", "ftp", 1]),
        ),
        limit("upstreams", "http2", json!([true, false]), json!(["yes", 1])),
        limit("upstreams", "proxy_protocol", json!(["v1", "v2"]), json!([true, "on", 1, "v3"])),
        limit("upstreams", "pass_host", json!(["pass", "node"]), json!(["rewrite", "none", 1])),
        limit("upstreams", "upstream_host", json!(["a.b", "a:80"]), json!(["", "a b", "a/b", 1])),
        limit(
            "upstreams",
            "keepalive_pool",
            json!([{}, {"size": 1, "idle_timeout": 0, "requests": 1}, {"idle_timeout": 0.5}]),
            json!([{"size": 0}, {"requests": 0}, {"idle_timeout": -1}, {"sizes": 1}, 5]),
        ),
        limit(
            "upstreams",
            "checks",
            json!([{"active": {}}, {"active": {}, "passive": {}}]),
            json!([{}, {"passive": {}}, {"active": {}, "passives": {}}, {"active": 1}, [], 5]),
        ),
        limit(
            "upstreams",
            "tls",
            json!([{}, {"verify": true}, {"client_cert": pem(128), "client_key": pem(128)}]),
            json!([{"verify": 1}, {"client_cert": pem(128)}, {"client_key": pem(128)}, {"client_cert": pem(127), "client_key": pem(128)},
                {"client_cert_id": "none"}, {"client_cert_id": 1, "client_cert": pem(128), "client_key": pem(128)}, {"verfy": true}, 5]),
        ),
        limit(
            "ssls",
            "sni",
            json!(["a.test", "*.a.test", "*", "10.0.0.1"]),
            json!(["", "a*", "*a.test", "a b", "http://a", 5]),
        ),
        limit("ssls", "cert", json!([pem(128), pem(65536)]), json!([pem(127), pem(65537), "/etc/ssl/a.pem", 5])),
        limit("ssls", "key", json!([pem(64)]), json!([pem(63), "key.pem", 5])),
        limit("ssls", "certs", json!([[]]), json!([[pem(128)], [5], 5])),
        limit("ssls", "type", json!(["server", "client"]), json!(["both", 1])),
        limit("ssls", "status", json!([0, 1]), json!([2, true])),
        limit(
            "ssls",
            "ssl_protocols",
            json!([[], ["TLSv1.2"], ["TLSv1.2", "TLSv1.3"], ["TLSv1.1", "TLSv1.2", "TLSv1.3"]]),
            json!([["TLSv1.1"], ["TLSv1"], ["TLSv1.2", "TLSv1.2"], "TLSv1.2"]),
        ),
        limit(
            "ssls",
            "client",
            json!([{"ca": pem(128)}, {"ca": pem(128), "depth": 0, "skip_mtls_uri_regex": ["^/health$"]}]),
            json!([{}, {"ca": pem(127)}, {"ca": pem(128), "depth": -1}, {"ca": pem(128), "skip_mtls_uri_regex": []}, {"ca": pem(128), "x": 1}]),
        ),
        limit("upstreams", "service_name", json!(["a"]), json!(["", 5])),
        limit("upstreams", "discovery_type", json!(["dns", "consul"]), json!(["gossip", 5])),
        limit("upstreams", "discovery_args", json!([{}, { "group_name": "g" }]), json!(["g", 5])),
        limit(
            "routes",
            "filter_func",
            json!(["function(vars) return true end"]),
            json!(["function", "return function() end", 1]),
        ),
        limit("routes", "script", json!([]), json!(["return true"])),
        limit("routes", "script_id", json!([1, "a"]), json!(["", []])),
        limit("services", "script", json!(["return true"]), json!(["return", 1])),
        limit(
            "consumers",
            "username",
            json!(["a", "a-b_C9", "x".repeat(256)]),
            json!(["", "x".repeat(257), "a.b", "a b", 5]),
        ),
        limit("consumers", "group_id", json!([1]), json!([0, ""])),
        limit("consumers", "plugins", json!([{}, {"key-auth": {"key": "k"}}]), json!([{"key-auth": {}}, []])),
        limit(
            "consumers",
            "credentials",
            json!([[], [{"plugins": {"key-auth": {"key": "k"}}}]]),
            json!([{}, [{"plugins": {"key-auth": {}}}], [{"plugins": {"prometheus": {}}}], [{"plugins": {"key-auth": {"key": "k"}, "mocking": {}}}], [{"id": "a/b"}]]),
        ),
        limit("consumer_groups", "plugins", json!([{}]), json!([[]])),
        limit("plugin_configs", "plugins", json!([{}]), json!([[]])),
        limit("plugin_configs", "name", json!(["", "x".repeat(1000)]), json!([1])),
        limit("global_rules", "plugins", json!([{}]), json!([[]])),
        limit("global_rules", "name", json!([]), json!(["a"])),
        limit("global_rules", "desc", json!([]), json!(["a"])),
        limit("global_rules", "labels", json!([]), json!([{}])),
    ];
    for section in ["routes", "services", "upstreams", "consumer_groups", "plugin_configs", "global_rules"] {
        let good = json!(["a", "x".repeat(64), "A-b_c.9", 1, i64::MAX]);
        limits.push(limit(section, "id", good, json!(["", "x".repeat(65), "a b", "a/b", 0, -1, 1.5, true, []])));
    }
    for section in ["routes", "services", "upstreams", "consumer_groups"] {
        limits.push(limit(section, "name", json!(["a", "ü".repeat(256)]), json!(["", text(257), 1])));
    }
    for section in ["routes", "services", "upstreams", "consumers", "consumer_groups", "plugin_configs"] {
        limits.push(limit(section, "desc", json!(["", text(256)]), json!([text(257), 1])));
        let bad = json!([{"a": ""}, {"a": "b c"}, {"a": 1}, {"a": text(257)}, []]);
        limits.push(limit(section, "labels", json!([{}, {"a": "b"}, {"a": text(256)}]), bad));
    }
    for section in ["routes", "services", "upstreams", "consumers", "consumer_groups", "plugin_configs", "global_rules"]
    {
        for field in ["create_time", "update_time"] {
            limits.push(limit(section, field, json!([0, 1700000000]), json!(["now", 1.5])));
        }
        limits.push(limit(section, "no_such_field", json!([]), json!([1])));
    }
    for name in ["connect", "send", "read"] {
        for value in [json!(0), json!(-1), json!("1")] {
            let mut timeout = json!({ "connect": 1, "send": 1, "read": 1 });
            timeout[name] = value;
            limits.push(limit("routes", "timeout", json!([]), json!([timeout.clone()])));
            limits.push(limit("upstreams", "timeout", json!([]), json!([timeout])));
        }
    }
    for (meta, good) in [
        (json!({}), true),
        (json!({ "disable": true, "priority": -5, "filter": [["arg_a", "==", 1]], "error_response": "x" }), true),
        (json!({ "error_response": { "a": 1 } }), true),
        (json!({ "disable": 1 }), false),
        (json!({ "priority": 1.5 }), false),
        (json!({ "filter": "x" }), false),
        (json!({ "filter": [["x"]] }), false),
        (json!({ "error_response": 1 }), false),
        (json!({ "pre_function": "return 1" }), true),
        (json!({ "weight": 1 }), false),
        (json!([]), false),
    ] {
        let value = json!([{ "prometheus": { "_meta": meta } }]);
        let (good, bad) = if good { (value, json!([])) } else { (json!([]), value) };
        limits.push(limit("routes", "plugins", good, bad));
    }
    limits
}

/// A document with one item that is whole but for the field.
fn document(section: &str, field: &str, value: Value) -> Value {
    let mut item = match section {
        "routes" => json!({ "uri": "/a", "plugins": {} }),
        "upstreams" if matches!(field, "service_name" | "discovery_type") => {
            json!({ "service_name": "a", "discovery_type": "dns" })
        }
        "upstreams" => json!({ "nodes": {} }),
        "consumers" => json!({ "username": "jack" }),
        "services" => json!({}),
        "ssls" => json!({ "sni": "a", "cert": pem(128), "key": pem(128) }),
        _ => json!({ "plugins": {} }),
    };
    if field == "uris" {
        item.as_object_mut().expect("an item is a mapping").remove("uri");
    }
    item[field] = value;
    let mut document = json!({
        "upstreams": [{ "id": 1, "nodes": {} }],
        "services": [{ "id": 1 }],
        "plugin_configs": [{ "id": 1, "plugins": {} }],
        "consumer_groups": [{ "id": 1, "plugins": {} }],
    });
    match document.get_mut(section).and_then(Value::as_array_mut) {
        Some(items) => items.push(item),
        None => document[section] = json!([item]),
    }
    document
}

#[test]
fn every_limit_holds() {
    let mut wrong = Vec::new();
    for Limit { section, field, good, bad } in limits() {
        for value in good {
            let text = document(section, field, value).to_string();
            let loaded = load_with(&text, &OPTIONS);
            let errors: Vec<String> = loaded.errors().map(ToString::to_string).collect();
            if loaded.document.is_none() || !errors.is_empty() {
                wrong.push(format!("refused: {text:.300}\n  {errors:?}"));
            }
        }
        for value in bad {
            let text = document(section, field, value.clone()).to_string();
            let loaded = load_with(&text, &OPTIONS);
            let place = format!("].{field}");
            let at_its_place = loaded.errors().all(|error| {
                error.path.starts_with(section)
                    && error.mark.is_known()
                    && (error.path.contains(&place) || value.is_null())
            });
            if loaded.document.is_some() || loaded.errors().next().is_none() || !at_its_place {
                wrong.push(format!("taken, or refused elsewhere: {text:.300}\n  {:?}", loaded.diagnostics));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rules_between_fields_hold() {
    let cases = [
        (json!({"routes": [{"plugins": {}}]}), "routes[0]: a route needs uri or uris"),
        (
            json!({"routes": [{"uri": "/a", "uris": ["/b"], "plugins": {}}]}),
            "routes[0].uris: only one of uri and uris is allowed",
        ),
        (
            json!({"routes": [{"uri": "/a", "host": "a", "hosts": ["b"], "plugins": {}}]}),
            "routes[0].hosts: only one of host and hosts is allowed",
        ),
        (
            json!({"routes": [{"uri": "/a", "remote_addr": "::1", "remote_addrs": ["::1"], "plugins": {}}]}),
            "routes[0].remote_addrs: only one of remote_addr and remote_addrs is allowed",
        ),
        (
            json!({"routes": [{"uri": "/a"}]}),
            "routes[0]: a route needs at least one of plugins, upstream, upstream_id and service_id",
        ),
        (
            json!({"routes": [{"uri": "/a", "plugin_config_id": 1}], "plugin_configs": [{"id": 1, "plugins": {}}]}),
            "routes[0]: a route needs at least one of plugins, upstream, upstream_id and service_id",
        ),
        (json!({"upstreams": [{}]}), "upstreams[0]: the field nodes is missing"),
        (
            json!({"upstreams": [{"nodes": {}, "pass_host": "rewrite"}]}),
            "upstreams[0].pass_host: pass_host: rewrite needs upstream_host",
        ),
        (json!({"consumers": [{}]}), "consumers[0]: the field username is missing"),
        (
            json!({"consumers": [{"username": "a", "id": "b"}]}),
            "consumers[0].id: the id of a consumer is its username; this one differs",
        ),
        (json!({"global_rules": [{"id": 1}]}), "global_rules[0]: the field plugins is missing"),
        (json!({"consumer_groups": [{"id": 1}]}), "consumer_groups[0]: the field plugins is missing"),
        (
            json!({"plugin_metadata": [{"x": 1}]}),
            "plugin_metadata[0]: an item of plugin_metadata needs an id: the name of its plugin",
        ),
        (
            json!({"plugin_metadata": [{"id": "limit-count", "x": 1}]}),
            "plugin_metadata[0].x: unknown field; no fields are known here",
        ),
        (
            json!({"plugin_metadata": [{"id": "limit-cuont"}]}),
            "plugin_metadata[0].id: there is no plugin \"limit-cuont\"; did you mean limit-count?",
        ),
        (
            json!({"ssls": [{"cert": pem(128), "key": pem(128)}]}),
            "ssls[0]: a certificate that is shown to clients needs sni or snis: the names it is for",
        ),
        (
            json!({"ssls": [{"sni": "a", "snis": ["b"], "cert": pem(128), "key": pem(128)}]}),
            "ssls[0].snis: only one of sni and snis is allowed",
        ),
        (
            json!({"ssls": [{"sni": "a", "cert": pem(128), "key": pem(128), "certs": [pem(128)]}]}),
            "ssls[0].certs: 1 certificates in certs, but 0 keys",
        ),
        (
            json!({"protos": [{"content": ""}]}),
            "protos[0].content: expected a text of 1 to 1048576 characters, found \"\"",
        ),
        (
            json!({"protos": [{"id": 1, "content": "syntax = \"proto3\";\nmessage A { B b = 1; }"}]}),
            "protos[0].content: no .proto file: 2:13: name 'B' is not defined",
        ),
        (
            json!({"services": [{"id": "s", "upstream": {"nodes": {}}},
                                {"id": "s/graphql_cost_decorations/a", "field_path": "Query."}]}),
            "services[1].field_path: expected a type and names of fields, such as Product or Query.products, found \"Query.\"",
        ),
        (
            json!({"services": [{"id": "s", "upstream": {"nodes": {}}},
                                {"id": "s/graphql_cost_decorations/a", "field_path": "Query", "add_value": -1}]}),
            "services[1].add_value: expected a number of at least 0, found -1",
        ),
        (
            json!({"services": [{"id": "s", "upstream": {"nodes": {}}},
                                {"id": "s/graphql_cost_decorations/a", "field_path": "Query", "service_id": "t"}]}),
            "services[1].service_id: the item stands below another service than 't'",
        ),
    ];
    for (document, expected) in cases {
        let loaded = load("", document.to_string().as_bytes(), &OPTIONS);
        let errors: Vec<String> = loaded
            .errors()
            .map(|error| error.to_string())
            .map(|error| error.split_once(": ").map_or(error.clone(), |(_, rest)| rest.to_owned()))
            .collect();
        assert_eq!(errors, [expected], "{document}");
        assert!(loaded.document.is_none());
    }
}

#[test]
fn defaults_are_those_of_the_model() {
    let text = json!({
        "routes": [{ "uri": "/a", "upstream": { "nodes": { "Example.com": 2, "[::1]:81": 1, "10.0.0.1:82": 0 } } }],
        "consumers": [{ "username": "jack", "credentials": [{ "plugins": {} }] }],
        "global_rules": [{ "plugins": {} }],
    });
    let loaded = load_with(&text.to_string(), &OPTIONS);
    let Some(Document { routes, consumers, global_rules, .. }) = loaded.document else {
        panic!("{:?}", loaded.diagnostics)
    };
    let route = &routes[0];
    assert_eq!((route.id.as_str(), route.priority, route.status), ("arr_1", 0, Status::Enabled));
    assert!(route.methods.is_empty() && route.host_patterns().next().is_none() && route.timeout.is_none());
    assert_eq!(route.origin.path.to_string(), "routes[0]");
    let upstream = serde_json::to_value(route.upstream.as_ref()).expect("an upstream is JSON");
    let expected = json!({
        "nodes": [
            { "host": "Example.com", "port": 80, "weight": 2, "priority": 0 },
            { "host": "[::1]", "port": 81, "weight": 1, "priority": 0 },
            { "host": "10.0.0.1", "port": 82, "weight": 0, "priority": 0 },
        ],
        "type": "roundrobin",
        "hash_on": "vars",
        "retry_timeout": 0,
        "timeout": { "connect": 60, "send": 60, "read": 60 },
        "scheme": "http",
        "pass_host": "pass",
        "keepalive_pool": { "size": 320, "idle_timeout": 60, "requests": 1000 },
    });
    assert_eq!(upstream, expected);
    let credential = &consumers[0].credentials[0];
    assert_eq!(
        (credential.id.as_str(), credential.origin.path.to_string().as_str()),
        ("arr_1", "consumers[0].credentials[0]")
    );
    assert_eq!(global_rules[0].id, Id::new("arr_1").expect("an id"));
}

#[test]
fn both_spellings_are_read_through_one_accessor() {
    let text = json!({ "routes": [
        { "uri": "/a", "host": "A.Example.com", "remote_addr": "10.1.2.3/8", "methods": ["POST", "GET"], "plugins": {} },
        { "uris": ["/a", "/b"], "hosts": ["*.x", "*"], "remote_addrs": ["::1", "fd00::/8"], "plugins": {} },
    ]});
    let routes = load_with(&text.to_string(), &OPTIONS).document.expect("a document").routes;
    let paths = |at: usize| routes[at].paths().map(|uri| uri.as_str().to_owned()).collect::<Vec<_>>();
    assert_eq!((paths(0), paths(1)), (vec!["/a".into()], vec!["/a".into(), "/b".into()]));
    let hosts: Vec<HostKind<'_>> =
        routes.iter().flat_map(|route| route.host_patterns()).map(|host| host.kind()).collect();
    assert_eq!(hosts, [HostKind::Exact("a.example.com"), HostKind::Suffix(".x"), HostKind::Any]);
    let ranges: Vec<String> = routes.iter().flat_map(|route| route.client_ranges()).map(ToString::to_string).collect();
    assert_eq!(ranges, ["10.0.0.0/8", "::1", "fd00::/8"]);
    assert!(routes[0].client_ranges().all(|range| range.contains("::ffff:10.9.9.9".parse().expect("an address"))));
    let methods: Vec<&str> = routes[0].methods.iter().map(|method| method.as_str()).collect();
    assert_eq!(methods, ["GET", "POST"]);
}

#[test]
fn an_upstream_inside_a_plugin_is_read_alone() {
    let read = |text: &str| weir_config::Upstream::from_node(&Node::parse(text).expect(text).root);
    let (upstream, warnings) = read("nodes: {a: 1}\ntype: round-robin");
    let upstream = upstream.expect("an upstream");
    let warned: Vec<&str> = warnings.iter().map(|warning| warning.path.as_str()).collect();
    assert_eq!(warned, ["type", "nodes.a"]);
    assert_eq!((upstream.nodes[0].port, &upstream.nodes[0].host), (80, &NodeHost::Name("a".into())));
    let (upstream, errors) = read("nodes: {'a:0': 1}\nchecks: {}\nretries: x");
    assert_eq!(upstream, None);
    let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["nodes[\"a:0\"]", "checks", "retries"]);
}

#[test]
fn keys_of_consistent_hashing() {
    let cases = [
        (json!({ "key": "remote_addr" }), None),
        (json!({ "hash_on": "vars", "key": "arg_device-id" }), None),
        (json!({ "hash_on": "header", "key": "X-Session_Id" }), None),
        (json!({ "hash_on": "cookie", "key": "sid" }), None),
        (json!({ "hash_on": "consumer" }), None),
        (json!({ "hash_on": "consumer", "key": "x" }), Some("warning: upstreams[0].key: has no effect with hash_on")),
        (json!({ "hash_on": "vars_combinations", "key": "$host:$arg_a" }), None),
        (
            json!({ "hash_on": "vars_combinations", "key": "host" }),
            Some("warning: upstreams[0].key: names no variable"),
        ),
        (
            json!({ "hash_on": "vars_combinations", "key": "$host$http_header_x" }),
            Some("warning: upstreams[0].key: at character 6: $http_header_x is the field Header-…"),
        ),
        (
            json!({ "hash_on": "header", "key": "header_X-Id" }),
            Some("warning: upstreams[0].key: $http_header_x-id is the field Header-…"),
        ),
        (json!({ "hash_on": "vars_combinations", "key": "$hosst" }), Some("upstreams[0].key: at character 1")),
        (json!({ "hash_on": "vars_combinations" }), Some("upstreams[0].type: type: chash needs key")),
        (json!({}), Some("upstreams[0].type: type: chash needs key: the name of a variable")),
        (json!({ "key": "" }), Some("upstreams[0].key: expected one of uri, ")),
        (json!({ "key": "arg_" }), Some("upstreams[0].key: expected letters, digits")),
        (json!({ "key": "request_method" }), Some("upstreams[0].key: expected one of uri, ")),
        (json!({ "key": "mqtt_client_id" }), None),
        (json!({ "hash_on": "header", "key": "a b" }), Some("upstreams[0].key: expected letters, digits")),
        (json!({ "hash_on": "cookie" }), Some("upstreams[0].type: type: chash needs key: the name of a cookie")),
        (json!({ "hash_on": "client", "key": "a" }), Some("upstreams[0].hash_on: ")),
        (json!({ "key": 5 }), Some("upstreams[0].key: ")),
        (
            json!({ "type": "least_conn", "key": "uri" }),
            Some("warning: upstreams[0].key: has no effect with the type least_conn"),
        ),
    ];
    for (fields, said) in cases {
        let mut upstream = json!({ "nodes": { "a:80": 1 }, "type": "chash" });
        upstream.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let loaded = load_with(&json!({ "upstreams": [upstream] }).to_string(), &OPTIONS);
        let found: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
        match said {
            None => assert!(found.is_empty(), "{fields}: {found:?}"),
            Some(said) => assert!(found.len() == 1 && found[0].contains(said), "{fields}: {found:?}"),
        }
    }
}

#[test]
fn everything_in_the_table_of_what_is_not_supported_is_refused_by_name() {
    for entry in UNSUPPORTED {
        let value = match entry.when {
            When::Present => json!("x"),
            When::OneOf(texts) => json!(texts[0]),
        };
        let field = |mut item: Value| {
            item[entry.field] = value.clone();
            item
        };
        let (document, path) = match entry.owner {
            Owner::StreamRoute => {
                let upstream = json!({ "upstream": { "nodes": {} } });
                (json!({ "stream_routes": [field(upstream)] }), format!("stream_routes[0].{}", entry.field))
            }
            Owner::Upstream => {
                (json!({ "upstreams": [field(json!({ "nodes": {} }))] }), format!("upstreams[0].{}", entry.field))
            }
        };
        let loaded = load_with(&document.to_string(), &OPTIONS);
        let errors: Vec<_> = loaded.errors().collect();
        let [error] = errors.as_slice() else { panic!("{document}: {errors:?}") };
        assert!(error.message().starts_with(&format!("not supported yet: {} (", entry.feature)), "{error}");
        assert_eq!(error.path, path);
    }
}
