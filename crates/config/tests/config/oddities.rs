//! Oddities of real rules files: each is accepted, warned about or refused, with a finding.

use weir_config::{InvalidItems, LoadOptions, RouterMode};

use crate::support::{Case, OPTIONS, check, is_said, load_with, shown};

#[test]
fn files_that_are_taken() {
    check(
        &[
            Case {
                about: "a plain file",
                text: "routes:\n  - id: r\n    uri: /a\n    upstream:\n      nodes: {\"127.0.0.1:80\": 1}\n#END\n",
                said: &[],
                routes: Some(&["r"]),
            },
            Case {
                about: "a BOM, a leading --- and no newline behind #END",
                text: "\u{feff}---\nroutes:\n-\n  uri: /a\n  plugins: {}\n#END",
                said: &[],
                routes: Some(&["arr_1"]),
            },
            Case {
                about: "JSON needs no #END",
                text: r#"{"routes": [{"id": 7, "uri": "/a", "upstream_id": 3}], "upstreams": [{"id": 3, "nodes": []}]}"#,
                said: &[],
                routes: Some(&["7"]),
            },
            Case {
                about: "numbers and texts are the same ids; missing ids are numbered",
                text: "routes: [{id: 1, uri: /a, upstream_id: '5'}, {uri: /b, upstream_id: 5}, {uri: /c, upstream_id: arr_2}]\n\
                       upstreams: [{id: 5, nodes: {}}, {nodes: {}}]\n#END",
                said: &[],
                routes: Some(&["1", "arr_2", "arr_3"]),
            },
            Case {
                about: "empty sections",
                text: "routes: []\nservices: {}\nssls: []\nprotos: {}\nstream_routes:\n#END",
                said: &["t:5:1: warning: stream_routes: null is taken as an empty list"],
                routes: Some(&[]),
            },
            Case {
                about: "conditions that never hold",
                text: "routes:\n  - uri: /a\n    upstream: {nodes: {}}\n    vars: [[arg_a, in, ['1', 2]], [arg_b, '<', c]]\n#END",
                said: &[
                    "t:4:30: warning: routes[0].vars[0][2][1]: a number equals no variable here: write it as a text",
                    "t:4:48: warning: routes[0].vars[1][2]: it is no number: the comparison never holds",
                ],
                routes: Some(&["arr_1"]),
            },
            Case {
                about: "null sections",
                text: "routes:\nconsumers: ~\n#END",
                said: &[
                    "t:1:1: warning: routes: null is taken as an empty list",
                    "t:2:1: warning: consumers: null is taken as an empty list",
                ],
                routes: Some(&[]),
            },
            Case {
                about: "no #END",
                text: "routes: []\n",
                said: &[
                    "t:2:1: warning: the file does not end with a line #END, so it may be incomplete; APISIX refuses it",
                ],
                routes: Some(&[]),
            },
            Case {
                about: "an empty list for a document",
                text: "[]",
                said: &["t:1:1: warning: expected a mapping with sections such as routes, found an empty list"],
                routes: Some(&[]),
            },
            Case {
                about: "unknown sections, with anchors in one of them",
                text: "x-up: &up\n  nodes: {\"a:80\": 1}\nroutes:\n  - uri: /a\n    upstream:\n      <<: *up\n      retries: 2\n\
                       apisix: {}\nroute: []\nname: x\n#END",
                said: &[
                    "t:1:1: warning: x-up: unknown section, left aside",
                    "t:8:1: warning: apisix: unknown section, left aside; a section of config.yaml; give that file with --settings",
                    "t:9:1: warning: route: unknown section, left aside; did you mean routes?",
                    "t:10:1: warning: name: unknown section, left aside",
                ],
                routes: Some(&["arr_1"]),
            },
            Case {
                about: "a list of plugins to load",
                text: "plugins: [{name: key-auth}, prometheus]\nroutes: []\n#END",
                said: &["t:1:1: warning: plugins: has no effect: every plugin of the gateway is available"],
                routes: Some(&[]),
            },
            Case {
                about: "unknown fields where APISIX takes any",
                text: "routes:\n  - uri: /a\n    timeout: {connect: 1, send: 1, read: 1, unit: s}\n    upstream:\n      \
                       nodes: []\n      keepalive_pool: {comment: x}\n      checks:\n        \
                       active: {}\n        passive: {healthy: {interval: 1}}\n#END",
                said: &[
                    "t:3:45: warning: routes[0].timeout.unit: unknown field, it has no effect; ",
                    "t:6:24: warning: routes[0].upstream.keepalive_pool.comment: unknown field, it has no effect; known fields: ",
                    "t:9:29: warning: routes[0].upstream.checks.passive.healthy.interval: unknown field, it has no effect; ",
                ],
                routes: Some(&["arr_1"]),
            },
            Case {
                about: "plugins without anything behind them",
                text: "routes:\n  - uri: /a\n    plugins:\n      key-auth:\n      prometheus: {_meta: }\n  - uri: /b\n    plugins:\n    desc:\n#END",
                said: &[
                    "t:4:7: warning: routes[0].plugins.key-auth: null is taken as an empty mapping",
                    "t:5:20: warning: routes[0].plugins.prometheus._meta: null is taken as not set",
                    "t:7:5: warning: routes[1].plugins: null is taken as an empty mapping",
                    "t:8:5: warning: routes[1].desc: null is taken as not set",
                ],
                routes: Some(&["arr_1", "arr_2"]),
            },
            Case {
                about: "times that are long and meant",
                text: "routes:\n  - uri: /a\n    timeout: {connect: 1200, send: 86400, read: 3600000}\n    upstream: {nodes: {\"a:80\": 1}}\n#END",
                said: &[
                    "t:3:49: warning: routes[0].timeout.read: 3600000 seconds is a long time; the unit is seconds, not milliseconds",
                ],
                routes: Some(&["arr_1"]),
            },
            Case {
                about: "stream routes, for which there may be no port",
                text: "routes: [{uri: /a, plugins: {}}]\nstream_routes: [{server_port: 9100, upstream: {nodes: {\"a:80\": 1}}}]\n#END",
                said: &[],
                routes: Some(&["arr_1"]),
            },
            Case {
                about: "round-robin, milliseconds, a host beside pass_host: pass, a hash key",
                text: "routes:\n  - uri: /a\n    timeout: {connect: 6, send: 999.5, read: 60000}\n    upstream:\n      type: round-robin\n      \
                       nodes: {\"a:80\": 1}\n      upstream_host: x\n      hash_on: vars\n      key: remote_addr\n#END",
                said: &[
                    "t:3:46: warning: routes[0].timeout.read: 60000 seconds is a long time; the unit is seconds, not milliseconds",
                    "t:5:13: warning: routes[0].upstream.type: \"round-robin\" is taken as roundrobin",
                    "t:7:7: warning: routes[0].upstream.upstream_host: has no effect with pass_host: pass",
                    "t:8:7: warning: routes[0].upstream.hash_on: has no effect with the type roundrobin",
                    "t:9:7: warning: routes[0].upstream.key: has no effect with the type roundrobin",
                ],
                routes: Some(&["arr_1"]),
            },
            Case {
                about: "nodes without a port",
                text: "upstreams:\n  - nodes: {a: 1, \"[::1]\": 1}\n  - scheme: http\n    nodes: {a: 1}\n  - nodes: [{host: b, weight: 1}]\n#END",
                said: &[
                    "t:2:13: warning: upstreams[0].nodes.a: the node has no port, so that of the scheme http is taken: 80",
                    "t:2:19: warning: upstreams[0].nodes[\"[::1]\"]: the node has no port, so that of the scheme http is taken: 80",
                    "t:5:13: warning: upstreams[2].nodes[0]: the node has no port, so that of the scheme http is taken: 80",
                ],
                routes: Some(&[]),
            },
            Case {
                about: "plugin_metadata as a mapping",
                text: "plugin_metadata:\n  limit-count: {}\n  prometheus:\nroutes: []\n#END",
                said: &[
                    "t:2:3: warning: plugin_metadata: a mapping from plugin names is taken as a list of items with that id; APISIX drops it",
                ],
                routes: Some(&[]),
            },
            Case {
                about: "paths that never match, and a parameter that is none",
                text: "routes:\n  - {uri: a/b, plugins: {}}\n  - {uris: ['*', /u/:id], plugins: {}}\n#END",
                said: &[
                    "t:2:11: warning: routes[0].uri: \"a/b\" can never match: a path begins with '/'",
                    "t:3:18: warning: routes[1].uris[1]: \"/u/:id\" is matched literally, ':' and all; parameters need the router radixtree_uri_with_parameter",
                ],
                routes: Some(&["arr_1", "arr_2"]),
            },
            Case {
                about: "an upstream in place beside its id",
                text: "routes:\n  - uri: /a\n    upstream_id: u\n    upstream: {nodes: {}}\nupstreams: [{id: u, nodes: {}}]\n#END",
                said: &["t:4:5: warning: routes[0].upstream: has no effect beside upstream_id"],
                routes: Some(&["arr_1"]),
            },
            Case {
                about: "the later of two items with one id",
                text: "routes:\n  - {id: r, uri: /a, plugins: {}}\n  - {id: s, uri: /b, plugins: {}}\n  - {id: r, uri: /c, plugins: {}}\n#END",
                said: &["t:4:5: warning: routes[2]: the id r stands twice; this item takes the place of routes[0]"],
                routes: Some(&["s", "r"]),
            },
            Case {
                about: "a warning of a plugin",
                text: "routes: [{uri: /a, plugins: {mocking: {old: 1}}}]\n#END",
                said: &["t:1:45: warning: routes[0].plugins.mocking.old: this field has no effect"],
                routes: Some(&["arr_1"]),
            },
            Case {
                about: "methods beyond the usual, star paths, unused items",
                text: "routes: [{uri: '*', methods: [PURGE, TRACE, CONNECT], plugins: {}}]\nupstreams: [{nodes: {}}]\nservices: [{}]\n#END",
                said: &[],
                routes: Some(&["arr_1"]),
            },
        ],
        &OPTIONS,
    );
}

#[test]
fn files_that_are_refused() {
    check(
        &[
            Case {
                about: "services, whose SRV records have the ports",
                text: "upstreams:\n  - nodes: {_http._tcp.a.test: 1, '_http._tcp.b.test:80': 1, _http._udp.c.test: 1}\n  - nodes:\n    - {host: _http._tcp.a.test, weight: 1}\n    - {host: _http._tcp.b.test, port: 80, weight: 1}\n#END",
                said: &[
                    "t:2:35: upstreams[0].nodes[\"_http._tcp.b.test:80\"]: the ports of a service come from its SRV records: expected none here",
                    "t:2:62: upstreams[0].nodes[\"_http._udp.c.test\"]: the name of a service is _SERVICE._tcp.DOMAIN",
                    "t:5:39: upstreams[1].nodes[1].port: the ports of a service come from its SRV records: expected none here",
                ],
                routes: None,
            },
            Case {
                about: "what health checks do not reach, and ports of Unix sockets",
                text: "upstreams:\n  - {nodes: {'unix:/a': 1}, checks: {active: {}}}\n  - {nodes: {'a:1': 1}, proxy_protocol: v1, checks: {active: {}}}\n  - nodes: {'unix:/a:80': 1, 'unix@/a': 1}\n  - nodes:\n    - {host: 'unix:/a', port: 80, weight: 1}\n#END",
                said: &[
                    "t:2:29: upstreams[0].checks: not supported yet: health checks of a node on a Unix socket",
                    "t:3:45: upstreams[1].checks: not supported yet: health checks together with proxy_protocol",
                    "t:4:13: upstreams[2].nodes[\"unix:/a:80\"]: a Unix socket has no port, such as unix:/run/app.sock",
                    "t:4:30: upstreams[2].nodes[\"unix@/a\"]: a Unix socket is written unix:/run/app.sock",
                    "t:6:31: upstreams[3].nodes[0].port: a Unix socket has no port",
                ],
                routes: None,
            },
            Case {
                about: "what connections over HTTP/2 cannot have",
                text: "upstreams:\n  - {nodes: {'a:1': 1}, scheme: grpc, http2: true, proxy_protocol: v1}\n  - {nodes: {'a:1': 1}, http2: true, proxy_protocol: v1}\n#END",
                said: &[
                    "t:2:39: warning: upstreams[0].http2: has no effect with scheme: grpc and grpcs, which are HTTP/2",
                    "t:2:52: upstreams[0].proxy_protocol: not supported yet: proxy_protocol on connections over HTTP/2",
                    "t:3:38: upstreams[1].proxy_protocol: not supported yet: proxy_protocol on connections over HTTP/2",
                ],
                routes: None,
            },
            Case {
                about: "an unquoted wildcard",
                text: "routes:\n  - uri: /a\n    host: *.example.com\n#END",
                said: &["t:3:11: routes[0].host: not YAML: while parsing node, found unknown anchor; \
                         a value that begins with '*' is a YAML alias; write it in quotes: \"*.example.com\""],
                routes: None,
            },
            Case {
                about: "a second document",
                text: "routes: []\n---\nroutes: []\n#END",
                said: &["t:2:1: a second YAML document begins here; a rules file has one"],
                routes: None,
            },
            Case {
                about: "YAML that cannot be read and may be cut off",
                text: "routes:\n  - {uri: /a, plugins: {\n",
                said: &[
                    "t:3:1: ",
                    "t:3:1: warning: the file does not end with a line #END, so it may be incomplete; APISIX refuses it",
                ],
                routes: None,
            },
            Case {
                about: "a section that is no list",
                text: "routes: {a: {uri: /a}}\nglobal_rules: {prometheus: {}}\nupstreams: 5\n#END",
                said: &[
                    "t:1:9: routes: expected a list, found a mapping",
                    "t:2:15: global_rules: expected a list, found a mapping; write a list of {id, plugins: {…}}; a mapping is the form of ADC",
                    "t:3:12: upstreams: expected a list, found 5",
                ],
                routes: None,
            },
            Case {
                about: "items that are no mappings",
                text: "routes: [5, [a]]\nservices: [x]\n#END",
                said: &[
                    "t:1:10: routes[0]: expected a mapping, found 5",
                    "t:1:13: routes[1]: expected a mapping, found a list of 1",
                    "t:2:12: services[0]: expected a mapping, found \"x\"",
                ],
                routes: None,
            },
            Case {
                about: "an item without anything",
                text: "upstreams:\n  -\n#END",
                said: &["t:2:4: upstreams[0]: expected a mapping, found nothing (null)"],
                routes: None,
            },
            Case {
                about: "unknown fields: of a route, of an upstream, of a node",
                text: "routes:\n  - uri: /a\n    strip_uri: true\n    key-auth: {}\n    plugins: {}\nupstreams:\n  - read: 5\n    health_checker: {}\n    \
                       nodes: [{host: a, port: 80, eight: 1}]\n#END",
                said: &[
                    "t:3:5: routes[0].strip_uri: unknown field; known fields: ",
                    "t:4:5: routes[0].key-auth: unknown field; known fields: ",
                    "t:7:5: upstreams[0].read: unknown field; did you mean timeout?",
                    "t:8:5: upstreams[0].health_checker: unknown field; did you mean checks?",
                    "t:9:33: upstreams[0].nodes[0].eight: unknown field; did you mean weight?",
                ],
                routes: None,
            },
            Case {
                about: "unknown fields where a misspelt one would matter",
                text: "upstreams:\n  - tls: {comment: x}\n    nodes: {}\n    scheme: https\n    keepalive_pool: {sise: 1}\n    checks: {active: {type: https, helthy: {}}}\n#END",
                said: &[
                    "t:2:11: upstreams[0].tls.comment: unknown field; known fields: ",
                    "t:5:22: upstreams[0].keepalive_pool.sise: unknown field; did you mean size?",
                    "t:6:36: upstreams[0].checks.active.helthy: unknown field; did you mean healthy?",
                ],
                routes: None,
            },
            Case {
                about: "a timeout without read",
                text: "upstreams:\n  - nodes: {}\n    timeout: {connect: 1, send: 1}\n#END",
                said: &["t:3:14: upstreams[0].timeout: the field read is missing"],
                routes: None,
            },
            Case {
                about: "plugins that are not there",
                text: "routes:\n  - uri: /a\n    plugins:\n      limit_count: {}\n      jwt-auth: {}\n      rate-limit: {}\n      opentelemetri: {}\n      cros: []\n#END",
                said: &[
                    "t:4:7: routes[0].plugins.limit_count: there is no plugin \"limit_count\"; did you mean limit-count?",
                    "t:5:7: routes[0].plugins.jwt-auth: not supported yet: the plugin jwt-auth",
                    "t:6:7: routes[0].plugins.rate-limit: there is no plugin \"rate-limit\"; did you mean limit-count?",
                    "t:7:7: routes[0].plugins.opentelemetri: there is no plugin \"opentelemetri\"; did you mean opentelemetry? It is not supported yet",
                    "t:8:13: routes[0].plugins.cros: expected a mapping, found an empty list",
                ],
                routes: None,
            },
            Case {
                about: "several faults of one plugin",
                text: "routes:\n  - uri: /a\n    plugins:\n      limit-count:\n        count: abc\n        time_windw: 60\n        rejected_code: 100\n#END",
                said: &[
                    "t:5:16: routes[0].plugins.limit-count.count: expected an integer of at least 1, found \"abc\"",
                    "t:6:9: routes[0].plugins.limit-count.time_windw: unknown field; did you mean time_window?",
                    "t:7:24: routes[0].plugins.limit-count.rejected_code: expected an integer from 200 to 599, found 100",
                ],
                routes: None,
            },
            Case {
                about: "the same key twice, in an item and outside of one",
                text: "routes:\n  - uri: /a\n    plugins: {}\n    uri: /b\nroutes: []\n#END",
                said: &[
                    "t:4:5: routes[0].uri: the same key stands at 2:5 already",
                    "t:5:1: routes: the same key stands at 1:1 already",
                ],
                routes: None,
            },
            Case {
                about: "a script with a plugin config, a filter function",
                text: "routes:\n  - {uri: /a, script: 'return 1 + 1', plugin_config_id: 1}\n  - {uri: /a, upstream: {nodes: {}}, filter_func: 'function(vars) return true end'}\n\
                       plugin_configs: [{id: 1, plugins: {}}]\n#END",
                said: &["t:2:23: routes[0].script: only one of script and plugin_config_id is allowed"],
                routes: None,
            },
            Case {
                about: "conditions and metadata of a plugin",
                text: "routes:\n  - uri: /a\n    vars: [[arg_a, '=', 1]]\n    plugins:\n      key-auth:\n        _meta:\n          disabled: true\n          \
                       filter: [[arg_a, ==, 1], [no_such_variable, ==, 1]]\n          error_response: 5\n          pre_function: 'return function() end'\n#END",
                said: &[
                    "t:3:20: routes[0].vars[0][1]: ",
                    "t:7:11: routes[0].plugins.key-auth._meta.disabled: unknown field; did you mean disable?",
                    "t:8:37: routes[0].plugins.key-auth._meta.filter[1][0]: ",
                    "t:9:27: routes[0].plugins.key-auth._meta.error_response: expected a text or a mapping, found 5; put it in quotes",
                ],
                routes: None,
            },
        ],
        &OPTIONS,
    );
}

#[test]
fn strict_refuses_what_may_be_incomplete() {
    let strict = LoadOptions { strict: true, ..OPTIONS };
    check(
        &[
            Case {
                about: "no #END",
                text: "routes: []\n",
                said: &["t:2:1: the file does not end with a line #END, so it may be incomplete"],
                routes: None,
            },
            Case { about: "JSON", text: "{\"routes\": []}", said: &[], routes: Some(&[]) },
            Case {
                about: "an empty list",
                text: "[]",
                said: &["t:1:1: expected a mapping with sections such as routes, found an empty list"],
                routes: None,
            },
        ],
        &strict,
    );
}

#[test]
fn a_parameter_is_fine_with_the_router_that_knows_it() {
    let options = LoadOptions { router: RouterMode::RadixtreeUriWithParameter, ..OPTIONS };
    let text = "routes: [{uri: '/u/:id', plugins: {}}]\n#END";
    check(&[Case { about: "parameters", text, said: &[], routes: Some(&["arr_1"]) }], &options);
}

#[test]
fn an_empty_file_is_refused_however_it_is_read() {
    const HINT: &str = "t: the file is empty; a rules file without any route says so: routes: []";
    let skip = LoadOptions { invalid_items: InvalidItems::Skip, ..OPTIONS };
    for options in [OPTIONS, skip, LoadOptions { strict: true, ..OPTIONS }] {
        for text in
            ["", "\n \n", "\u{feff}", "# soon\n", "#END\n", "---\n#END\n", "null\n#END\n", "${{UNSET:=}}\n#END\n"]
        {
            let loaded = load_with(text, &options);
            let said: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
            assert_eq!((loaded.document.is_none(), said), (true, vec![HINT.to_owned()]), "{text:?}");
        }
        let said_so = load_with("routes: []\n#END\n", &options);
        assert!(said_so.document.is_some() && said_so.diagnostics.is_empty(), "{:?}", said_so.diagnostics);
    }
}

#[test]
fn files_of_other_tools_are_called_so() {
    let cases = [
        (
            "_format_version: '3.0'\nservices: []",
            "1:1: _format_version: not a rules file: this is a Kong declarative configuration",
        ),
        (
            "services:\n- name: a\n  url: http://x\n  routes: [{paths: [/]}]",
            "1:1: services: not a rules file: this is a Kong declarative configuration",
        ),
        ("routes:\n- paths: [/a]", "1:1: routes: not a rules file: this is a Kong declarative configuration"),
        ("apiVersion: v1\nkind: Pod\nspec: {}", "1:1: apiVersion: not a rules file: this is a Kubernetes manifest; "),
        (
            "apiVersion: v1\nkind: ConfigMap\n---\nbroken: [",
            "1:1: apiVersion: not a rules file: this is a Kubernetes manifest; ",
        ),
        ("swagger: '2.0'\npaths: {}", "1:1: swagger: not a rules file: this is a Swagger API description"),
        ("openapi: 3.0.0\ninfo: {}", "1:1: openapi: not a rules file: this is an OpenAPI description"),
        (
            "{\"openapi\": \"3.0.0\", \"x-tyk-api-gateway\": {}}",
            "1:22: x-tyk-api-gateway: not a rules file: this is a Tyk OAS API definition",
        ),
        (
            "{\"name\": \"a\", \"api_id\": \"1\", \"proxy\": {}}",
            "1:15: api_id: not a rules file: this is a Tyk API definition",
        ),
        (
            "{\"listen_port\": 8080, \"template_path\": \"x\"}",
            "1:2: listen_port: not a rules file: this is a Tyk gateway configuration (tyk.conf)",
        ),
        (
            "version: '3'\nservices:\n  web: {image: nginx}",
            "2:1: services: not a rules file: this is a docker-compose file",
        ),
        (
            "{\"services\": [{\"id\": 1, \"backend_version\": \"1\", \"proxy\": {}}]}",
            "1:2: services: not a rules file: this is a 3scale (APIcast) configuration",
        ),
        (
            "services:\n- name: a\n  upstream: {}\n  routes: []",
            "1:1: services: not a rules file: this is an ADC configuration; ",
        ),
        (
            "routes:\n- name: a\n  description: x\n  uris: [/a]",
            "1:1: routes: not a rules file: this is an ADC configuration; ",
        ),
        (
            "name: shop\nversion: 1.0.0\nroutes:\n- {name: a, uris: [/a], service_id: s}\nservices:\n- {name: s, upstream: {}}",
            "1:1: name: not a rules file: this is an ADC configuration; ",
        ),
        (
            "apisix: {node_listen: 9080}\nplugins: [cors]\n",
            "1:1: apisix: not a rules file: this is APISIX's own config.yaml; give it with --settings",
        ),
        (
            "plugins: [cors]\n",
            "1:1: not a rules file: this is a file of gateway settings (weir.yaml); give it with --settings",
        ),
        (
            "deployment:\n  role: data_plane\napisix: {}\n#END",
            "1:1: deployment: not a rules file: this is APISIX's own config.yaml; ",
        ),
        ("listen: {http: [80]}\nworkers: 2", "1:1: not a rules file: this is a file of gateway settings (weir.yaml); "),
        ("../shared/apisix.yaml", "1:1: not a rules file: this is a single value; "),
        ("- a\n- b", "1:1: not a rules file: this is a list; "),
        ("foo: 1\nbar: 2", "1:1: not a rules file: this is none of the known kinds of file; "),
    ];
    for options in [OPTIONS, LoadOptions { invalid_items: InvalidItems::Skip, ..OPTIONS }] {
        for (text, expected) in cases {
            let loaded = load_with(text, &options);
            assert!(loaded.document.is_none(), "{text}");
            let errors: Vec<String> = loaded.errors().map(ToString::to_string).collect();
            let [error] = errors.as_slice() else { panic!("{text}: {errors:?}") };
            // No further finding is about what another tool's file lacks as a rules file.
            assert_eq!(loaded.warnings().count(), 0, "{text}: {:?}", loaded.diagnostics);
            let error = error.strip_prefix("t:").expect("the file is named");
            assert!(is_said(expected, error), "{text}:\n  {error}\n  {expected}");
        }
    }
}

#[test]
fn bytes_that_are_no_text_are_told() {
    for (bytes, expected) in [
        (&b"routes:\n- \xc3\xa9\xff"[..], "t:2:4: not UTF-8 text"),
        (b"\xff\xfer\0", "t:1:1: not UTF-8 text; save the file as UTF-8, not as UTF-16"),
    ] {
        let loaded = weir_config::load("t", bytes, &OPTIONS);
        assert_eq!(shown(&loaded), [expected]);
        assert!(loaded.document.is_none());
    }
}
