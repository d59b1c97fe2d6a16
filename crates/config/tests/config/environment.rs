//! Values from the environment.

use crate::support::{Case, OPTIONS, check, load_with};

#[test]
fn placeholders_are_replaced_before_the_text_is_read() {
    let text = "routes:\n  - uri: /${{ NAME:=a}}\n    upstream:\n      nodes: {\"${{HOST}}:${{PORT}}\": 1}\n      retries: ${{RETRIES:=3}}\n    \
                desc: |\n      ${{LINES}}\n      three\n    plugins:\n      key-auth: {x: ${{EMPTY}}, y: ${{PORT}}, z: '${{PORT}}', json: [${{A:=1}}, x${{B:=}}]}\n#END";
    let loaded = load_with(text, &OPTIONS);
    let Some(document) = loaded.document else { panic!("{:?}", loaded.diagnostics) };
    let route = &document.routes[0];
    let upstream = route.upstream.as_ref().expect("an upstream");
    assert_eq!(route.uri.as_ref().map(|uri| uri.as_str()), Some("/a"));
    assert_eq!((upstream.nodes[0].to_string().as_str(), upstream.retries), ("10.0.0.9:8080", Some(3)));
    assert_eq!(route.desc.as_deref(), Some("one\ntwo\nthree\n"));
    let conf = route.plugins.as_ref().and_then(|plugins| plugins.get("key-auth")).expect("a plugin");
    assert_eq!(conf.conf.to_json().to_string(), r#"{"x":null,"y":8080,"z":"8080","json":[1,"x"]}"#);
}

/// A certificate has lines that no place in YAML leaves as they are.
#[test]
fn a_whole_text_may_have_several_lines() {
    const LINES: &str = "-----BEGIN X-----\nMIIB: 5\n  # and\n-----END X-----\n";
    let variables = |name: &str| (name == "PEM").then(|| LINES.to_owned());
    let options = weir_config::LoadOptions { variables: &variables, ..OPTIONS };
    for (written, read) in [
        ("desc: ${{PEM}}", LINES.to_owned()),
        ("desc: ${{ PEM }}  # from outside", LINES.to_owned()),
        ("desc: \"${{PEM}}\"", LINES.to_owned()),
        ("desc: '${{PEM}}'", LINES.to_owned()),
        ("desc: |\n      ${{PEM}}", format!("{LINES}\n")),
        ("desc: |-\n      ${{PEM}}", LINES.to_owned()),
    ] {
        let text = format!("routes:\n  - uri: /a\n    plugins: {{}}\n    {written}\n#END");
        let loaded = load_with(&text, &options);
        let Some(document) = &loaded.document else { panic!("{written}: {:?}", loaded.diagnostics) };
        assert_eq!(document.routes[0].desc.as_deref(), Some(read.as_str()), "{written}");
    }
    // A value in YAML stays YAML.
    let variables = |name: &str| (name == "NODES").then(|| "{\"a:1\": 1,\n        \"b:1\": 2}".to_owned());
    let options = weir_config::LoadOptions { variables: &variables, ..OPTIONS };
    let loaded = load_with("upstreams:\n  - {id: u, nodes: ${{NODES}} }\n#END", &options);
    assert_eq!(loaded.document.expect("a document").upstreams[0].nodes.len(), 2);
}

#[test]
fn positions_are_those_of_the_file() {
    check(
        &[
            Case {
                about: "behind a placeholder on the same line, and behind one of several lines",
                text: "routes:\n  - {desc: \"${{LINES}}\", uri: 5, plugins: {}}\n  - uri: \"${{HOST}}${{PORT}}\"\n    priority: x\n    plugins: {}\n#END",
                said: &[
                    "t:2:31: routes[0].uri: expected a text of 1 to 4096 characters, found 5; put it in quotes",
                    "t:3:10: warning: routes[1].uri: \"10.0.0.98080\" can never match: a path begins with '/'",
                    "t:4:15: routes[1].priority: expected an integer, found \"x\"",
                ],
                routes: None,
            },
            Case {
                about: "a syntax error behind placeholders",
                text: "a: ${{PORT}}\nb: \"${{LINES}}\"\nc: d: e\n#END",
                said: &["t:3:5: not YAML: mapping values are not allowed in this context"],
                routes: None,
            },
            Case {
                about: "a value that is wrong is at its placeholder",
                text: "routes: [{uri: /a, plugins: {}, priority: ${{HOST}}}]\n#END",
                said: &["t:1:43: routes[0].priority: expected an integer, found \"10.0.0.9\""],
                routes: None,
            },
            Case {
                about: "a key that is repeated",
                text: "routes:\n  - uri: \"/${{LINES}}\"\n    plugins: {}\n    plugins: {}\n#END",
                said: &["t:4:5: routes[0].plugins: the same key stands at 3:5 already"],
                routes: None,
            },
        ],
        &OPTIONS,
    );
}

#[test]
fn unset_variables_are_errors_but_in_comments() {
    check(
        &[
            Case {
                about: "in values, keys and twice; in a comment",
                text: "# needs ${{TOKEN}}\nroutes:\n  - uri: /a\n    upstream:\n      nodes: {\"${{NODE}}:80\": 1}\n    plugins: {limit-count: {count: ${{COUNT}}, key: \"a${{ONE}}b${{TWO}}\"}}\n#END ${{NO}}\n#END",
                said: &[
                    "t:1:9: warning: the environment variable TOKEN is not set; it does no harm in a comment",
                    "t:5:16: routes[0].upstream.nodes: the environment variable NODE is not set; set it, or give a default: ${{NODE:=default}}",
                    "t:6:36: routes[0].plugins.limit-count.count: the environment variable COUNT is not set; set it, or give a default: ${{COUNT:=default}}",
                    "t:6:55: routes[0].plugins.limit-count.key: the environment variable ONE is not set; set it, or give a default: ${{ONE:=default}}",
                    "t:6:64: routes[0].plugins.limit-count.key: the environment variable TWO is not set; set it, or give a default: ${{TWO:=default}}",
                    "t:7:6: warning: the environment variable NO is not set; it does no harm in a comment",
                ],
                routes: None,
            },
            Case {
                about: "other writings of variables",
                text: "routes:\n  - uri: /a\n    desc: ${HOST}\n    plugins: {key-auth: {a: \"x ${HOST}\", b: \"${http_host}\", c: '${{ env X }}', d: $HOST}}\n#END",
                said: &[
                    "t:3:11: warning: routes[0].desc: \"${HOST}\" is left as it is; a variable of the environment is written ${{HOST}}",
                    "t:4:65: warning: not a placeholder, so it is left as it is; a placeholder is ${{NAME}} or ${{NAME:=default}}",
                ],
                routes: Some(&["arr_1"]),
            },
            Case {
                about: "decK's writing",
                text: "routes:\n  - uri: /a\n    desc: '${{ env \"X\" }}'\n#END",
                said: &[
                    "t:3:12: routes[0].desc: the environment variable X is not set; set it, or give a default: ${{X:=default}}",
                ],
                routes: None,
            },
        ],
        &OPTIONS,
    );
}

#[test]
fn references_stand_for_whole_texts_in_plugins() {
    let text = "routes:\n  - uri: /a\n    desc: $env://KEY\n    plugins:\n      key-auth: {a: $env://KEY, b: [$ENV://JSON/key, $env://JSON/count], c: x$env://KEY}\n\
                consumers: [{username: a, plugins: {key-auth: {key: $Env://KEY}}}]\n#END";
    let loaded = load_with(text, &OPTIONS);
    let Some(document) = loaded.document else { panic!("{:?}", loaded.diagnostics) };
    let conf = |plugins: &Option<weir_config::Plugins>| {
        plugins.as_ref().and_then(|plugins| plugins.get("key-auth")).map(|conf| conf.conf.to_json().to_string())
    };
    assert_eq!(document.routes[0].desc.as_deref(), Some("$env://KEY"), "outside of plugins it is a text");
    assert_eq!(
        conf(&document.routes[0].plugins).as_deref(),
        Some(r#"{"a":"s3cret","b":["inner","5"],"c":"x$env://KEY"}"#)
    );
    assert_eq!(conf(&document.consumers[0].plugins).as_deref(), Some(r#"{"key":"s3cret"}"#));

    check(
        &[Case {
            about: "references that lead nowhere",
            text: "consumers:\n  - username: a\n    plugins: {key-auth: {key: $env://NO}}\n    credentials: [{plugins: {key-auth: {key: $secret://vault/1/a/b}}}]\n  \
                   - {username: b, plugins: {key-auth: {key: $env://JSON/none}}}\n  - {username: c, plugins: {key-auth: {key: $env://KEY/x}}}\n#END",
            said: &[
                "t:3:31: warning: consumers[0].plugins.key-auth.key: the environment variable \"NO\" is not set; until it is there, nobody is let in by this configuration of key-auth",
                "t:4:46: warning: consumers[0].credentials[0].plugins.key-auth.key: no secret for \"$secret://vault/1/a/b\": there is no valid item \"vault/1\" in `secrets`; until it is there, nobody is let in by this configuration of key-auth",
                "t:5:45: warning: consumers[1].plugins.key-auth.key: the environment variable JSON has no key \"none\"; until it is there, nobody is let in by this configuration of key-auth",
                "t:6:45: warning: consumers[2].plugins.key-auth.key: the environment variable KEY is not JSON, so it has no key \"x\"; until it is there, nobody is let in by this configuration of key-auth",
            ],
            routes: Some(&[]),
        }],
        &OPTIONS,
    );
}
