//! Addresses of listeners with nginx's parameters: `0.0.0.0:8000 reuseport backlog=16384, 0.0.0.0:8443 http2 ssl`.

use super::Given;

/// An address with the parameters that matter.
#[derive(Debug, Default)]
struct Address {
    address: String,
    is_ssl: bool,
    is_http2: bool,
    is_udp: bool,
    proxy_protocol: bool,
}

fn addresses(value: &str, given: &mut Given) -> Vec<Address> {
    if value.trim() == "off" {
        return Vec::new();
    }
    let mut all = Vec::new();
    for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let mut words = part.split_whitespace();
        let mut address = Address { address: words.next().unwrap_or_default().to_owned(), ..Address::default() };
        for word in words {
            match word {
                "ssl" => address.is_ssl = true,
                "http2" => address.is_http2 = true,
                "udp" => address.is_udp = true,
                "proxy_protocol" => address.proxy_protocol = true,
                // The way of opening the socket is the gateway's own affair: one for each worker.
                "reuseport" | "deferred" | "bind" => {}
                _ if word.split('=').count() == 2 => {}
                _ => given.fail("addresses with parameters such as ssl, http2 and proxy_protocol"),
            }
        }
        all.push(address);
    }
    all
}

/// A list of addresses in the form of a setting.
fn list<'a>(addresses: impl Iterator<Item = &'a Address>, is_stream: bool) -> String {
    let mut text = String::from("[");
    for address in addresses {
        if text.len() > 1 {
            text.push_str(", ");
        }
        text.push_str(&format!("{{address: \"{}\"", address.address));
        if !is_stream && (address.is_ssl || address.is_http2) {
            text.push_str(&format!(", http2: {}", address.is_http2));
        }
        if is_stream && address.is_ssl {
            text.push_str(", tls: true");
        }
        if address.proxy_protocol {
            text.push_str(", proxy_protocol: true");
        }
        text.push('}');
    }
    text.push(']');
    text
}

/// `proxy_listen`.
pub(super) fn proxy(value: &str, given: &mut Given) {
    let all = addresses(value, given);
    let (https, http): (Vec<_>, Vec<_>) = all.iter().partition(|address| address.is_ssl);
    if http.is_empty() {
        return given.fail("at least one address without ssl: the gateway has one");
    }
    given.set("listen.http", list(http.into_iter(), false));
    given.set("listen.https", list(https.into_iter(), false));
}

/// `stream_listen`.
pub(super) fn stream(value: &str, given: &mut Given) {
    let all = addresses(value, given);
    let (udp, tcp): (Vec<_>, Vec<_>) = all.iter().partition(|address| address.is_udp);
    if !tcp.is_empty() {
        given.set("listen.tcp", list(tcp.into_iter(), true));
    }
    if !udp.is_empty() {
        let udp: Vec<&str> = udp.iter().map(|address| address.address.as_str()).collect();
        given.set("listen.udp", udp.join(","));
    }
}

/// `admin_listen`.
pub(super) fn admin(value: &str, given: &mut Given) {
    one("listen.admin", value, given);
}

/// `status_listen`.
pub(super) fn status(value: &str, given: &mut Given) {
    one("listen.status", value, given);
}

/// The first address without TLS; the server has one.
fn one(setting: &'static str, value: &str, given: &mut Given) {
    let all = addresses(value, given);
    let first = all.iter().find(|address| !address.is_ssl);
    for other in all.iter().filter(|other| first.is_none_or(|first| !std::ptr::eq(*other, first))) {
        let text =
            "nobody listens at this address, because the server has one, without TLS unless admin.tls.cert is set";
        given.doubt(format!("{}: {text}", other.address));
    }
    given.set(setting, first.map_or("off", |address| address.address.as_str()));
}
