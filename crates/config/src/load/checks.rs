//! The rules of an upstream's `checks`.

use super::rules::{drop_nulls, field, looks_like_milliseconds};
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::node::{Kind, Node, push_index, quoted};

/// Fields of an active check that only a request has.
const HTTP_FIELDS: [&str; 6] =
    ["http_method", "http_path", "http_req_body", "req_headers", "host", "https_verify_certificate"];

/// Fields of an active check that only a request over HTTP/1.1 has.
const REQUEST_FIELDS: [&str; 4] = ["http_method", "http_path", "http_req_body", "req_headers"];

/// Fields that frame a check's request, which only the gateway can get right.
const OWN_FIELDS: [&str; 3] = ["connection", "content-length", "transfer-encoding"];

/// Looks at the `checks` of an upstream; `tls`: its nodes are spoken to over TLS.
pub(super) fn prepare_checks(checks: &mut Node, tls: bool, path: &str, found: &mut Vec<Diagnostic>) {
    drop_nulls(checks, path, found);
    for kind in ["active", "passive"] {
        let Some(inner) = checks.get_mut(kind) else { continue };
        let path = field(path, kind);
        drop_nulls(inner, &path, found);
        for side in ["healthy", "unhealthy"] {
            if let Some(side_node) = inner.get_mut(side) {
                drop_nulls(side_node, &field(&path, side), found);
            }
        }
        warn_of_ambiguous_statuses(inner, &path, found);
    }
    let is_alone = checks.get("only_passive").is_some_and(|flag| flag.kind == Kind::Bool(true));
    if is_alone {
        if let Some((key, _)) = checks.remove("active") {
            let code = Code::NoEffect { why: "with only_passive: true".into() };
            found.push(Diagnostic::warning(key.mark, field(path, "active"), code));
        }
        checks.insert("active", Node::empty_map());
        return;
    }
    if let (Some((key, _)), true) = (checks.entry("passive"), checks.get("active").is_none()) {
        let error = Diagnostic::error(key.mark, field(path, "passive"), Code::PassiveAlone);
        found.push(error.with_hint("add active, if only with its defaults: {}"));
        checks.insert("active", Node::empty_map());
    }
    if let Some(active) = checks.get("active") {
        check_active(active, &field(path, "active"), found);
        let plain = active.get("type").is_none_or(|value| value.as_str() == Some("http"));
        if tls && plain && active.as_map().is_some() && active.get("port").is_none() {
            let warning = Diagnostic::warning(active.mark_of("type"), field(path, "active"), Code::ChecksWithoutTls);
            found.push(warning.with_hint("type: https checks them over TLS"));
        }
    }
}

fn check_active(active: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    let (fields, why): (&[&str], _) = match active.get("type").and_then(Node::as_str) {
        Some("tcp") => (&HTTP_FIELDS, "with the type tcp: a connection is all that is tried"),
        Some("grpc") => (&REQUEST_FIELDS, "with the type grpc: the call is always the same"),
        _ => (&[], ""),
    };
    for name in fields {
        if let Some((key, _)) = active.entry(name) {
            found.push(Diagnostic::warning(key.mark, field(path, name), Code::NoEffect { why: why.into() }));
        }
    }
    let seconds = match active.get("timeout").map(|value| &value.kind) {
        Some(Kind::Int(number)) => *number as f64,
        Some(Kind::Float(number)) => *number,
        _ => 0.0,
    };
    if looks_like_milliseconds(seconds) {
        let code = Code::LongTime { seconds: seconds.to_string() };
        let hint = "the unit is seconds, not milliseconds";
        found.push(Diagnostic::warning(active.mark_of("timeout"), field(path, "timeout"), code).with_hint(hint));
    }
    for (index, header) in active.get("req_headers").and_then(Node::as_seq).unwrap_or_default().iter().enumerate() {
        let name = header.as_str().and_then(|text| text.split(':').next()).unwrap_or_default();
        if OWN_FIELDS.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            let mut place = field(path, "req_headers");
            push_index(&mut place, index);
            let code = Code::OwnFieldOfCheck { name: quoted(name) };
            found.push(Diagnostic::warning(header.mark, place, code));
        }
    }
}

fn warn_of_ambiguous_statuses(checks: &Node, path: &str, found: &mut Vec<Diagnostic>) {
    let statuses = |side: &str| checks.get(side)?.get("http_statuses")?.as_seq();
    let (Some(good), Some(bad)) = (statuses("healthy"), statuses("unhealthy")) else { return };
    for (index, status) in bad.iter().enumerate() {
        if good.iter().any(|other| other.kind == status.kind) {
            let mut place = field(&field(path, "unhealthy"), "http_statuses");
            push_index(&mut place, index);
            let code = Code::AmbiguousStatus { status: status.describe() };
            found.push(Diagnostic::warning(status.mark, place, code));
        }
    }
}
