//! Uptime tests, as active checks of an upstream's nodes.

use weir_config::{Diagnostic, Kind, Node};

use super::{list, map, number, target, text};
use crate::conf::Conf;
use crate::definition::{Definition, is_on};

/// Milliseconds of a test that says nothing, as in Tyk.
const TIMEOUT: i64 = 500;
const CHECKS: &str = "proxy.check_host_against_uptime_tests";
const TESTS: &str = "uptime_tests.check_list";

/// A test: what it asks a node for, and the node.
#[derive(Debug, PartialEq, Eq)]
struct Test<'a> {
    /// `http`, `https` or `tcp`.
    kind: &'static str,
    method: &'a str,
    target: &'a str,
    body: &'a str,
    headers: Vec<String>,
    /// Milliseconds.
    timeout: i64,
}

/// The checks of an upstream with these nodes; `None` where its targets are not tested, with a doubt where somebody may rely
/// on it.
pub(super) fn checks(
    api: &Definition,
    conf: &Conf,
    nodes: &[(target::Url, i64)],
    is_balanced: bool,
    found: &mut Vec<Diagnostic>,
) -> Option<Node> {
    let tests = api.at(TESTS).and_then(Node::as_seq).unwrap_or_default();
    if tests.is_empty() || api.flag("uptime_tests.disabled") {
        return None;
    }
    let reason = match () {
        () if conf.uptime_disabled => "no effect: uptime_tests.disable of tyk.conf is set",
        () if !is_balanced => "no effect: uptime tests are made for balanced targets (proxy.enable_load_balancing)",
        () if !api.flag(CHECKS) => "no effect without proxy.check_host_against_uptime_tests: results are not recorded",
        () => "",
    };
    let mut doubt = |reason: &str| {
        found.push(api.doubt(TESTS, reason));
        None
    };
    if !reason.is_empty() {
        return doubt(reason);
    }
    let mut read = Vec::with_capacity(tests.len());
    for test in tests {
        match self::test(test) {
            Ok(test) => read.push(test),
            Err(reason) => return doubt(&format!("no effect: {reason}")),
        }
    }
    let of = |(url, _): &(target::Url, i64)| {
        read.iter().find(|((host, port), _)| host.eq_ignore_ascii_case(&url.host) && *port == url.port)
    };
    let mut own = nodes.iter().map(of);
    let Some(Some((_, first))) = own.next() else { return doubt("no effect: each target needs a test of its own") };
    for test in own {
        match test {
            None => return doubt("no effect: each target needs a test of its own"),
            Some((_, test)) if test != first => {
                return doubt("no effect: the tests of an API's targets may differ in their hosts alone");
            }
            Some(_) => {}
        }
    }
    Some(first.lowered(conf, api))
}

/// Host and port of a test, and the test.
fn test(node: &Node) -> Result<((&str, i64), Test<'_>), String> {
    let of = |field: &str| node.get(field).and_then(Node::as_str).unwrap_or_default();
    let (url, protocol) = (of("url"), of("protocol"));
    if node.get("commands").is_some_and(is_on) || node.get("enable_proxy_protocol").is_some_and(is_on) {
        return Err("tests with commands or PROXY headers are not supported".to_owned());
    }
    let (scheme, rest) = url.split_once("://").unwrap_or((if protocol == "tcp" { "tcp" } else { "http" }, url));
    let (kind, default) = match (protocol, scheme) {
        ("tcp", _) => ("tcp", 0),
        ("" | "http" | "https", "http") => ("http", 80),
        ("" | "http" | "https", "https") => ("https", 443),
        _ => return Err(format!("the protocol of the test {url} is not supported")),
    };
    let at = target::host_and_port(rest, default).filter(|(_, port)| *port > 0);
    let at = at.ok_or_else(|| format!("expected the URL of a test with a host and a port, found '{url}'"))?;
    let mut headers: Vec<String> = Vec::new();
    for (name, value) in node.get("headers").and_then(Node::as_map).unwrap_or_default() {
        headers.push(format!("{}: {}", name.text, value.as_str().unwrap_or_default()));
    }
    // Nanoseconds.
    let nanos = node.get("timeout").and_then(|timeout| timeout.to_json().as_i64()).unwrap_or_default();
    let timeout = if nanos > 0 { (nanos / 1_000_000).max(1) } else { TIMEOUT };
    let method = Some(of("method")).filter(|method| !method.is_empty()).unwrap_or("GET");
    let target = Some(target::target_of(url)).filter(|target| !target.is_empty()).unwrap_or("/");
    Ok((at, Test { kind, method, target, body: of("body"), headers, timeout }))
}

impl Test<'_> {
    fn lowered(&self, conf: &Conf, api: &Definition) -> Node {
        let mark = api.node.mark;
        let interval = || number(if conf.uptime_wait == 0 { 10 } else { conf.uptime_wait.into() });
        let samples = || number(if conf.uptime_samples == 0 { 3 } else { conf.uptime_samples.into() });
        let statuses =
            |good: bool| list(mark, (200..600).filter(|status| (*status == 200) == good).map(number).collect());
        let healthy =
            map(mark, [("interval", interval()), ("successes", samples()), ("http_statuses", statuses(true))]);
        let unhealthy = map(
            mark,
            [
                ("interval", interval()),
                ("http_failures", samples()),
                ("tcp_failures", samples()),
                ("timeouts", samples()),
                ("http_statuses", statuses(false)),
            ],
        );
        let seconds = Node { mark, kind: Kind::Float(self.timeout as f64 / 1000.0) };
        let mut active = map(
            mark,
            [("type", text(self.kind)), ("timeout", seconds), ("healthy", healthy), ("unhealthy", unhealthy)],
        );
        if self.kind != "tcp" {
            active.insert("http_method", text(self.method));
            active.insert("http_path", text(self.target));
            active.insert("http_req_body", text(self.body));
            if !self.headers.is_empty() {
                active.insert("req_headers", list(mark, self.headers.iter().map(|line| text(line)).collect()));
            }
        }
        // With all targets down requests are refused.
        map(mark, [("active", active), ("threshold", number(0))])
    }
}
