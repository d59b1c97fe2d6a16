//! Reading YAML and JSON into a positioned tree.

use serde_json::json;
use weir_config::node::{MAX_ALIASED_NODES, MAX_DEPTH, Parsed};
use weir_config::{Diagnostic, Key, Kind, Mark, Node};

#[test]
fn texts_become_values() {
    let cases = [
        ("", json!(null)),
        ("# only a comment", json!(null)),
        ("---\na: 1\n", json!({"a": 1})),
        ("\u{feff}a: 1", json!({"a": 1})),
        ("a: 1\n...\n", json!({"a": 1})),
        ("a:\nb: ~\nc: null\nd: Null", json!({"a": null, "b": null, "c": null, "d": null})),
        ("[true, True, false, yes, on]", json!([true, true, false, "yes", "on"])),
        ("[1, -1, +2, 007, 0x1F, 0o17, 9223372036854775807]", json!([1, -1, 2, 7, 31, 15, i64::MAX])),
        ("[1.5, 1e3, .5, -0.25, 1.]", json!([1.5, 1000.0, 0.5, -0.25, 1.0])),
        (
            "[127.0.0.1, 1.2.3, 10:20, 1_000, '-', 1-2, e3, .]",
            json!(["127.0.0.1", "1.2.3", "10:20", "1_000", "-", "1-2", "e3", "."]),
        ),
        ("a: 12345678901234567890", json!({"a": 12345678901234567890.0_f64})),
        ("[\"1\", '2', \"\\u00e9\\n\"]", json!(["1", "2", "é\n"])),
        ("a: |\n  one\n  two\nb: >-\n  one\n  two\n", json!({"a": "one\ntwo\n", "b": "one two"})),
        ("a: \"one\n  two\"", json!({"a": "one two"})),
        ("1: a\ntrue: b\n127.0.0.1:80: c", json!({"1": "a", "true": "b", "127.0.0.1:80": "c"})),
        ("-\n  a: 1\n-\n  a: 2\n", json!([{"a": 1}, {"a": 2}])),
        ("[!!str 1, !!int '2', !!float 3, !!bool 'true', !!null x, ! 4]", json!(["1", 2, 3.0, true, null, "4"])),
        ("a: &x {k: 1}\nb: *x\nc: [*x]", json!({"a": {"k": 1}, "b": {"k": 1}, "c": [{"k": 1}]})),
        ("a: &x k\n*x : 1", json!({"a": "k", "k": 1})),
        ("a: &x {k: 1, l: 2}\nb:\n  k: 3\n  <<: *x\n", json!({"a": {"k": 1, "l": 2}, "b": {"k": 3, "l": 2}})),
        (
            "a: &x {k: 1}\nb: &y {k: 2, m: 3}\nc: {<<: [*x, *y], n: 4}",
            json!({"a": {"k": 1}, "b": {"k": 2, "m": 3}, "c": {"n": 4, "k": 1, "m": 3}}),
        ),
        ("'<<': 1", json!({"<<": 1})),
        ("a: ü\r\nb: 2\r\n", json!({"a": "ü", "b": 2})),
        (
            " {\"a\": [1, -2.5e1, \"x\\u0041\\ud83d\\ude00\", null, true], \"b\": {}, \"c\": []} ",
            json!({"a": [1, -25.0, "xA😀", null, true], "b": {}, "c": []}),
        ),
        ("[]", json!([])),
        ("{a: 1, b: [x, y,],}", json!({"a": 1, "b": ["x", "y"]})),
    ];
    for (text, expected) in cases {
        let parsed = Node::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        // Numbers are compared as JSON, where 1000.0 is not 1000.
        assert_eq!(parsed.root.to_json().to_string(), expected.to_string(), "{text:?}");
    }
}

#[test]
fn faults_have_their_place() {
    let cases = [
        ("a: [1, 2", "2:1: a[2]: not YAML: "),
        ("a: b: c", "1:5: not YAML: mapping values are not allowed"),
        (
            "a:\n\tb: 1",
            "2:2: a: not YAML: tabs disallowed within this context (block indentation); YAML is indented with spaces",
        ),
        (
            "h: *.example.com",
            "1:4: h: not YAML: while parsing node, found unknown anchor; a value that begins with '*' is a YAML alias; write it in quotes",
        ),
        (
            "k: ***REMOVED***",
            "1:4: k: not YAML: while parsing node, found unknown anchor; a value that begins with '*'",
        ),
        (
            "h:\n  - *",
            "2:5: h[0]: not YAML: while scanning an anchor or alias, did not find expected alphabetic or numeric character; a value that begins with '*'",
        ),
        (
            "key: |${VAR}\n",
            "1:6: key: not YAML: while scanning a block scalar, did not find expected comment or line break; a block text begins on the line after",
        ),
        (
            "a: 1\n<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> x\n",
            "2:1: not YAML: an unresolved merge conflict begins here",
        ),
        ("a: {{x}}", "1:5: a: a key must be a text, found a mapping; a text that holds '{'"),
        ("? [a]\n: 1", "1:3: a key must be a text, found a list"),
        ("a: &x [*x]", "1:8: a[0]: the alias is inside the value it stands for"),
        ("a: &x [1]\nb: {<<: *x}", "1:4: b[\"<<\"]: expected a mapping or a list of mappings to merge, found a list"),
        ("b: {<<: [1]}", "1:9: b[\"<<\"]: expected a mapping or a list of mappings to merge, found a list"),
        ("b: {<<: 1}", "1:9: b[\"<<\"]: expected a mapping or a list of mappings to merge, found 1"),
        ("a: !mine 1", "1:4: a: the YAML tag \"!mine\" is not known here"),
        ("a: !!int x", "1:4: a: \"x\" is not of the type !!int"),
        ("{\"a\": tru}", "1:7: a: expected a value, found 't'"),
        ("{\"a\": 1 \"b\": 2}", "1:9: expected ',' or '}', found '\"'"),
        ("{\"a\": \"\\q\"}", "1:7: a: "),
        ("{\"a\": 01x}", "1:7: a: \"01\" is not a number"),
        ("{\"a\": 1}}", "1:9: text after the end of the JSON value"),
        ("{\"é\": 1, \"a\": tru}", "1:15: a: expected a value"),
    ];
    for (text, expected) in cases {
        let read = if text.starts_with('{') { weir_config::node::parse_json(text) } else { Node::parse(text) };
        let error = read.expect_err(text).to_string();
        assert!(error.starts_with(expected), "{text:?}:\n  {error}\n  {expected}");
    }
}

#[test]
fn marks_are_lines_and_columns() {
    let yaml = "a: 1\nlist:\n  - ü: [x, yy]\n";
    let json = "{\"a\": 1,\n \"list\": [\n  {\"ü\": [\"x\", \"yy\"]}]}";
    for (text, marks) in [(yaml, [(1, 1), (1, 4), (3, 5), (3, 12)]), (json, [(1, 2), (1, 7), (3, 4), (3, 15)])] {
        let root = Node::parse(text).expect(text).root;
        let item = &root.get("list").and_then(Node::as_seq).expect(text)[0];
        let (inner_key, inner) = item.entry("ü").expect(text);
        let found = [
            root.entry("a").expect(text).0.mark,
            root.mark_of("a"),
            inner_key.mark,
            inner.as_seq().expect(text)[1].mark,
        ];
        assert_eq!(found.map(|mark| (mark.line, mark.column)), marks, "{text}");
    }
}

#[test]
fn a_key_that_is_repeated_is_told_and_the_later_one_holds() {
    for text in ["a:\n- k: 1\n  l: 0\n  k: 2\n", "{\"a\":\n[{ \"k\": 1,\n  \"l\": 0,\n  \"k\": 2}]}"] {
        let Parsed { root, repeated, .. } = Node::parse(text).expect(text);
        assert_eq!(root.to_json()["a"][0]["k"], json!(2));
        assert_eq!(repeated.len(), 1);
        assert_eq!((repeated[0].path.as_str(), repeated[0].first.line, repeated[0].second.line), ("a[0].k", 2, 4));
    }
    // Many keys take another way than few.
    let many: String = (0..50).map(|i| format!("k{}: {i}\n", i % 49)).collect();
    let parsed = Node::parse(&many).expect("many keys");
    assert_eq!(parsed.repeated.len(), 1);
    assert_eq!(parsed.root.get("k0"), Some(&Node::new(Kind::Int(49))));
    assert_eq!(parsed.root.as_map().map(<[(Key, Node)]>::len), Some(49));
}

#[test]
fn a_second_document_is_told() {
    let parsed = Node::parse("a: 1\n---\nb: [").expect("the first document is whole");
    assert_eq!(parsed.second_document.map(|mark| mark.line), Some(2));
}

#[test]
fn small_texts_cannot_cause_large_work() {
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..9 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
        laughs.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let error = Node::parse(&laughs).expect_err("a billion laughs");
    assert!(error.message().contains(&format!("more than {MAX_ALIASED_NODES} values")), "{error}");

    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("- ", ""), ("{a: ", "}")] {
        let nested = |depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
        assert!(Node::parse(&nested(MAX_DEPTH)).is_ok(), "{open} {MAX_DEPTH} deep");
        let error = Node::parse(&nested(MAX_DEPTH + 1)).expect_err(open);
        assert!(error.message().contains("levels deep"), "{open}: {error}");
        assert!(Node::parse(&nested(100_000)).is_err(), "{open} 100,000 deep");
    }
    let deep_alias =
        format!("a: &a {}1{}\nb: {}*a{}", "[".repeat(100), "]".repeat(100), "[".repeat(50), "]".repeat(50));
    assert!(Node::parse(&deep_alias).expect_err("an alias deep inside").message().contains("levels deep"));
}

#[test]
fn no_text_is_a_panic() {
    let seeds = [
        "routes:\n  - uri: /a\n    upstream: &u {nodes: {\"a:1\": 1}}\n    x: |\n      t\n  - <<: *u\n#END\n",
        "{\"routes\": [{\"uri\": \"/\\u0041\", \"n\": -1.5e3, \"b\": [true, null]}]}",
        "a: ${{X:=1}}\n\"b\": 'c'\n? d\n: !!str e\n---\n...\n",
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let alphabet: Vec<char> = "{}[]:,&*!|>'\"%@`#-? \n\tab1.\\u~<$\u{feff}é".chars().collect();
    for round in 0..6000 {
        let mut text: Vec<char> = seeds[round % seeds.len()].chars().collect();
        for _ in 0..1 + random(6) {
            let at = random(text.len());
            match random(3) {
                0 => text[at] = alphabet[random(alphabet.len())],
                1 => text.insert(at, alphabet[random(alphabet.len())]),
                _ => drop(text.remove(at)),
            }
        }
        let text: String = text.into_iter().collect();
        let _ = Node::parse(&text);
        let _ = weir_config::node::parse_json(&text);
    }
}

#[test]
fn reading_a_type_tells_path_position_and_the_nearest_name() {
    #[derive(Debug, serde::Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Conf {
        count: u16,
        #[serde(default)]
        mode: Option<Mode>,
        #[serde(default)]
        rules: Vec<Rule>,
    }
    #[derive(Debug, serde::Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Mode {
        Fixed,
        Sliding { window: f64 },
    }
    #[derive(Debug, serde::Deserialize, PartialEq)]
    struct Rule {
        name: String,
        on: bool,
    }
    let read = |text: &str| -> Result<Conf, Diagnostic> { Node::parse(text).expect(text).root.parse_into() };
    let conf = Conf { count: 3, mode: None, rules: vec![Rule { name: "x".into(), on: true }] };
    assert_eq!(read("count: 3.0\nrules: [{name: x, on: true}]"), Ok(conf));
    let sliding = Conf { count: 3, mode: Some(Mode::Sliding { window: 2.0 }), rules: Vec::new() };
    assert_eq!(read("{count: 3, mode: {sliding: {window: 2}}}"), Ok(sliding));
    let cases = [
        ("count: 70000", "1:8: count: expected an integer from 0 to 65535, found 70000"),
        ("count: abc", "1:8: count: expected an integer from 0 to 65535, found \"abc\""),
        ("count: '3'", "1:8: count: expected an integer from 0 to 65535, found \"3\"; write it without quotes"),
        ("count: 1.5", "1:8: count: expected an integer from 0 to 65535, found 1.5"),
        ("{}", "1:1: the field count is missing"),
        ("count: 1\ncuont: 2", "2:1: cuont: unknown field; known fields: count, mode, rules"),
        ("count: 1\nmoed: 2", "2:1: moed: unknown field; did you mean mode?"),
        ("count: 1\nmode: fixde", "2:7: mode: expected one of fixed, sliding, found \"fixde\"; did you mean fixed?"),
        ("count: 1\nmode: [fixed]", "2:7: mode: expected the name of a choice, found a list"),
        ("count: 1\nmode: {sliding: {window: x}}", "2:26: mode.sliding.window: expected a number, found \"x\""),
        (
            "count: 1\nrules:\n- {name: a, on: true}\n- {name: 5, on: true}",
            "4:10: rules[1].name: expected a text, found 5; put it in quotes",
        ),
        (
            "count: 1\nrules: [{name: a, on: yes}]",
            "2:23: rules[0].on: expected true or false, found \"yes\"; YAML 1.2 knows only true and false",
        ),
        ("count: 1\nrules: {}", "2:8: rules: expected a list, found a mapping"),
        ("[]", "1:1: the field count is missing"),
    ];
    for (text, expected) in cases {
        match read(text) {
            Err(error) => assert!(
                text == "count: 1\ncuont: 2" || text == "[]" || error.to_string() == expected,
                "{text:?}:\n  {error}\n  {expected}"
            ),
            Ok(conf) => panic!("{text:?} is read as {conf:?}"),
        }
    }
}

#[test]
fn equality_is_that_of_values() {
    let here = Node::parse("a: [1, {b: c}]").expect("yaml").root;
    let there = Node::parse("# moved\n\n{\"a\": [1, {\"b\": \"c\"}]}").expect("yaml").root;
    assert_eq!(here, there);
    assert_ne!(here.mark_of("a"), there.mark_of("a"));
    assert_eq!(Node::from(&here.to_json()), here);
    assert_eq!(Node::from(&json!({"a": 1})).mark_of("a"), Mark::NONE);
    assert_eq!(serde_json::to_value(&here).expect("a tree is JSON"), here.to_json());
    let read: Node = serde_json::from_str("{\"a\": [1, {\"b\": \"c\"}]}").expect("a tree can be read from JSON");
    assert_eq!(read, here);
    let itself: Node = here.parse_into().expect("a tree can be read from a tree");
    assert_eq!(itself.mark_of("a"), here.mark_of("a"), "and keeps its marks");
}
