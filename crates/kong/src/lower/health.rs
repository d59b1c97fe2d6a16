//! Health checks of upstreams, which are on where Kong's are.

use weir_config::{Diagnostic, Kind, Mark, Node, diagnostic::nearest};

use super::{flag, list, map, number, text};
use crate::document::{Entity, rule, whole};

/// Fields of health checks, by the group that they are in.
const FIELDS: &[(&[&str], &[&str])] = &[
    (&[], &["active", "passive", "threshold"]),
    (
        &["active"],
        &[
            "type",
            "timeout",
            "concurrency",
            "http_path",
            "https_sni",
            "https_verify_certificate",
            "headers",
            "healthy",
            "unhealthy",
        ],
    ),
    (&["active", "healthy"], &["interval", "http_statuses", "successes"]),
    (&["active", "unhealthy"], &["interval", "http_statuses", "tcp_failures", "timeouts", "http_failures"]),
    (&["passive"], &["type", "healthy", "unhealthy"]),
    (&["passive", "healthy"], &["http_statuses", "successes"]),
    (&["passive", "unhealthy"], &["http_statuses", "tcp_failures", "timeouts", "http_failures"]),
];

/// Adds the health checks of an upstream.
pub(super) fn checks(upstream: &Entity, item: &mut Node, found: &mut Vec<Diagnostic>) {
    let Some(checks) = upstream.node.get("healthchecks") else { return };
    let at = |path: &[&str]| path.iter().try_fold(checks, |node, name| node.get(name)).filter(|node| !node.is_null());
    for (group, known) in FIELDS {
        for (key, _) in at(group).and_then(Node::as_map).unwrap_or_default() {
            if !known.iter().any(|known| *known == &*key.text) {
                let path: Vec<&str> = ["healthchecks"].iter().chain(*group).copied().chain([&*key.text]).collect();
                let error = Diagnostic::error(key.mark, upstream.at(&path.join(".")), rule("unknown field"));
                let hint = weir_config::Hint::nearest(nearest(&key.text, known.iter().copied()));
                found.push(Diagnostic { hint, ..error });
            }
        }
    }
    let count = |path: &[&str]| at(path).and_then(whole).unwrap_or(0);
    let intervals = ["healthy", "unhealthy"].map(|side| count(&["active", side, "interval"]));
    let is_active = intervals.iter().any(|interval| *interval > 0);
    let counters = ["tcp_failures", "timeouts", "http_failures"];
    let is_passive = counters.iter().any(|counter| count(&["passive", "unhealthy", counter]) > 0);
    if !is_active && !is_passive {
        return;
    }
    let mark = checks.mark;
    let mut made = map(mark, []);
    if is_active {
        made.insert("active", active(upstream, mark, intervals, &at, found));
    } else {
        made.insert("only_passive", flag(true));
    }
    if is_passive {
        let mut passive = map(mark, []);
        if let Some(kind) = at(&["passive", "type"]) {
            passive.insert("type", grpc_as_http(kind));
        }
        for side in ["healthy", "unhealthy"] {
            passive.insert(side, side_of(mark, side, None, &|name| at(&["passive", side, name])));
        }
        made.insert("passive", passive);
    }
    // Without a healthy target Kong answers 503, and does not try the others.
    let threshold = match at(&["threshold"]).map(Node::to_json).map(|value| value.as_f64()) {
        None => 0.0,
        Some(Some(threshold)) if (0.0..=100.0).contains(&threshold) => threshold,
        Some(_) => {
            found.push(upstream.fault("healthchecks.threshold", "value should be between 0 and 100"));
            0.0
        }
    };
    if threshold.fract() != 0.0 {
        let text = format!("read as {}: a percentage is a whole number here", threshold.floor());
        found.push(upstream.doubt("healthchecks.threshold", text));
    }
    made.insert("threshold", number(threshold as i64));
    item.insert("checks", made);
}

fn active<'n>(
    upstream: &Entity,
    mark: Mark,
    intervals: [i64; 2],
    at: &dyn Fn(&[&str]) -> Option<&'n Node>,
    found: &mut Vec<Diagnostic>,
) -> Node {
    let mut active = map(mark, []);
    for field in ["type", "timeout", "concurrency", "http_path", "https_verify_certificate"] {
        if let Some(value) = at(&["active", field]) {
            active.insert(field, value.clone());
        }
    }
    let kind = at(&["active", "type"]).and_then(Node::as_str);
    match kind {
        None | Some("http" | "https" | "tcp" | "grpc") => {}
        Some("grpcs") => active.insert("type", text("grpc")),
        Some(_) => {
            let text = "expected one of: http, https, tcp, grpc, grpcs";
            found.push(upstream.fault("healthchecks.active.type", text));
        }
    }
    if matches!(kind, Some("tcp" | "grpc" | "grpcs")) {
        // Dumps write fields that have no meaning there nevertheless.
        ["http_path", "https_verify_certificate"].iter().for_each(|field| drop(active.remove(field)));
    }
    let host = at(&["active", "https_sni"]).or_else(|| at(&["active", "headers"])?.get("Host")?.as_seq()?.first());
    if let Some(host) = host {
        active.insert("host", host.clone());
    }
    let mut fields = Vec::new();
    for (name, values) in at(&["active", "headers"]).and_then(Node::as_map).unwrap_or_default() {
        if name.text.eq_ignore_ascii_case("host") {
            continue;
        }
        let values = values.as_seq().unwrap_or(std::slice::from_ref(values));
        fields.extend(values.iter().filter_map(Node::as_str).map(|value| text(&format!("{}: {value}", name.text))));
    }
    if !fields.is_empty() {
        active.insert("req_headers", list(mark, fields));
    }
    for (side, interval) in [("healthy", intervals[0]), ("unhealthy", intervals[1])] {
        let interval = if interval > 0 { interval } else { intervals.into_iter().max().unwrap_or(1) };
        active.insert(side, side_of(mark, side, Some(interval), &|name| at(&["active", side, name])));
    }
    active
}

/// Passive checks of gRPC judge as those of HTTP do.
fn grpc_as_http(kind: &Node) -> Node {
    match kind.as_str() {
        Some("grpc" | "grpcs") => Node { mark: kind.mark, kind: Kind::Str("http".to_owned()) },
        _ => kind.clone(),
    }
}

/// The counters of one side of checks. Those that Kong leaves out are off there: 0.
fn side_of<'n>(mark: Mark, side: &str, interval: Option<i64>, at: &dyn Fn(&'static str) -> Option<&'n Node>) -> Node {
    let mut made = map(mark, []);
    if let Some(interval) = interval {
        made.insert("interval", number(interval));
    }
    if let Some(statuses) = at("http_statuses") {
        made.insert("http_statuses", statuses.clone());
    }
    let counters: &[&str] =
        if side == "healthy" { &["successes"] } else { &["tcp_failures", "timeouts", "http_failures"] };
    for counter in counters {
        let value = at(counter).and_then(whole).unwrap_or(0);
        // A target that nothing brings back is not what an interval is written for.
        let least = i64::from(*counter == "successes");
        made.insert(counter, number(value.max(least)));
    }
    made
}
