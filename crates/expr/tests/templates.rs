//! Texts with variables.

use weir_expr::{Piece, Source, Template, Value, Variable, VariableError};

struct Request;

impl Source for Request {
    fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        match variable {
            Variable::RemoteAddr => Some(Value::Ip([10, 0, 0, 7].into())),
            Variable::Status => Some(Value::Number(200)),
            Variable::RequestTime => Some(Value::Millis(12)),
            Variable::Arg(name) if &**name == b"page-size" => Some(Value::Bytes(b"25")),
            _ => None,
        }
    }
}

#[test]
fn variables_are_replaced() {
    let cases = [
        ("", ""),
        ("plain", "plain"),
        ("$remote_addr", "10.0.0.7"),
        ("<$remote_addr>", "<10.0.0.7>"),
        ("$remote_addr/${status}x $request_time", "10.0.0.7/200x 0.012"),
        ("${status}${status}", "200200"),
        ("$status$status", "200200"),
        ("${arg_page-size}", "25"),
        ("[$arg_none]", "[]"),
        ("cost: 5$", "cost: 5$"),
        ("$ $- $1 $1x $$", "$ $- $1 $1x $$"),
        ("$$status", "$200"),
        ("${", "${"),
        ("${}", "${}"),
        ("${status", "${status"),
        ("${ status }", "200"),
        ("${status ?? 10}", "200"),
        ("${http_count ?? 10}", "10"),
        ("<${http_count??a b}>", "<a b>"),
        ("${ http_count  ??  10 }", "10"),
        ("${http_count ?? 1 ?? 2}", "1"),
        ("[${http_count ?? }]", "[]"),
        ("\\$status \\${status} $status", "\\$status \\${status} 200"),
        ("\u{e4}$status\u{df}", "\u{e4}200\u{df}"),
    ];
    for (text, expected) in cases {
        let mut out = Vec::new();
        Template::parse(text).unwrap().render(&Request, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected, "{text}");
    }
}

#[test]
fn a_text_can_be_read_as_nginx_reads_it() {
    for (text, expected) in
        [("\\$status ${status}$", "\\200 200$"), ("${arg_page-size}", "25"), ("$1 $$status", "$1 $200")]
    {
        let mut out = Vec::new();
        Template::parse_as_nginx(text).unwrap().render(&Request, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected, "{text}");
    }
    for text in ["${http_x ?? none}", "${ status }"] {
        assert!(Template::parse_as_nginx(text).is_err(), "{text}");
    }
}

#[test]
fn a_line_of_a_log_goes_without_what_is_not_here() {
    let (template, missing) = Template::parse_log("$status $gzip_ratio ${opentelemetry_trace_id}$ $statsu", "-");
    let mut out = Vec::new();
    template.render(&Request, &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), "200 - $ -");
    let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
    assert_eq!(
        missing,
        [
            "at character 9: variable 'gzip_ratio' is not supported yet",
            "at character 48: unknown variable 'statsu' (did you mean 'status'?)",
        ]
    );
}

#[test]
fn an_escape_may_go() {
    for (text, expected) in
        [("\\$status $status", "$status 200"), ("\\${status}\\", "${status}\\"), ("\\$", "$"), ("a$", "a$")]
    {
        let mut out = Vec::new();
        Template::parse_unescaped(text).unwrap().render(&Request, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected, "{text}");
    }
}

#[test]
fn captures_are_replaced_where_asked_for() {
    let captures: &[&[u8]] = &[b"/a/b", b"a", b"b"];
    let cases = [
        ("/$1/$2", "/a/b"),
        ("$0", "/a/b"),
        ("$12", ""),
        ("$1x$300", "ax"),
        ("5$$ $$", "5$ $"),
        ("\\$", "\\$"),
        ("${1}2-${10}", "a2-"),
        ("$9", ""),
        ("$$1 $status", "$1 200"),
        ("\\$1\\$status${http_x ?? $1}", "\\a\\$status$1"),
    ];
    for (text, expected) in cases {
        let template = Template::parse_replacement(text).unwrap();
        let mut out = Vec::new();
        template.render_with_captures(&Request, captures, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected, "{text}");
    }
}

#[test]
fn a_dollar_in_a_replacement_means_something() {
    for (text, position) in [("$`", 0), ("a$", 1), ("$&", 0), ("$1 $-", 3), ("${1", 0), ("${}", 0)] {
        let error = Template::parse_replacement(text).unwrap_err();
        assert_eq!((error.position, error.reason), (position, VariableError::Bare), "{text}");
        // In a field's value, such a `$` is allowed.
        assert!(Template::parse_lenient(text, true).is_ok(), "{text}");
    }
}

#[test]
fn pieces_have_their_origin() {
    let template = Template::parse_replacement("/$1-$status$host").unwrap();
    let mut pieces = Vec::new();
    template.pieces(&Request, &[b"", b"a"], |piece| {
        pieces.push(match piece {
            Piece::Literal(text) => ("literal".to_owned(), text.to_vec()),
            Piece::Capture(text) => ("capture".to_owned(), text.to_vec()),
            Piece::Value(variable, text) => (variable.to_string(), text.to_vec()),
        });
    });
    let expected = [("literal", "/"), ("capture", "a"), ("literal", "-"), ("$status", "200"), ("$host", "")];
    assert_eq!(pieces, expected.map(|(from, text)| (from.to_owned(), text.as_bytes().to_vec())));
}

#[test]
fn a_template_lists_its_variables() {
    assert_eq!(Template::parse("").unwrap().literal(), Some(&b""[..]));
    assert_eq!(Template::parse("5$ off").unwrap().literal(), Some(&b"5$ off"[..]));
    let template = Template::parse("$uri?$args").unwrap();
    assert_eq!(template.literal(), None);
    assert_eq!(template.variables().collect::<Vec<_>>(), [&Variable::Uri, &Variable::Args]);
}

#[test]
fn a_path_into_the_body_has_points() {
    let names = |template: Template| template.variables().map(|v| v.name().into_owned()).collect::<Vec<_>>();
    for (text, expected) in [
        ("$post_arg.user.id.", "post_arg.user.id"),
        ("[$post_arg.a]", "post_arg.a"),
        ("$post_arg_a.b", "post_arg_a"),
        ("${post_arg.a[*].b ?? x}", "post_arg.a[*].b"),
        ("$host.html", "host"),
    ] {
        assert_eq!(names(Template::parse(text).unwrap()), [expected], "{text}");
    }
    // nginx has no such names.
    assert!(Template::parse_as_nginx("$post_arg.a").is_err());
    assert_eq!(names(Template::parse_as_nginx("${post_arg.a}").unwrap()), ["post_arg.a"]);
}

#[test]
fn an_unknown_variable_is_an_error_with_its_position() {
    let cases = [
        ("a $statsu", 2, "at character 3: unknown variable 'statsu' (did you mean 'status'?)"),
        ("${nothing_like_it}", 0, "at character 1: unknown variable 'nothing_like_it'"),
        (
            "${http_count of}",
            0,
            "at character 1: variable 'http_count of' can never be set: no header field or cookie has such a name",
        ),
        ("$uri $jwt_x", 5, "at character 6: variable 'jwt_x' is not supported yet"),
    ];
    for (text, position, message) in cases {
        let error = Template::parse(text).unwrap_err();
        assert_eq!((error.position, error.to_string().as_str()), (position, message));
    }
}

#[test]
fn an_unknown_variable_may_stand_for_nothing() {
    let cases = [
        ("a $statsu.", "a .", vec!["at character 3: unknown variable 'statsu' (did you mean 'status'?)"]),
        ("${zzz ?? b}$status", "b200", vec!["at character 1: unknown variable 'zzz'"]),
        ("$http_ \\$zzz", " \\$zzz", vec!["at character 1: variable 'http_' lacks the name after its prefix"]),
        ("$status", "200", vec![]),
        (
            "[$http_header_Authorization]",
            "[]",
            vec![
                "at character 2: $http_header_authorization is the field Header-…; the field itself is $http_authorization",
            ],
        ),
    ];
    for (text, expected, unknown) in cases {
        let mut out = Vec::new();
        Template::parse_lenient(text, false).unwrap().render(&Request, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected, "{text}");
        let said: Vec<String> = Template::unknown(text).iter().map(ToString::to_string).collect();
        assert_eq!(said, unknown, "{text}");
    }
    assert_eq!(Template::parse_lenient("$zzz", false).unwrap().literal(), Some(&b""[..]));
    let error = Template::parse_lenient("$jwt_x", false).unwrap_err();
    assert!(error.to_string().contains("not supported yet"), "{error}");
    assert_eq!(Template::unknown("$jwt_x"), []);
}

#[test]
fn what_stands_in_braces_is_no_separator() {
    for (text, at) in [
        ("/a?b", Some(2)),
        ("/${arg_a ?? b}?c", Some(14)),
        ("/${arg_a ?? b}", None),
        ("/${a?b", Some(4)),
        ("/$a?b", Some(3)),
        ("\u{e4}?", Some(2)),
    ] {
        assert_eq!(Template::find_outside(text, b"?"), at, "{text}");
    }
}

#[test]
fn a_template_knows_if_a_variable_has_a_value() {
    for (text, has_any) in [
        ("", false),
        ("plain", false),
        ("$arg_none$uri", false),
        ("$arg_none$status", true),
        ("$arg_page-size", false),
        ("${arg_page-size}", true),
        ("$uri ${arg_none ?? 1}", true),
    ] {
        assert_eq!(Template::parse(text).unwrap().has_any(&Request), has_any, "{text}");
    }
}
