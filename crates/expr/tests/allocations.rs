//! Evaluating and rendering do not allocate. The test has its own file because it counts the allocations of the whole
//! process.

use std::alloc::System;

use serde_json::json;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use weir_expr::{Expr, Source, Template, Value, Variable};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

struct Request;

impl Source for Request {
    fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        match variable {
            Variable::RemoteAddr => Some(Value::Ip("2001:db8::7".parse().unwrap())),
            Variable::Status => Some(Value::Number(200)),
            Variable::RequestTime => Some(Value::Millis(12)),
            Variable::Uri => Some(Value::Bytes(b"/orders/17")),
            _ => None,
        }
    }
}

#[test]
fn nothing_is_allocated() {
    let expr = Expr::parse(&json!([
        ["uri", "~~", "^/orders/[0-9]+$"],
        ["status", "==", "200"],
        ["status", "in", ["404", "200"]],
        ["request_time", "<", 1],
        ["OR", ["remote_addr", "ipmatch", ["10.0.0.0/8", "2001:db8::/32"]], ["remote_addr", "==", "::1"]],
        ["msec", "!", ">=", "1"],
        ["arg_none", "!", "has", "a"]
    ]))
    .unwrap();
    let template = Template::parse("$remote_addr $status $request_time $uri").unwrap();
    let mut out = Vec::with_capacity(256);
    assert!(expr.eval(&Request), "warms the regular expression's cache");
    let region = Region::new(ALLOCATOR);
    for _ in 0..100 {
        out.clear();
        assert!(expr.eval(&Request));
        template.render(&Request, &mut out);
    }
    let change = region.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0));
    assert_eq!(out, b"2001:db8::7 200 0.012 /orders/17");
}
