//! `weir explain`, and explanations for the Admin API.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde_json::{Value, json};
use weir_config::{CheckType, Checks, Settings};
use weir_proxy::{Candidate, ExplainRequest, Explanation, PlannedChoice, PlannedPlugin, PlannedUpstream};

use crate::cli::ExplainArgs;
use crate::failure::{Failure, print, print_findings};
use crate::source::rules::Rules;
use crate::source::settings;

/// Explains the handling of a request.
pub(crate) fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    let request = request(&args.request, args.headers.clone(), args.remote)
        .map_err(|reason| Failure::Usage(format!("--request '{}': {reason}", args.request)))?;
    let settings::Loaded { settings, warnings, .. } = settings::load(&args.settings, Vec::new(), false)?;
    print_findings(&warnings);
    let rules = Rules::new(&args.rules, &settings)?;
    let loaded = rules.load(&rules.read()?);
    let ready = rules.compile(loaded, 1).map_err(Failure::Refused)?;
    print_findings(&ready.findings);
    match ready.snapshot.explain(&request, &settings) {
        Ok(found) => print(&report(&request, &found, &settings)),
        Err(reject) => {
            print(&format!("answered {} before any route is looked for: {}\n", reject.status, reject.reason))
        }
    }
}

/// Builds a request from `METHOD URL`, or a URL alone, and fields.
///
/// # Errors
/// The text is not a request. The error says what was expected.
pub(crate) fn request(
    text: &str,
    mut headers: Vec<(String, String)>,
    remote: IpAddr,
) -> Result<ExplainRequest, String> {
    let text = text.trim();
    let (method, url) = match text.split_once(char::is_whitespace) {
        Some((method, url)) => (method, url.trim_start()),
        None => ("GET", text),
    };
    if url.is_empty() || url.contains(char::is_whitespace) {
        return Err("expected a method and a URL, such as 'GET http://example.com/a'".to_owned());
    }
    let (https, mut host, target) = split_url(url)?;
    // As in curl, a Host field takes precedence over the host of the URL.
    if let Some(at) = headers.iter().position(|(name, _)| name.eq_ignore_ascii_case("host")) {
        host = headers.remove(at).1;
    }
    for text in headers.iter().flat_map(|(name, value)| [name, value]).chain([&host]) {
        if text.contains(['\r', '\n', '\0']) {
            return Err("a field of a request has no line breaks".to_owned());
        }
    }
    Ok(ExplainRequest { https, method: method.to_owned(), host, target, headers, remote })
}

/// The host of a request without one.
const NO_HOST: &str = "localhost";

/// Splits a URL or a path into a flag for TLS, the host and the target.
fn split_url(url: &str) -> Result<(bool, String, String), &'static str> {
    let url = url.split('#').next().unwrap_or_default();
    if url.starts_with('/') {
        return Ok((false, NO_HOST.to_owned(), url.to_owned()));
    }
    let (https, rest) = match url.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
        _ => return Err("expected an http or https URL, or a path that begins with '/'"),
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, target) = rest.split_at(end);
    if host.is_empty() {
        return Err("the URL has no host");
    }
    let slash = if target.starts_with('/') { "" } else { "/" };
    Ok((https, host.to_owned(), format!("{slash}{target}")))
}

/// The explanation as JSON.
pub(crate) fn json(found: &Explanation) -> Value {
    let candidate = |candidate: &Candidate| {
        json!({
            "id": candidate.id,
            "name": candidate.name,
            "pattern": candidate.pattern,
            "chosen": candidate.chosen,
            "reason": candidate.reason,
        })
    };
    let plugin = |plugin: &PlannedPlugin| {
        json!({
            "name": plugin.name,
            "global": plugin.global,
            "priority": plugin.priority,
            "phases": plugin.phases,
            "filtered": plugin.filtered,
            "unresolved": plugin.unresolved,
        })
    };
    let chosen = found.candidates.iter().find(|candidate| candidate.chosen);
    let choice = found.choice.as_ref().map(|choice| {
        let share = |(weight, upstream): &(u32, Option<PlannedUpstream>)| {
            json!({ "weight": weight, "upstream": upstream.as_ref().map(upstream_json) })
        };
        json!({ "plugin": choice.plugin, "shares": choice.shares.iter().map(share).collect::<Vec<_>>() })
    });
    json!({
        "matched_as": found.path,
        "route": chosen.map(|chosen| &chosen.id),
        "ambiguity": found.ambiguity.as_ref().map(|other| json!({ "path": other.path, "route": other.route })),
        "candidates": found.candidates.iter().map(candidate).collect::<Vec<_>>(),
        "plugins": found.plugins.iter().map(plugin).collect::<Vec<_>>(),
        "upstream_target": found.upstream_target,
        "upstream": found.upstream.as_ref().map(upstream_json),
        "choice": choice,
    })
}

fn upstream_json(upstream: &PlannedUpstream) -> Value {
    let seconds = |milliseconds: u64| milliseconds as f64 / 1000.0;
    let (connect, send, read) = upstream.timeouts_ms;
    json!({
        "nodes": upstream.nodes,
        "balancer": upstream.balancer,
        "node": upstream.node,
        "host": upstream.host,
        "retries": upstream.retries,
        "timeout": { "connect": seconds(connect), "send": seconds(send), "read": seconds(read) },
        "checks": upstream.checks.as_ref().map(|checks| describe_checks(checks)),
    })
}

fn report(request: &ExplainRequest, found: &Explanation, settings: &Settings) -> String {
    let mut out = String::new();
    let ExplainRequest { method, host, target, remote, .. } = request;
    line(&mut out, "request", &format!("{method} {target} (host {host}), from {remote}"));
    line(&mut out, "matched as", &found.path);
    match found.candidates.iter().find(|candidate| candidate.chosen) {
        Some(chosen) => line(&mut out, "route", &format!("{}, by {}", named(chosen), chosen.pattern)),
        None => line(&mut out, "route", "none: answered 404"),
    }
    if let Some(other) = &found.ambiguity {
        let reader = "a server that cuts ;parameters or takes \\ for /";
        let does = match (&other.route, other.path.as_str()) {
            (_, "") => "may refuse the path or leave it by its root".to_owned(),
            (Some(route), path) => format!("reads {path}, which is of route {route}"),
            (None, path) => format!("reads {path}, which is of no route"),
        };
        line(&mut out, "refused", &format!("answered 400: {reader} {does} (uri.allow_ambiguous)"));
    }
    if found.candidates.iter().any(|candidate| !candidate.chosen) {
        line(&mut out, "not taken", "");
        for candidate in found.candidates.iter().filter(|candidate| !candidate.chosen) {
            let _ = writeln!(out, "  {}, {}: {}", named(candidate), candidate.pattern, candidate.reason);
        }
    }
    if found.candidates.is_empty() {
        let _ = writeln!(out, "  the path of no route takes it (router: {})", router(settings));
    }
    plugins(&mut out, &found.plugins);
    match (&found.choice, &found.upstream) {
        (Some(choice), _) => choice_lines(&mut out, choice, &found.upstream_target),
        (None, Some(upstream)) => upstream_lines(&mut out, upstream, "", &found.upstream_target),
        (None, None) if found.candidates.iter().any(|candidate| candidate.chosen) => {
            line(&mut out, "upstream", "none: a plugin has to answer, else 503");
        }
        (None, None) => {}
    }
    out
}

/// The lines for the upstreams among which a plugin chooses.
fn choice_lines(out: &mut String, choice: &PlannedChoice, target: &str) {
    let total: u64 = choice.shares.iter().map(|(weight, _)| u64::from(*weight)).sum();
    for (weight, upstream) in &choice.shares {
        let share = match choice.shares.as_slice() {
            [_] => format!(", by {}", choice.plugin),
            _ => format!(", for {weight} of {total} requests, by {}", choice.plugin),
        };
        match upstream {
            Some(upstream) => upstream_lines(out, upstream, &share, target),
            None => line(out, "upstream", &format!("none: answered 503{share}")),
        }
    }
}

fn plugins(out: &mut String, plugins: &[PlannedPlugin]) {
    if plugins.is_empty() {
        line(out, "plugins", "none");
        return;
    }
    line(out, "plugins", "in this order in each phase");
    let width = plugins.iter().map(|plugin| plugin.name.len()).max().unwrap_or_default();
    for plugin in plugins {
        let global = if plugin.global { ", by a global rule" } else { "" };
        let filtered = if plugin.filtered { ", where its _meta.filter holds" } else { "" };
        let unresolved = if plugin.unresolved { ": a reference has no value, answered 503" } else { "" };
        let phases = if plugin.phases.is_empty() { "no phase".to_owned() } else { plugin.phases.join(", ") };
        let _ = writeln!(
            out,
            "  {:width$}  priority {}: {phases}{global}{filtered}{unresolved}",
            plugin.name, plugin.priority
        );
    }
}

fn upstream_lines(out: &mut String, upstream: &PlannedUpstream, share: &str, target: &str) {
    let nodes = if upstream.nodes.is_empty() { "no node: answered 503".to_owned() } else { upstream.nodes.join(", ") };
    line(out, "upstream", &format!("{nodes}{share}"));
    match (upstream.balancer, &upstream.node) {
        (Some(balancer), Some(node)) => {
            let _ = writeln!(out, "  balancer  {balancer}: {node}, while it is available");
        }
        (Some(balancer), None) => {
            let _ = writeln!(out, "  balancer  {balancer}");
        }
        (None, Some(node)) if upstream.nodes.len() > 1 => {
            let _ = writeln!(out, "  balancer  none: {node} alone has a weight");
        }
        _ => {}
    }
    let (connect, send, read) = upstream.timeouts_ms;
    let _ = writeln!(out, "  target    {target}, unless a plugin changes it");
    let _ = writeln!(out, "  Host      {}", upstream.host);
    let _ = writeln!(out, "  retries   {}", upstream.retries);
    let _ = writeln!(out, "  timeouts  connect {}, send {}, read {}", seconds(connect), seconds(send), seconds(read));
    if let Some(checks) = &upstream.checks {
        let _ = writeln!(out, "  checks    {}", describe_checks(checks));
    }
}

fn describe_checks(checks: &Checks) -> String {
    let active = &checks.active;
    let what = match active.r#type {
        CheckType::Tcp => "tcp, a connection".to_owned(),
        CheckType::Grpc => "grpc, grpc.health.v1.Health/Check".to_owned(),
        r#type => format!("{}, {} {}", r#type.as_str(), active.http_method, active.http_path),
    };
    let port = active.port.map(|port| format!(" to port {port}")).unwrap_or_default();
    let (up, down) = (active.healthy.interval, active.unhealthy.interval);
    let passive = if checks.passive.is_some() { "; requests count too" } else { "" };
    format!("{what}{port} every {up} s, {down} s while unhealthy{passive}")
}

fn line(out: &mut String, label: &str, text: &str) {
    let line = format!("{:12}{text}", format!("{label}:"));
    out.push_str(line.trim_end());
    out.push('\n');
}

fn named(candidate: &Candidate) -> String {
    match &candidate.name {
        Some(name) => format!("{} \"{name}\"", candidate.id),
        None => candidate.id.clone(),
    }
}

fn seconds(milliseconds: u64) -> String {
    format!("{} s", milliseconds as f64 / 1000.0)
}

fn router(settings: &Settings) -> String {
    serde_json::to_value(settings.router).ok().and_then(|name| Some(name.as_str()?.to_owned())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::split_url;

    #[test]
    fn urls_are_split() {
        let cases = [
            ("/a?b=c", Ok((false, "localhost", "/a?b=c"))),
            ("http://a.test", Ok((false, "a.test", "/"))),
            ("http://a.test:8080/a/b?c#d", Ok((false, "a.test:8080", "/a/b?c"))),
            ("HTTP://[::1]:80?x=1", Ok((false, "[::1]:80", "/?x=1"))),
            ("http:///a", Err("has no host")),
            ("https://a.test/", Ok((true, "a.test", "/"))),
            ("ftp://a.test/", Err("expected an http or https URL")),
            ("a.test/b", Err("expected an http or https URL")),
        ];
        for (url, expected) in cases {
            match (split_url(url), expected) {
                (Ok((https, host, target)), Ok(expected)) => {
                    assert_eq!((https, host.as_str(), target.as_str()), expected, "{url}");
                }
                (Err(reason), Err(part)) => assert!(reason.contains(part), "{url}: {reason}"),
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
    }
}
