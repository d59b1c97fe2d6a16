//! Names of variables, and printed values.

use weir_expr::{Value, Variable, VariableError};

#[test]
fn a_name_is_compiled_once() {
    let cases: &[(&str, Variable)] = &[
        ("remote_addr", Variable::RemoteAddr),
        ("uri", Variable::Uri),
        ("document_uri", Variable::Uri),
        ("query_string", Variable::Args),
        ("method", Variable::RequestMethod),
        ("request_method", Variable::RequestMethod),
        ("http_host", Variable::HttpHost),
        ("http_X_Tenant_Id", Variable::Header("x-tenant-id".into())),
        ("http_x-tenant", Variable::Header("x-tenant".into())),
        ("sent_http_Content_Type", Variable::SentHeader("content-type".into())),
        ("upstream_http_server", Variable::UpstreamHeader("server".into())),
        ("upstream_trailer_Grpc_Message", Variable::UpstreamTrailer("grpc-message".into())),
        ("grpc_status", Variable::GrpcStatus),
        ("arg_Page_No", Variable::Arg(b"Page_No"[..].into())),
        ("cookie_SID", Variable::Cookie("SID".into())),
        ("uri_param_id", Variable::UriParam("id".into())),
        ("upstream_status", Variable::UpstreamStatus),
        ("real_request_uri", Variable::RealRequestUri),
        ("apisix_request_id", Variable::RequestId),
        ("arg_a b??c", Variable::Arg(b"a b??c"[..].into())),
        ("apisix_upstream_response_time", Variable::ApisixUpstreamResponseTime),
        ("post_arg_User.Id", Variable::PostArg(b"User.Id"[..].into())),
        ("graphql_operation", Variable::GraphqlOperation),
        ("graphql_root_fields", Variable::GraphqlRootFields),
    ];
    for path in ["post_arg.model", "post_arg.messages[*].content[0].type"] {
        assert_eq!(Variable::parse(path).unwrap().name(), path);
    }
    for (name, variable) in cases {
        assert_eq!(Variable::parse(name).as_ref(), Ok(variable), "{name}");
        assert_eq!(&Variable::parse(&variable.name()).unwrap(), variable, "the name of {name} reads back");
    }
}

#[test]
fn a_name_that_is_not_served_says_why() {
    let cases = [
        ("remote_adr", "unknown variable 'remote_adr' (did you mean 'remote_addr'?)"),
        ("Remote_Addr", "unknown variable 'Remote_Addr' (did you mean 'remote_addr'?)"),
        ("htpp_x_tenant", "unknown variable 'htpp_x_tenant' (did you mean 'http_x_tenant'?)"),
        ("zzz", "unknown variable 'zzz'"),
        ("", "unknown variable ''"),
        ("$uri", "unknown variable '$uri' (did you mean 'uri'?)"),
        ("http_", "variable 'http_' lacks the name after its prefix"),
        ("http_count ?? 10", "variable 'http_count ?? 10' can never be set: no header field or cookie has such a name"),
        ("cookie_a=b", "variable 'cookie_a=b' can never be set: no header field or cookie has such a name"),
        ("post_arg_", "variable 'post_arg_' lacks the name after its prefix"),
        ("post_arg.", "variable 'post_arg.': a name is missing between two points, or at an end"),
        ("post_arg.a[?(@.b)]", "variable 'post_arg.a[?(@.b)]': filters are not supported"),
        ("graphql_names", "unknown variable 'graphql_names' (did you mean 'graphql_name'?)"),
        ("ssl_protocol", "variable 'ssl_protocol' is not supported yet"),
        ("realip_remote_addr", "variable 'realip_remote_addr' is not supported yet"),
        ("binary_remote_addr", "variable 'binary_remote_addr' is not supported yet"),
    ];
    for (name, message) in cases {
        assert_eq!(Variable::parse(name).unwrap_err().to_string(), message);
    }
    assert!(matches!(Variable::parse("jwt_claim"), Err(VariableError::Unsupported { .. })));
}

#[test]
fn values_print_and_count() {
    let address = |text: &str| Value::Ip(text.parse().unwrap());
    let cases: &[(Value<'_>, &str, Option<f64>)] = &[
        (Value::Bytes(b"text"), "text", None),
        (Value::Bytes(b" 12.5e1 "), " 12.5e1 ", Some(125.0)),
        (Value::Bytes(b"-3"), "-3", Some(-3.0)),
        (Value::Bytes(b".5"), ".5", Some(0.5)),
        (Value::Bytes(b"0x1F"), "0x1F", Some(31.0)),
        (Value::Bytes(b"-0x10"), "-0x10", Some(-16.0)),
        (Value::Bytes(b"inf"), "inf", None),
        (Value::Bytes(b"nan"), "nan", None),
        (Value::Bytes(b"1e999"), "1e999", None),
        (Value::Bytes(b"1 2"), "1 2", None),
        (Value::Bytes(b"--1"), "--1", None),
        (Value::Bytes(b"0x"), "0x", None),
        (Value::Bytes(b""), "", None),
        (Value::Bytes(b"\xff1"), "\u{fffd}1", None),
        (Value::Number(0), "0", Some(0.0)),
        (Value::Number(u64::MAX), "18446744073709551615", Some(u64::MAX as f64)),
        (Value::Millis(0), "0.000", Some(0.0)),
        (Value::Boolean(true), "true", None),
        (Value::Boolean(false), "false", None),
        (Value::Json("1.5"), "1.5", Some(1.5)),
        (Value::Json("[1]"), "[1]", None),
        (Value::Json("null"), "null", None),
        (Value::Millis(1_057), "1.057", Some(1.057)),
        (Value::Millis(1_700_000_000_123), "1700000000.123", Some(1_700_000_000.123)),
        (address("0.10.200.255"), "0.10.200.255", None),
        (address("2001:db8::1"), "2001:db8::1", None),
        (address("::ffff:255.255.255.255"), "::ffff:255.255.255.255", None),
        (address("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None),
    ];
    for (value, printed, number) in cases {
        let mut out = b">".to_vec();
        value.write_to(&mut out);
        assert_eq!(String::from_utf8_lossy(&out), format!(">{printed}"));
        assert_eq!(value.as_number(), *number, "{printed}");
    }
}
