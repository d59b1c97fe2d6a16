//! Listeners of `config.yaml`, for requests and for streams.

use super::readers::{REAL_IP_FROM, ranges, tell_once};
use super::{Entry, Translation, plain};
use crate::code::Code;
use crate::diagnostic::Diagnostic;
use crate::node::{Kind, Mark, Node, push_index, push_name};

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
