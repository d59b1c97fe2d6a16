//! Expressions in array form: results, refusals and their error texts.

use serde_json::{Value as Json, json};
use weir_expr::{Expr, Source, Value, Variable};

struct Request;

impl Source for Request {
    fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        match variable {
            Variable::RemoteAddr => Some(Value::Ip("::ffff:10.1.2.3".parse().unwrap())),
            Variable::ServerPort => Some(Value::Number(9080)),
            Variable::RequestTime => Some(Value::Millis(1500)),
            Variable::Host => Some(Value::Bytes(b"api.test")),
            Variable::Arg(name) => match &**name {
                b"n" => Some(Value::Bytes(b"18")),
                b"hex" => Some(Value::Bytes(b"0x10")),
                b"name" => Some(Value::Bytes(b"jack")),
                b"ip" => Some(Value::Bytes(b"2001:db8::7")),
                b"latin" => Some(Value::Bytes(b"caf\xe9")),
                b"empty" => Some(Value::Bytes(b"")),
                b"flag" => Some(Value::Boolean(true)),
                b"off" => Some(Value::Boolean(false)),
                b"count" => Some(Value::Json("3")),
                b"list" => Some(Value::Json(r#"["a", "\u0062", 3, true, ["c"]]"#)),
                b"null" => Some(Value::Json("null")),
                b"true" => Some(Value::Bytes(b"true")),
                _ => None,
            },
            _ => None,
        }
    }
}

#[test]
fn values_of_bodies_have_their_types() {
    for (test, expected) in [
        (json!(["arg_count", "==", 3]), true),
        (json!(["arg_count", "==", "3"]), false),
        (json!(["arg_count", ">", 2]), true),
        (json!(["arg_count", "in", [1, 3]]), true),
        (json!(["arg_count", "in", ["3"]]), false),
        (json!(["arg_n", "in", [18]]), false),
        (json!(["arg_count", "has", 3]), true),
        (json!(["arg_off", "==", false]), true),
        (json!(["arg_off", "==", "false"]), false),
        (json!(["arg_list", "has", "a"]), true),
        (json!(["arg_list", "has", "b"]), true),
        (json!(["arg_list", "has", 3]), true),
        (json!(["arg_list", "has", true]), true),
        (json!(["arg_list", "has", "3"]), false),
        (json!(["arg_list", "has", "c"]), false),
        (json!(["arg_list", "!", "has", "c"]), true),
        (json!(["arg_list", "==", "a"]), false),
        (json!(["arg_list", "in", ["a"]]), false),
        (json!(["arg_null", "==", null]), false),
        (json!(["arg_name", "has", "jack"]), true),
        (json!(["arg_nothing", "has", "jack"]), false),
        (json!(["arg_list", "ipmatch", "10.0.0.0/8"]), false),
    ] {
        assert_eq!(holds(&test), expected, "{test}");
    }
}

/// True if the expression holds; a single test is wrapped in a list.
fn holds(json: &Json) -> bool {
    let single = json.get(0).and_then(Json::as_str).is_some_and(|name| name == "host" || name.contains('_'));
    let wrapped = if single { json!([json]) } else { json.clone() };
    Expr::parse(&wrapped).unwrap_or_else(|error| panic!("{json}: {error}")).eval(&Request)
}

#[test]
fn tests_hold_or_fail() {
    let holding = [
        json!([]),
        json!(["arg_name", "jack"]),
        json!(["arg_name", "==", "jack"]),
        json!([["arg_name", "==", "jack"], ["host", "==", "api.test"]]),
        json!(["arg_empty", "==", ""]),
        json!(["arg_n", "==", 18]),
        json!(["arg_n", "==", 18.0]),
        json!(["arg_n", "==", "18"]),
        json!(["arg_n", "~=", "18.0"]),
        json!(["arg_hex", "==", 16]),
        json!(["server_port", "==", 9080]),
        json!(["server_port", "==", "9080"]),
        json!(["request_time", "==", 1.5]),
        json!(["request_time", "==", "1.500"]),
        json!(["arg_name", "~=", 5]),
        json!(["arg_name", "~=", "joe"]),
        json!(["arg_name", "~=", true]),
        json!(["arg_n", ">", 9]),
        json!(["arg_n", ">", "9"]),
        json!(["arg_n", ">=", 18]),
        json!(["arg_n", "<", 18.5]),
        json!(["arg_n", "<=", "18"]),
        json!(["arg_n", "!", "<", "joe"]),
        json!(["arg_flag", "==", true]),
        json!(["arg_flag", "~=", "true"]),
        json!(["arg_flag", "~~", "^true$"]),
        json!(["arg_flag", "in", ["true", true]]),
        json!(["arg_flag", "~=", null]),
        json!(["arg_true", "==", "true"]),
        json!(["arg_true", "~=", true]),
        json!(["arg_name", "IN", ["jack"]]),
        json!(["remote_addr", "!", "IPMatch", "192.168.0.0/16"]),
        json!(["host", "~~", r"^api\.\w+$"]),
        json!(["host", "~*", "^API"]),
        json!(["arg_latin", "~~", "^caf.$"]),
        json!(["server_port", "~~", "^90"]),
        json!(["arg_name", "~~", "[äjö]ack"]),
        json!(["arg_name", "in", ["joe", "jack"]]),
        json!(["arg_n", "in", [17, "18"]]),
        json!(["arg_name", "~~", r"\Qjack\E\Z"]),
        json!(["arg_name", "!", "in", []]),
        json!(["arg_name", "has", "jack"]),
        json!(["arg_name", "!", "has", "jac"]),
        json!(["remote_addr", "ipmatch", "10.0.0.0/8"]),
        json!(["remote_addr", "ipmatch", ["192.168.0.0/16", "10.1.2.3"]]),
        json!(["remote_addr", "ipmatch", "::ffff:10.1.2.3"]),
        json!(["arg_ip", "ipmatch", ["2001:db8::/32"]]),
        json!(["arg_name", "!", "ipmatch", "10.0.0.0/8"]),
        json!(["arg_name", "!", "==", "joe"]),
        json!(["arg_name", "!", "~=", "jack"]),
    ];
    for json in &holding {
        assert!(holds(json), "{json} should hold");
    }
    let failing = [
        json!(["arg_name", "Jack"]),
        json!(["arg_n", "==", "18.0"]),
        json!(["arg_name", "==", 5]),
        json!(["arg_name", "==", true]),
        json!([["arg_name", "==", "jack"], ["host", "==", "other"]]),
        json!(["arg_name", ">", 5]),
        json!(["arg_name", "<", 5]),
        json!(["arg_name", "<", "joe"]),
        json!(["arg_name", ">", "18"]),
        json!(["arg_n", "<", "joe"]),
        json!(["arg_n", "in", [17, 18]]),
        json!(["server_port", "in", [9080]]),
        json!(["arg_flag", "==", "true"]),
        json!(["arg_flag", "==", false]),
        json!(["arg_flag", ">", 0]),
        json!(["host", "~~", r"\<api"]),
        json!(["arg_name", ">", true]),
        json!(["arg_n", ">", 18]),
        json!(["host", "~~", "^API"]),
        json!(["arg_name", "in", ["joe"]]),
        json!(["arg_name", "has", "jac"]),
        json!(["server_port", "ipmatch", "0.0.0.0/0"]),
        json!(["arg_ip", "ipmatch", "10.0.0.0/8"]),
        json!(["arg_name", "!", "==", "jack"]),
    ];
    for json in &failing {
        assert!(!holds(json), "{json} should fail");
    }
}

#[test]
fn an_unset_variable_fails_everything_but_its_negation() {
    let values = |operator: &str| match operator {
        "in" => json!(["a", 1]),
        "ipmatch" => json!("0.0.0.0/0"),
        "~~" | "~*" => json!(".*"),
        _ => json!("a"),
    };
    for operator in ["==", ">", ">=", "<", "<=", "~~", "~*", "in", "has", "ipmatch"] {
        assert!(!holds(&json!(["arg_none", operator, values(operator)])), "{operator}");
        assert!(holds(&json!(["arg_none", "!", operator, values(operator)])), "! {operator}");
    }
    assert!(holds(&json!(["arg_none", "~=", "a"])));
    assert!(holds(&json!(["arg_none", "==", null])));
    assert!(holds(&json!(["arg_none", null])));
    assert!(!holds(&json!(["arg_none", "~=", null])));
    assert!(holds(&json!(["arg_empty", "~=", null])));
    assert!(!holds(&json!(["arg_empty", "==", null])));
}

#[test]
fn logic_nests() {
    let (yes, no) = (json!(["arg_name", "jack"]), json!(["arg_name", "joe"]));
    let cases = [
        (json!(["AND", yes, yes]), true),
        (json!(["AND", yes, no]), false),
        (json!(["OR", no, yes]), true),
        (json!(["OR", no, no]), false),
        (json!(["!AND", yes, no]), true),
        (json!(["!AND", yes, yes]), false),
        (json!(["!OR", no, no]), true),
        (json!(["!OR", no, yes]), false),
        (json!(["or", no, yes]), true),
        (json!(["!and", yes, no]), true),
        (json!([["OR", no, ["AND", yes, ["!OR", no, no]]], yes]), true),
        (json!(["AND", yes, [yes, ["OR", yes, no]]]), true),
        (json!(["OR", [yes, no], [yes, ["!AND", no, yes]]]), true),
    ];
    for (json, expected) in &cases {
        assert_eq!(holds(json), *expected, "{json}");
    }
}

#[test]
fn a_bad_expression_is_refused_at_its_place() {
    let mut deep = json!(["uri", "/"]);
    for _ in 0..40 {
        deep = json!([deep]);
    }
    let cases = [
        (json!("uri"), "rule should be an array"),
        (json!(null), "rule should be an array"),
        (json!(["uri"]), "rule should be wrapped inside brackets"),
        (json!(["uri", "==", "/"]), "rule should be wrapped inside brackets"),
        (json!([["uri"]]), "[0]: rule too short"),
        (json!([[]]), "[0]: rule too short"),
        (json!(["AND"]), "rule too short"),
        (json!(["OR", ["uri", "/"]]), "rule too short"),
        (json!([["!or", ["uri", "/"]]]), "[0]: rule too short"),
        (json!([["uri", "~~"]]), "[0]: rule too short"),
        (json!([["uri", "!", "=="]]), "[0]: rule too short"),
        (json!([["uri", "==", "a", "b"]]), "[0]: rule too long"),
        (json!([["uri", "=~", "a"]]), "[0][1]: invalid operator '=~' (did you mean '~~'?)"),
        (json!([["uri", "!=", "a"]]), "[0][1]: invalid operator '!=' (did you mean '~='?)"),
        (
            json!([["uri", "==", "a"], ["uri", "!", "INN", ["a"]]]),
            "[1][2]: invalid operator 'INN' (did you mean 'in'?)",
        ),
        (json!([["uri", "ip_match", "::1"]]), "[0][1]: invalid operator 'ip_match' (did you mean 'ipmatch'?)"),
        (json!([["uri", "x", "a"]]), "[0][1]: invalid operator 'x'"),
        (json!([["uri", 7, "a"]]), "[0][1]: invalid operator '7'"),
        (json!([["AND", ["uri", "/"], ["ury", "/"]]]), "[0][2][0]: unknown variable 'ury' (did you mean 'uri'?)"),
        (json!([["jwt_x", "/"]]), "[0][0]: variable 'jwt_x' is not supported yet"),
        (json!([["post_arg.a..b..c", "/"]]), "[0][0]: variable 'post_arg.a..b..c': '..' may stand in it once"),
        (json!([["uri", "in", "a"]]), "[0][2]: operator 'in' needs an array"),
        (json!([["uri", "in", ["a", {}]]]), "[0][2][1]: operator 'in' cannot compare with {}"),
        (json!([["uri", "==", [1]]]), "[0][2]: operator '==' cannot compare with [1]"),
        (json!([["uri", ">", null]]), "[0][2]: operator '>' cannot compare with null"),
        (json!([["uri", "ipmatch", ["::1", "10.0.0.0/33"]]]), "[0][2][1]: invalid ip address '10.0.0.0/33'"),
        (json!([["uri", "ipmatch", 4]]), "[0][2]: operator 'ipmatch' needs addresses as strings"),
        (json!([["uri", "~~", 4]]), "[0][2]: operator '~~' needs a regular expression as a string"),
        (json!(deep), "nested deeper than 32 levels"),
    ];
    for (json, message) in &cases {
        let error = Expr::parse(json).unwrap_err().to_string();
        assert!(error == *message || json == &deep && error.ends_with(message), "{json}: {error}");
    }
}

#[test]
fn an_expression_that_never_holds_is_reported() {
    for (json, doubts) in [
        (json!([["arg_a", "in", ["1", 2, 3]]]), vec!["[0][2][1]: a number equals", "[0][2][2]: a number equals"]),
        (
            json!(["OR", ["arg_a", "!", "IN", [1]], ["arg_a", "<", "x"]]),
            vec!["[1][3][0]: a number", "[2][2]: it is no"],
        ),
        (json!([["http_header_X", "==", "1"]]), vec!["[0][0]: $http_header_x is the field Header-…"]),
        (json!([["arg_a", "in", ["1"]], ["arg_a", "<", "0x1"], ["arg_a", "==", 1]]), vec![]),
    ] {
        let found = Expr::doubts(&json);
        assert_eq!(found.len(), doubts.len(), "{json}: {found:?}");
        assert!(found.iter().zip(doubts).all(|(found, doubt)| found.to_string().starts_with(doubt)), "{found:?}");
    }
}

#[test]
fn a_regular_expression_that_cannot_be_served_says_so() {
    for (pattern, part) in [
        ("a(?=b)", "look-around"),
        (r"(a)\1", "backreferences are not supported"),
        ("a(", "unclosed group"),
        ("(a{1000}){1000}", "size limit"),
    ] {
        let error = Expr::parse(&json!([["uri", "~~", pattern]])).unwrap_err();
        assert_eq!(error.path, "[0][2]");
        assert!(error.message.contains(part), "{error}");
        assert!(!error.message.contains('\n'), "one line: {error}");
    }
}

#[test]
fn an_expression_explains_itself() {
    let failing = |json: Json| Expr::parse(&json).unwrap().failing(&Request);
    assert_eq!(failing(json!([["arg_name", "jack"], ["arg_n", "<", 3]])), Some("[1]".to_owned()));
    assert_eq!(failing(json!(["AND", ["arg_name", "jack"], ["arg_n", "<", 3]])), Some("[2]".to_owned()));
    assert_eq!(failing(json!(["OR", ["arg_n", "<", 3], ["arg_n", "<", 2]])), Some(String::new()));
    assert_eq!(failing(json!(["or", ["arg_n", ">", 3], ["arg_n", "<", 2]])), None);
    let expr =
        Expr::parse(&json!([["OR", ["uri", "/"], ["!OR", ["args", "x"], ["args", "y"]]], ["host", "h"]])).unwrap();
    assert_eq!(expr.variables(), [&Variable::Uri, &Variable::Args, &Variable::Args, &Variable::Host]);
}
