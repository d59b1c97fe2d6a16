//! Translation of values of `config.yaml` into values of settings.
//!
//! A reader puts the tree of a value under its setting, where it is checked like that of a `weir.yaml`. Where several
//! keys make one setting, each of their readers reads all these keys: the order in a file does not matter.

use std::thread::available_parallelism;

use weir_expr::{Variable, VariableError};

use super::{Entry, Translation, plain};
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::node::{Kind, Mark, Node, plain_scalar, push_index, push_name, quoted};
use crate::settings::overlay::{leaves, put};

/// Takes the value as it is. A number or a boolean may stand in quotes, as placeholders often do.
pub(super) fn same(to: &mut Translation<'_>, entry: &Entry<'_>) {
    for setting in entry.settings {
        to.set(setting, unquoted(entry.value, setting));
    }
}

/// A list, or the only element of it.
pub(super) fn one_or_several(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let value = match &entry.value.kind {
        Kind::Str(_) => Node { mark: entry.value.mark, kind: Kind::Seq(vec![entry.value.clone()]) },
        _ => entry.value.clone(),
    };
    for setting in entry.settings {
        to.set(setting, value.clone());
    }
}

fn unquoted(value: &Node, setting: &str) -> Node {
    let is_text = leaves().iter().any(|leaf| leaf.path == setting && (leaf.text || leaf.list));
    match &value.kind {
        Kind::Str(text) if !is_text => Node { mark: value.mark, kind: plain_scalar(text.clone()) },
        _ => value.clone(),
    }
}

/// nginx's times: `60`, `60s`, `500ms`, `1m 30s`, `2h`, `1d`.
pub(super) fn time(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match plain(entry.value).as_deref().and_then(seconds) {
        Some(seconds) => {
            for setting in entry.settings {
                to.set(setting, Node { mark: entry.value.mark, kind: Kind::Float(seconds) });
            }
        }
        None => to.error(entry, "a time such as 60s, 500ms or 1m30s"),
    }
}

fn seconds(text: &str) -> Option<f64> {
    let mut rest = text.trim();
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest.get(..digits)?.parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        total += number
            * match &rest[..letters] {
                "" | "s" => 1.0,
                "ms" => 0.001,
                "m" => 60.0,
                "h" => 3_600.0,
                "d" => 86_400.0,
                _ => return None,
            };
        rest = rest[letters..].trim_start();
    }
    (!text.trim().is_empty()).then_some(total)
}

/// nginx's switches, which YAML does not take for booleans.
pub(super) fn on_off(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match plain(entry.value).as_deref() {
        Some("on" | "true") => set_all(to, entry, &Kind::Bool(true)),
        Some("off" | "false") => set_all(to, entry, &Kind::Bool(false)),
        _ => to.error(entry, "on or off"),
    }
}

fn set_all(to: &mut Translation<'_>, entry: &Entry<'_>, kind: &Kind) {
    for setting in entry.settings {
        to.set(setting, Node { mark: entry.value.mark, kind: kind.clone() });
    }
}

pub(super) fn dev_mode(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match plain(entry.value).as_deref() {
        Some("true") => set_all(to, entry, &Kind::Int(1)),
        Some("false") => {}
        _ => to.error(entry, "true or false"),
    }
}

/// nginx counts for each worker, and this gateway for all of them.
pub(super) fn connections(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let workers = match to.elsewhere("nginx_config.worker_processes").and_then(plain).map(|text| text.parse()) {
        Some(Ok(count)) => count,
        _ => available_parallelism().map_or(1, |count| i64::try_from(count.get()).unwrap_or(1)),
    };
    let each = plain(entry.value).and_then(|text| text.parse::<i64>().ok());
    match each.and_then(|each| each.checked_mul(workers)) {
        Some(all) => set_all(to, entry, &Kind::Int(all)),
        None => to.error(entry, "a number of connections"),
    }
}

/// `TLSv1.2 TLSv1.3`, or a list.
pub(super) fn protocols(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let asked: Vec<String> = match &entry.value.kind {
        Kind::Str(text) => text.split_whitespace().map(str::to_owned).collect(),
        Kind::Seq(items) => items.iter().filter_map(plain).collect(),
        _ => return to.error(entry, "versions such as TLSv1.2 TLSv1.3"),
    };
    let (spoken, old): (Vec<_>, Vec<_>) = asked.into_iter().partition(|name| !OLD_PROTOCOLS.contains(&name.as_str()));
    if !old.is_empty() && !spoken.is_empty() {
        let code = Code::OldProtocols { names: old.join(" ") };
        to.found.push(Diagnostic::warning(entry.value.mark, entry.path, code));
    }
    if spoken.is_empty() {
        return to.error(entry, "TLSv1.2, TLSv1.3 or both");
    }
    let item = |name: String| Node { mark: entry.value.mark, kind: Kind::Str(name) };
    set_all(to, entry, &Kind::Seq(spoken.into_iter().map(item).collect()));
}

const OLD_PROTOCOLS: [&str; 5] = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.0", "TLSv1.1"];

/// Both kinds of listeners, for what concerns both.
pub(super) fn listeners(to: &mut Translation<'_>, entry: &Entry<'_>) {
    http_listeners(to, entry);
    https_listeners(to, entry);
}

pub(super) fn http_listeners(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let plain = to.elsewhere("apisix.node_listen").cloned();
    let proxied = to.elsewhere("apisix.proxy_protocol.listen_http_port").cloned();
    if plain.is_none() && proxied.is_none() && entry.value.kind == Kind::Bool(false) {
        return;
    }
    let http2 = to.elsewhere("apisix.enable_http2").and_then(self::plain).filter(|text| text == "true").map(|_| true);
    let list = Listeners { path: "apisix.node_listen", port: 9080, ipv6: ipv6(to), http2 };
    let mut list = list.read(to, plain.as_ref());
    list.extend(behind_proxies(to, proxied.as_ref()).map(|mut proxied| {
        if let Some(http2) = http2 {
            super::put(&mut proxied, "http2", Node { mark: entry.value.mark, kind: Kind::Bool(http2) });
        }
        proxied
    }));
    to.set("listen.http", Node { mark: entry.value.mark, kind: Kind::Seq(list) });
}

pub(super) fn https_listeners(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let old = "apisix.ssl.listen_port";
    let (path, plain) = match to.elsewhere("apisix.ssl.listen").cloned() {
        Some(list) => ("apisix.ssl.listen", Some(list)),
        None => (old, to.elsewhere(old).cloned()),
    };
    let proxied = to.elsewhere("apisix.proxy_protocol.listen_https_port").cloned();
    let enabled = to.elsewhere("apisix.ssl.enable").and_then(self::plain);
    if let Some(text) = enabled.as_deref().filter(|text| !matches!(*text, "true" | "false")) {
        let code = Code::Unlike { expected: "true or false".into(), found: text.to_owned() };
        let found = Diagnostic::error(entry.value.mark, "apisix.ssl.enable", code);
        return tell_once(to, found);
    }
    let enabled = enabled.as_deref() != Some("false");
    if plain.is_none() && proxied.is_none() && enabled && !ipv6(to) {
        return;
    }
    let mut list = Vec::new();
    if enabled {
        list = Listeners { path, port: 9443, ipv6: ipv6(to), http2: None }.read(to, plain.as_ref());
        list.extend(behind_proxies(to, proxied.as_ref()));
    }
    to.set("listen.https", Node { mark: entry.value.mark, kind: Kind::Seq(list) });
}

fn ipv6(to: &Translation<'_>) -> bool {
    to.elsewhere("apisix.enable_ipv6").and_then(plain).as_deref() == Some("true")
}

/// A list of listeners as `config.yaml` writes it.
struct Listeners {
    path: &'static str,
    /// The port that APISIX has where none is written.
    port: u16,
    /// True if a listener without an address listens at [::] too.
    ipv6: bool,
    /// HTTP/2 of listeners that do not set it.
    http2: Option<bool>,
}

impl Listeners {
    fn read(&self, to: &mut Translation<'_>, list: Option<&Node>) -> Vec<Node> {
        let mut addresses = Vec::new();
        match list.map(|list| (&list.kind, list)) {
            None => self.at_port(&self.port.to_string(), Mark::NONE, &mut addresses),
            Some((Kind::Seq(items), _)) => {
                for (index, item) in items.iter().enumerate() {
                    let mut path = self.path.to_owned();
                    push_index(&mut path, index);
                    self.one(to, item, &path, &mut addresses);
                }
            }
            Some((_, one)) => self.one(to, one, self.path, &mut addresses),
        }
        addresses
    }

    fn one(&self, to: &mut Translation<'_>, item: &Node, path: &str, addresses: &mut Vec<Node>) {
        let Some(fields) = item.as_map() else {
            match plain(item) {
                Some(port) => return self.at_port(&port, item.mark, addresses),
                None => {
                    let expected = "a port or a mapping with port".into();
                    let code = Code::Unlike { expected, found: item.describe() };
                    return tell_once(to, Diagnostic::error(item.mark, path, code));
                }
            }
        };
        for (key, value) in fields {
            let mut path = path.to_owned();
            push_name(&mut path, &key.text);
            let code = match (&*key.text, plain(value).as_deref()) {
                ("ip" | "port", _) | ("enable_http2", Some("true" | "false")) => continue,
                ("enable_http3" | "enable_quic", Some("false")) => continue,
                ("enable_http2", _) => {
                    let code = Code::Unlike { expected: "true or false".into(), found: value.describe() };
                    tell_once(to, Diagnostic::error(key.mark, path, code));
                    continue;
                }
                ("enable_http3" | "enable_quic", _) => Code::NoEffect { why: "here: HTTP/3 is not spoken yet".into() },
                _ => Code::UnknownToApisix,
            };
            tell_once(to, Diagnostic::warning(key.mark, path, code));
        }
        let port = item.get("port").and_then(plain).unwrap_or_else(|| self.port.to_string());
        let http2 = item.get("enable_http2").and_then(plain).and_then(|text| text.parse().ok()).or(self.http2);
        match item.get("ip").and_then(plain) {
            Some(ip) => {
                let bare = ip.trim_start_matches('[').trim_end_matches(']');
                let address = if bare.contains(':') { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") };
                addresses.push(listener(address, http2, item.mark));
            }
            None => self.with_http2(http2).at_port(&port, item.mark, addresses),
        }
    }

    fn with_http2(&self, http2: Option<bool>) -> Self {
        Self { http2, ..*self }
    }

    fn at_port(&self, port: &str, mark: Mark, addresses: &mut Vec<Node>) {
        addresses.push(listener(format!("0.0.0.0:{port}"), self.http2, mark));
        if self.ipv6 {
            addresses.push(listener(format!("[::]:{port}"), self.http2, mark));
        }
    }
}

/// A listener; `http2` is only written where it was.
fn listener(address: String, http2: Option<bool>, mark: Mark) -> Node {
    let address = Node { mark, kind: Kind::Str(address) };
    let Some(http2) = http2 else { return address };
    let mut listener = Node::empty_map();
    listener.mark = mark;
    super::put(&mut listener, "address", address);
    super::put(&mut listener, "http2", Node { mark, kind: Kind::Bool(http2) });
    listener
}

/// HTTP/2 at all listeners.
pub(super) fn http2(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match plain(entry.value).as_deref() {
        Some("true") => http_listeners(to, entry),
        Some("false") => {}
        _ => return to.error(entry, "true or false"),
    }
    to.set("http2.enabled", entry.value.clone());
}

/// The listeners for streams, which APISIX opens in two of its modes.
pub(super) fn streams(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let mode = to.elsewhere("apisix.proxy_mode").and_then(plain);
    match mode.as_deref() {
        Some("http&stream" | "stream") => {}
        None | Some("http") => {
            if matches!(entry.path, "apisix.stream_proxy.tcp" | "apisix.stream_proxy.udp") {
                let code = Code::NoEffect { why: "here: apisix.proxy_mode opens no ports for streams".into() };
                tell_once(to, Diagnostic::warning(entry.key.mark, entry.path, code));
            }
            return;
        }
        Some(_) if entry.path == "apisix.proxy_mode" => return to.error(entry, "http, stream or http&stream"),
        Some(_) => return,
    }
    let proxied = to.elsewhere("apisix.proxy_protocol.enable_tcp_pp").and_then(plain).as_deref() == Some("true");
    if proxied && let Some(trusted) = to.elsewhere(REAL_IP_FROM).and_then(ranges) {
        to.set("proxy_protocol.trusted", trusted);
    }
    for (name, setting) in [("apisix.stream_proxy.tcp", "listen.tcp"), ("apisix.stream_proxy.udp", "listen.udp")] {
        let Some(list) = to.elsewhere(name).cloned() else { continue };
        let mut listeners = Vec::new();
        for (index, item) in list.as_seq().unwrap_or(std::slice::from_ref(&list)).iter().enumerate() {
            let mut path = name.to_owned();
            push_index(&mut path, index);
            if setting == "listen.tcp" {
                listeners.extend(stream_listener(to, item, &path, proxied));
            } else if let Some(text) = plain(item) {
                listeners.push(Node { mark: item.mark, kind: Kind::Str(text) });
            } else {
                let expected = "a port, or an address with a port".into();
                let code = Code::Unlike { expected, found: item.describe() };
                tell_once(to, Diagnostic::error(item.mark, path, code));
            }
        }
        to.set(setting, Node { mark: list.mark, kind: Kind::Seq(listeners) });
    }
}

/// A port, `IP:PORT`, or a mapping with `addr` and `tls`.
fn stream_listener(to: &mut Translation<'_>, item: &Node, path: &str, proxied: bool) -> Option<Node> {
    let address = item.get("addr").unwrap_or(item);
    let Some(text) = plain(address) else {
        let expected = "a port, an address with a port, or a mapping with addr".into();
        let code = Code::Unlike { expected, found: item.describe() };
        tell_once(to, Diagnostic::error(item.mark, path, code));
        return None;
    };
    let mut listener = Node::empty_map();
    listener.mark = item.mark;
    super::put(&mut listener, "address", Node { mark: address.mark, kind: Kind::Str(text) });
    for (key, value) in item.as_map().unwrap_or_default() {
        let mut path = path.to_owned();
        push_name(&mut path, &key.text);
        match (&*key.text, plain(value).as_deref()) {
            ("addr", _) | ("tls", Some("false")) => {}
            ("tls", Some("true")) => {
                super::put(&mut listener, "tls", Node { mark: value.mark, kind: Kind::Bool(true) });
            }
            ("tls", _) => {
                let code = Code::Unlike { expected: "true or false".into(), found: value.describe() };
                tell_once(to, Diagnostic::error(key.mark, path, code));
            }
            _ => tell_once(to, Diagnostic::warning(key.mark, path, Code::UnknownToApisix)),
        }
    }
    if proxied {
        super::put(&mut listener, "proxy_protocol", Node { mark: item.mark, kind: Kind::Bool(true) });
    }
    Some(listener)
}

/// The listener whose connections begin with a PROXY protocol header, which those are believed to write that are
/// believed about addresses at all.
fn behind_proxies(to: &mut Translation<'_>, port: Option<&Node>) -> Option<Node> {
    let port = port?;
    if let Some(trusted) = to.elsewhere(REAL_IP_FROM).and_then(ranges) {
        to.set("proxy_protocol.trusted", trusted);
    }
    let address = Node { mark: port.mark, kind: Kind::Str(format!("0.0.0.0:{}", plain(port)?)) };
    let mut listener = Node::empty_map();
    listener.mark = port.mark;
    super::put(&mut listener, "address", address);
    super::put(&mut listener, "proxy_protocol", Node { mark: port.mark, kind: Kind::Bool(true) });
    Some(listener)
}

const REAL_IP_FROM: &str = "nginx_config.http.real_ip_from";

/// The addresses of a list, without `unix:`.
fn ranges(list: &Node) -> Option<Node> {
    let kept = list.as_seq()?.iter().filter(|item| item.as_str() != Some("unix:")).cloned().collect();
    Some(Node { mark: list.mark, kind: Kind::Seq(kept) })
}

pub(super) fn real_ip_from(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let Some(trusted) = ranges(entry.value) else { return to.error(entry, "a list of addresses and ranges") };
    if !address_from_proxy(to) {
        to.set("real_ip.trusted", trusted);
    }
}

pub(super) fn real_ip_header(to: &mut Translation<'_>, entry: &Entry<'_>) {
    if !address_from_proxy(to) {
        same(to, entry);
    }
}

fn address_from_proxy(to: &Translation<'_>) -> bool {
    to.elsewhere("nginx_config.http.real_ip_header").and_then(Node::as_str) == Some("proxy_protocol")
}

pub(super) fn log_level(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let level = match plain(entry.value).as_deref() {
        Some(level @ ("debug" | "info" | "warn" | "error")) => level.to_owned(),
        Some("notice") => "info".to_owned(),
        Some("crit" | "alert" | "emerg") => "error".to_owned(),
        _ => return to.error(entry, "debug, info, notice, warn, error, crit, alert or emerg"),
    };
    set_all(to, entry, &Kind::Str(level));
}

pub(super) fn error_log(to: &mut Translation<'_>, entry: &Entry<'_>) {
    if !tell_syslog(to, entry) {
        same(to, entry);
    }
}

/// Logs of nginx may go to syslog.
fn tell_syslog(to: &mut Translation<'_>, entry: &Entry<'_>) -> bool {
    let syslog = entry.value.as_str().is_some_and(|path| path.starts_with("syslog:"));
    if syslog {
        to.without_effect(entry.key, entry.path, "logs go to files and streams, not to syslog");
    }
    syslog
}

/// Destination of the access log, from three keys: APISIX writes one unless it is turned off.
pub(super) fn access_log(to: &mut Translation<'_>, entry: &Entry<'_>) {
    if entry.path.starts_with("nginx_config.stream.") {
        return stream_access_log(to, entry);
    }
    let enabled = to.elsewhere("nginx_config.http.enable_access_log").and_then(plain);
    let path = to.elsewhere("nginx_config.http.access_log").cloned();
    let is_syslog = path.as_ref().and_then(Node::as_str).is_some_and(|path| path.starts_with("syslog:"));
    let path = match enabled.as_deref() {
        Some("false") => Some(Node { mark: entry.value.mark, kind: Kind::Str("off".to_owned()) }),
        _ if is_syslog => None,
        _ => path.or(Some(Node { mark: entry.value.mark, kind: Kind::Str("logs/access.log".to_owned()) })),
    };
    if let Some(path) = path {
        to.set("access_log.path", path);
    }
    if entry.path.ends_with(".access_log") {
        tell_syslog(to, entry);
    }
    if entry.settings.contains(&"access_log.format") {
        log_format(to, entry);
    }
}

/// The log of streams, which is off in APISIX unless it is asked for.
fn stream_access_log(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let enabled = to.elsewhere("nginx_config.stream.enable_access_log").and_then(plain);
    let path = to.elsewhere("nginx_config.stream.access_log").cloned();
    let is_syslog = path.as_ref().and_then(Node::as_str).is_some_and(|path| path.starts_with("syslog:"));
    let usual = |text: &str| Node { mark: entry.value.mark, kind: Kind::Str(text.to_owned()) };
    match enabled.as_deref() {
        Some("true") if is_syslog => {}
        Some("true") => to.set("stream_access_log.path", path.unwrap_or_else(|| usual("logs/access_stream.log"))),
        _ => to.set("stream_access_log.path", usual("off")),
    }
    if entry.path.ends_with(".access_log") {
        tell_syslog(to, entry);
    }
    if entry.settings.contains(&"stream_access_log.format") {
        log_format(to, entry);
    }
}

/// Between APISIX's quotes nginx takes a backslash away from a quote that follows it.
fn log_format(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let Some(text) = entry.value.as_str() else { return to.error(entry, "a text with $variables") };
    let text = text.trim_end_matches('\n').replace("\\\"", "\"").replace("\\'", "'").replace("\\\\", "\\");
    let json = to.elsewhere(&format!("{}_escape", entry.path)).and_then(Node::as_str) == Some("json");
    let (text, missing) = known_variables(&text, if json { "" } else { "-" });
    let written = if json { "nothing" } else { "-" };
    for reason in missing {
        let code = Code::WrittenForIt { reason: reason.to_string(), written };
        to.found.push(Diagnostic::warning(entry.value.mark, entry.path, code));
    }
    let setting = entry.settings.first().copied().unwrap_or_default();
    to.set(setting, Node { mark: entry.value.mark, kind: Kind::Str(text) });
}

/// Puts what there is in the place of nginx's variables that are not here, and else what nginx writes for a variable
/// without a value. Returns those as well.
fn known_variables(text: &str, none: &str) -> (String, Vec<VariableError>) {
    let mut parts = text.split('$');
    let mut known = parts.next().unwrap_or_default().to_owned();
    let mut missing = Vec::new();
    for part in parts {
        let in_braces = part.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len());
        let (name, rest) = in_braces.unwrap_or((&part[..end], &part[end..]));
        match name {
            // As in the form `combined`: the consumer, for every way of authentication.
            "remote_user" => known.extend(["${consumer_name}", rest]),
            "request" => known.extend(["$request_method $request_uri ${server_protocol}", rest]),
            // A `$` that no name follows is itself.
            name if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && in_braces.is_none() => {
                known.extend(["$", part]);
            }
            name => match Variable::parse(name) {
                Ok(_) => known.extend(["$", part]),
                Err(reason) => {
                    known.extend([none, rest]);
                    missing.extend((!missing.contains(&reason)).then_some(reason));
                }
            },
        }
    }
    (known, missing)
}

pub(super) fn log_escape(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match entry.value.as_str() {
        Some("none") => to.without_effect(entry.key, entry.path, "a client could forge lines"),
        _ => same(to, entry),
    }
}

pub(super) fn metrics_server(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let group = "plugin_attr.prometheus";
    let off = to.elsewhere(&format!("{group}.enable_export_server")).and_then(plain).as_deref() == Some("false");
    server(to, entry, off, &format!("{group}.export_addr"), 9091);
}

pub(super) fn admin(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let off = to.elsewhere("apisix.enable_admin").and_then(plain).as_deref() == Some("false");
    server(to, entry, off, "deployment.admin.admin_listen", 9180);
}

/// APISIX makes a key for an entry without one, as this gateway does for a role without one.
pub(super) fn admin_keys(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let Some(items) = entry.value.as_seq() else {
        return to.error(entry, "a list of mappings with name, key and role");
    };
    let (mut admin, mut viewer, mut further) = (None, None, Vec::new());
    for (index, item) in items.iter().enumerate() {
        let text = |name: &str| item.get(name).filter(|node| !node.is_null());
        match text("role").map(|role| (role, plain(role))) {
            _ if text("key").and_then(plain).is_none_or(|key| key.is_empty()) => {}
            Some((_, Some(role))) if role == "admin" && admin.is_none() => admin = text("key"),
            Some((_, Some(role))) if role == "viewer" && viewer.is_none() => viewer = text("key"),
            Some((_, Some(role))) if role == "admin" || role == "viewer" => further.push(item.clone()),
            other => {
                let mut path = entry.path.to_owned();
                push_index(&mut path, index);
                let Some((role, Some(name))) = other else {
                    to.found.push(Diagnostic::error(
                        item.mark,
                        path,
                        Code::Expected { what: "a role: admin or viewer" },
                    ));
                    continue;
                };
                // The role matters to the Admin API alone, and only the start decides whether that is on.
                to.found.push(Diagnostic::warning(role.mark, path, Code::NotARole { name: quoted(&name) }));
                let as_node = |text: &str| Node { mark: role.mark, kind: Kind::Str(text.to_owned()) };
                let mut key = Node { mark: item.mark, kind: Node::empty_map().kind };
                for (field, value) in [
                    ("name", text("name").cloned().unwrap_or_else(|| as_node(&name))),
                    ("key", text("key").cloned().unwrap_or_else(|| as_node(""))),
                    ("role", as_node("none")),
                ] {
                    put(&mut key, field, value);
                }
                further.push(key);
            }
        }
    }
    // A key of digits alone is a number for YAML.
    let as_text = |node: &Node| Node { mark: node.mark, kind: Kind::Str(plain(node).unwrap_or_default()) };
    for (setting, key) in [("admin.key", admin.map(as_text)), ("viewer.key", viewer.map(as_text))] {
        if let Some(key) = key {
            to.set(setting, key);
        }
    }
    if !further.is_empty() {
        to.set("admin.keys", Node { mark: entry.value.mark, kind: Kind::Seq(further) });
    }
}

/// Certificates have no effect without `https_admin`, and that has none without them.
pub(super) fn admin_tls(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let group = "deployment.admin";
    let on = match to.elsewhere("deployment.admin.https_admin").and_then(plain).as_deref() {
        Some("true") => true,
        Some("false") | None => false,
        Some(_) => return tell_once(to, wrong_switch(entry)),
    };
    let file =
        |name: &str| to.elsewhere(&format!("{group}.admin_api_mtls.{name}")).filter(|node| node.as_str() != Some(""));
    let files = [
        ("admin.tls.cert", file("admin_ssl_cert").cloned()),
        ("admin.tls.key", file("admin_ssl_cert_key").cloned()),
        ("admin.tls.client_ca", file("admin_ssl_ca_cert").cloned()),
    ];
    if !on {
        return;
    }
    if files[0].1.is_none() || files[1].1.is_none() {
        let what = "admin_api_mtls.admin_ssl_cert and admin_api_mtls.admin_ssl_cert_key";
        let code = Code::NeedsSettings { what };
        return tell_once(to, Diagnostic::error(Mark::NONE, "deployment.admin.https_admin", code));
    }
    for (setting, file) in files {
        if let Some(file) = file {
            to.set(setting, file);
        }
    }
}

fn wrong_switch(entry: &Entry<'_>) -> Diagnostic {
    let code = Code::Expected { what: "true or false" };
    Diagnostic::error(entry.value.mark, "deployment.admin.https_admin", code)
}

pub(super) fn control(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let off = to.elsewhere("apisix.enable_control").and_then(plain).as_deref() == Some("false");
    server(to, entry, off, "apisix.control", 9090);
}

pub(super) fn status(to: &mut Translation<'_>, entry: &Entry<'_>) {
    server(to, entry, false, "apisix.status", 7085);
}

/// A server of the gateway's own, from `ip` and `port` of a mapping.
fn server(to: &mut Translation<'_>, entry: &Entry<'_>, off: bool, group: &str, port: u16) {
    let part = |name: &str| to.elsewhere(&format!("{group}.{name}")).and_then(plain);
    let (ip, given) = (part("ip"), part("port"));
    if off {
        return set_all(to, entry, &Kind::Str("off".to_owned()));
    }
    if ip.is_none() && given.is_none() {
        return;
    }
    let ip = ip.unwrap_or_else(|| "127.0.0.1".to_owned());
    let ip = if ip.contains(':') && !ip.starts_with('[') { format!("[{ip}]") } else { ip };
    let address = format!("{ip}:{}", given.unwrap_or_else(|| port.to_string()));
    set_all(to, entry, &Kind::Str(address));
}

/// An empty list would refuse every plugin, and no file means that.
pub(super) fn plugins(to: &mut Translation<'_>, entry: &Entry<'_>) {
    match entry.value.as_seq() {
        None if entry.value.is_null() => set_all(to, entry, &Kind::Seq(Vec::new())),
        None => to.error(entry, "a list of names of plugins"),
        Some(_) => same(to, entry),
    }
}

/// The provider beside those of roles, which take precedence in APISIX.
pub(super) fn shared_config_provider(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let role = to.elsewhere("deployment.role").and_then(plain).unwrap_or_else(|| "traditional".to_owned());
    let own = format!("deployment.role_{role}.config_provider");
    match to.elsewhere(&own).map(plain) {
        None => same(to, entry),
        Some(provider) if provider == plain(entry.value) => {}
        Some(_) => to.without_effect(entry.key, entry.path, &format!("{own} takes precedence")),
    }
}

/// Reads the provider of the role; the other roles' keys are there in files that people copy whole.
pub(super) fn config_provider(to: &mut Translation<'_>, entry: &Entry<'_>) {
    let role = to.elsewhere("deployment.role").and_then(plain).unwrap_or_else(|| "traditional".to_owned());
    if !entry.path.starts_with(&format!("deployment.role_{role}.")) {
        return;
    }
    match plain(entry.value).as_deref() {
        Some(provider @ ("etcd" | "yaml" | "json")) => set_all(to, entry, &Kind::Str(provider.to_owned())),
        Some("xds") => {
            let code = Code::NotSupported { feature: "configuration over xDS".into() };
            to.found.push(Diagnostic::error(entry.value.mark, entry.path, code));
        }
        Some("control_plane") => {
            let hint = "config_provider: etcd, with deployment.etcd";
            let error = Diagnostic::error(entry.value.mark, entry.path, Code::DataPlaneAsksEtcd);
            to.found.push(error.with_hint(hint));
        }
        _ => to.error(entry, "etcd, yaml or json"),
    }
}

/// Reports a finding once, though several keys read the same values.
fn tell_once(to: &mut Translation<'_>, found: Diagnostic) {
    if !to.found.contains(&found) {
        to.found.push(found);
    }
}
