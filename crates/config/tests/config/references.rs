//! Items that refer to each other, and what becomes of them when one is invalid.

use weir_config::{Dropped, InvalidItems, LoadOptions, Status};

use crate::support::{Case, OPTIONS, check, load_with, shown};

#[test]
fn references_lead_somewhere() {
    check(
        &[
            Case {
                about: "all that refer, all found",
                text: "routes: [{uri: /a, upstream_id: u, service_id: 1, plugin_config_id: p}]\nservices: [{id: 1, upstream_id: u}]\n\
                       upstreams: [{id: u, nodes: {}}]\nplugin_configs: [{id: p, plugins: {}}]\nconsumer_groups: [{id: g, plugins: {}}]\n\
                       consumers: [{username: a, group_id: g}]\n#END",
                said: &[],
                routes: Some(&["arr_1"]),
            },
            Case {
                about: "nothing found",
                text: "routes:\n  - uri: /a\n    upstream_id: web-frontent\n    service_id: 2\n    plugin_config_id: pp\n\
                       services: [{id: 1, upstream_id: no}]\nupstreams: [{id: web-frontend, nodes: {}}]\n\
                       plugin_configs: [{id: p1, plugins: {}}]\nconsumers: [{username: a, group_id: g}]\n#END",
                said: &[
                    "t:3:18: routes[0].upstream_id: there is no upstream with the id \"web-frontent\"; did you mean web-frontend?",
                    "t:4:17: routes[0].service_id: there is no service with the id \"2\"",
                    "t:5:23: routes[0].plugin_config_id: there is no plugin config with the id \"pp\"",
                    "t:6:33: services[0].upstream_id: there is no upstream with the id \"no\"",
                    "t:9:37: consumers[0].group_id: there is no consumer group with the id \"g\"; there are no consumer_groups at all",
                ],
                routes: None,
            },
            Case {
                about: "what refers to an invalid item is not accused",
                text: "routes: [{uri: /a, upstream_id: u}]\nupstreams: [{id: u, nodes: 5}]\n#END",
                said: &[
                    "t:2:28: upstreams[0].nodes: expected a mapping from host:port to weight, or a list of {host, port, weight}, found 5",
                ],
                routes: None,
            },
            Case {
                about: "a plugin in two global rules",
                text: "global_rules:\n  - {id: a, plugins: {prometheus: {}}}\n  - {id: b, plugins: {key-auth: {}, prometheus: {}}}\n#END",
                said: &[
                    "t:3:49: global_rules[1].plugins.prometheus: the plugin prometheus is in the global rule a already, at 2:35",
                ],
                routes: None,
            },
            Case {
                about: "credentials of their own",
                text: "consumers:\n  - {id: jack/credentials/one, plugins: {key-auth: {key: a}}}\n  - username: jack\n    credentials: [{id: two, plugins: {key-auth: {key: b}}}]\n  \
                       - {id: jack/credentials/two, plugins: {key-auth: {key: c}}}\n#END",
                said: &[
                    "t:5:5: warning: consumers[2]: the id two stands twice; this one takes the place of consumers[1].credentials[0]",
                ],
                routes: Some(&[]),
            },
            Case {
                about: "credentials of nobody, of two plugins, of a plugin that does not authenticate",
                text: "consumers:\n  - {id: jakc/credentials/one, plugins: {key-auth: {key: a}}}\n  - {username: jack}\n  \
                       - {id: jack/credentials/b, plugins: {key-auth: {key: a}, jwt-auth: {}}}\n  - {id: jack/credentials/c, plugins: {prometheus: {}}}\n  \
                       - {id: jack/credentials/, plugins: {}}\n#END",
                said: &[
                    "t:2:10: consumers[0].id: the consumer \"jakc\" of this credential is not there; did you mean jack?",
                    "t:4:39: consumers[2].plugins: expected a mapping of at most 1 entry, found one of 2",
                    "t:4:60: consumers[2].plugins.jwt-auth: not supported yet: the plugin jwt-auth",
                    "t:5:40: consumers[3].plugins.prometheus: a credential takes authentication plugins only: ",
                    "t:6:10: consumers[4].id: expected an id: 1 to 64 letters, digits, '-', '_' and '.', other than . and .., or a whole number of at least 1, found \"\"",
                ],
                routes: None,
            },
        ],
        &OPTIONS,
    );
}

/// Every route would be served without it, so leaving it out could open what it guards.
#[test]
fn an_invalid_global_rule_is_never_left_out() {
    let skip = LoadOptions { invalid_items: InvalidItems::Skip, ..OPTIONS };
    for plugins in ["{key-auth: {nonsense: [}}", "5", "{no-such-plugin: {}}", "{jwt-auth: {}}"] {
        let text =
            format!("routes:\n  - {{uri: /1, plugins: {{}}}}\nglobal_rules:\n  - {{id: g, plugins: {plugins}}}\n#END");
        let loaded = load_with(&text, &skip);
        assert!(loaded.document.is_none(), "{plugins}: {:?}", shown(&loaded));
        assert!(loaded.errors().count() > 0, "{plugins}");
    }
}

#[test]
fn an_invalid_item_alone_is_dropped_when_asked_for() {
    let skip = LoadOptions { invalid_items: InvalidItems::Skip, ..OPTIONS };
    let text = "upstreams:\n  - {id: bad, nodes: 5}\n  - {id: good, nodes: {}}\n\
                services:\n  - {id: s, upstream_id: bad}\n\
                routes:\n  - {id: r1, uri: /1, upstream_id: good}\n  - {id: r2, uri: /2, upstream_id: bad}\n  - {id: r3, uri: /3, service_id: s}\n  \
                - {id: r4, uri: /4, plugins: {jwt-auth: {}}}\n  - {id: r5, uri: /5, desc: a, desc: b, plugins: {}}\n  - {uri: /7, plugins: {}}\n\
                consumers:\n  - {username: a, plugins: {key-auth: {}}}\n  - {id: a/credentials/x, plugins: {}}\n  - {username: b}\n#END";
    let loaded = load_with(text, &skip);
    let said = shown(&loaded);
    assert_eq!(
        said,
        [
            "t:2:5: warning: upstreams[0]: this item is left out, because it is invalid",
            "t:2:22: upstreams[0].nodes: expected a mapping from host:port to weight, or a list of {host, port, weight}, found 5",
            "t:5:5: warning: services[0]: this item is left out, because it is invalid",
            "t:5:26: services[0].upstream_id: the upstream \"bad\" is invalid",
            "t:8:5: warning: routes[1]: this item is left out, because it is invalid",
            "t:8:36: routes[1].upstream_id: the upstream \"bad\" is invalid",
            "t:9:5: warning: routes[2]: this item is left out, because it is invalid",
            "t:9:35: routes[2].service_id: the service \"s\" is invalid",
            "t:10:5: warning: routes[3]: this item is left out, because it is invalid",
            "t:10:33: routes[3].plugins.jwt-auth: not supported yet: the plugin jwt-auth",
            "t:11:5: warning: routes[4]: this item is left out, because it is invalid",
            "t:11:32: routes[4].desc: the same key stands at 11:23 already",
            "t:14:5: warning: consumers[0]: this item is left out, because it is invalid",
            "t:14:39: consumers[0].plugins.key-auth: the field key is missing",
            "t:15:10: consumers[1].id: the consumer \"a\" of this credential is invalid",
            "t:15:10: warning: consumers[1]: this item is left out, because it is invalid",
        ]
        .map(String::from)
    );
    let document = loaded.document.expect("the rest is served");
    let ids = |status| -> Vec<&str> {
        let routes = document.routes.iter().filter(|route| route.status == status);
        routes.map(|route| route.id.as_str()).collect()
    };
    assert_eq!(ids(Status::Enabled), ["r1", "arr_6"]);
    assert_eq!(ids(Status::LeftOut), ["r2", "r3", "r4", "r5"], "they keep their places");
    assert_eq!((document.upstreams.len(), document.services.len(), document.consumers.len()), (1, 0, 1));
    let dropped = |path: &str, id: &str| Dropped { path: path.into(), id: Some(id.into()) };
    let expected = [
        dropped("upstreams[0]", "bad"),
        dropped("routes[3]", "r4"),
        dropped("routes[4]", "r5"),
        dropped("consumers[0]", "a"),
        dropped("consumers[1]", "a/credentials/x"),
        dropped("services[0]", "s"),
        dropped("routes[1]", "r2"),
        dropped("routes[2]", "r3"),
    ];
    assert_eq!(loaded.dropped, expected);
}

#[test]
fn what_is_wrong_with_the_file_is_not_skipped() {
    let skip = LoadOptions { invalid_items: InvalidItems::Skip, ..OPTIONS };
    for text in [
        "routes: [\n#END",
        "routes: []\nroutes: []\n#END",
        "routes: {a: b}\n#END",
        "routes: [{uri: \"${{UNSET}}\"}]\n#END",
    ] {
        let loaded = load_with(text, &skip);
        assert!(loaded.document.is_none() && loaded.errors().next().is_some(), "{text}: {:?}", loaded.diagnostics);
    }
}

#[test]
fn an_item_that_moved_is_the_same_item() {
    let one = "routes:\n  - {id: 1, uri: /a, upstream: {nodes: {\"a:1\": 1}}, vars: [[arg_a, ==, 1]], plugins: {limit-count: {count: 1, time_window: 2, _meta: {priority: 1}}}}\n#END";
    let two = one.replace("routes:", "# moved\n\nupstreams: []\nroutes:\n  - {id: 9, uri: /b, plugins: {}}");
    let (one, two) = (load_with(one, &OPTIONS).document, load_with(&two, &OPTIONS).document);
    let (one, two) = (one.expect("a document"), two.expect("a document"));
    assert_eq!(one.routes[0], two.routes[1]);
    assert_ne!(one.routes[0].origin.path, two.routes[1].origin.path);
    assert_ne!(one.routes[0], two.routes[0]);
}
