//! Requests that a browser sends for a page of somebody else.
//!
//! A key in a field or in the query shows that the page knows the key. Without one, be it that no key is asked for or that
//! the browser adds it as a cookie, any page could change the configuration: pages of other origins by a plain POST, and
//! pages whose own name resolves to 127.0.0.1 (DNS rebinding) by any request. Browsers send both fields, other programs neither.

use std::net::{IpAddr, Ipv6Addr};

use hyper::HeaderMap;
use hyper::Uri;
use hyper::header::{HOST, HeaderName, ORIGIN};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Names by which operators reach an API, beside `localhost` and its addresses. Pages of these hosts may use the API.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// These names; case does not count.
    #[must_use]
    pub fn new(names: &[String]) -> Self {
        Self(names.iter().map(|name| plain(name)).collect())
    }

    /// The reason why a request that reached the address `local` is not answered, if there is one.
    #[must_use]
    pub fn refusal(&self, uri: &Uri, fields: &HeaderMap, local: IpAddr) -> Option<String> {
        let text = |name: HeaderName| fields.get(name).map(|value| value.to_str().unwrap_or_default());
        // RFC 9112 section 3.2.2: an absolute target goes before Host.
        let authority = uri.authority().map(hyper::http::uri::Authority::as_str).or_else(|| text(HOST));
        if let Some(host) = authority.map(host_of)
            && local.to_canonical().is_loopback()
            && !self.knows(&host, local)
        {
            return Some(format!(
                "the host {host} is not known here: use localhost, or add the name to the setting admin.hosts"
            ));
        }
        let origin = text(ORIGIN);
        let origin_host = origin.and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
        if origin_host.is_some_and(|authority| self.0.contains(&host_of(authority))) {
            return None;
        }
        let is_own = |authority: &str| origin_host.is_some_and(|origin| origin.eq_ignore_ascii_case(authority));
        let foreign = match (origin, text(SEC_FETCH_SITE)) {
            (Some(origin), _) if !authority.is_some_and(is_own) => format!("the origin {origin}"),
            (_, None | Some("same-origin" | "none")) => return None,
            (_, Some(site)) => format!("another origin (Sec-Fetch-Site: {site})"),
        };
        Some(format!(
            "pages of {foreign} may not use this API without a key: send the key in X-API-KEY, or add the host of the page \
             to the setting admin.hosts"
        ))
    }

    fn knows(&self, host: &str, local: IpAddr) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match address.map(|address| address.to_canonical()) {
            Ok(address) => address.is_loopback() || address == local.to_canonical(),
            Err(_) => host == "localhost" || self.0.iter().any(|name| name == host),
        }
    }
}

/// The host of an authority, without its port and in the one form in which hosts are compared.
fn host_of(authority: &str) -> String {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && host.parse::<Ipv6Addr>().is_err() => {
            host
        }
        _ => authority,
    };
    plain(host)
}

fn plain(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};
    use hyper::{HeaderMap, Uri};

    use super::Hosts;

    #[test]
    fn pages_of_others_are_told_from_programs_and_own_pages() {
        let hosts = Hosts::new(&["Admin.test".to_owned()]);
        let (loopback, network) = ("127.0.0.1", "10.0.0.5");
        // The address that was reached, Host, Origin, Sec-Fetch-Site, and whether the request is answered.
        let cases: &[(&str, &str, &str, &str, bool)] = &[
            (loopback, "localhost:9180", "", "", true),
            (loopback, "LOCALHOST.", "", "", true),
            (loopback, "127.0.0.1:9180", "", "", true),
            (loopback, "127.8.8.8", "", "", true),
            ("::1", "[::1]:9180", "", "", true),
            ("::ffff:127.0.0.1", "localhost", "", "", true),
            (loopback, "admin.test:9180", "", "", true),
            (loopback, "", "", "", true),
            (loopback, "evil.test:9180", "", "", false),
            (loopback, "localhost.evil.test", "", "", false),
            (loopback, "10.0.0.5", "", "", false),
            (loopback, "evil.test:9180", "http://evil.test:9180", "same-origin", false),
            ("::ffff:127.0.0.1", "evil.test", "", "", false),
            (network, "10.0.0.5:9180", "", "", true),
            (network, "weir.example:9180", "", "", true),
            (network, "weir.example:9180", "http://weir.example:9180", "same-origin", true),
            (network, "weir.example:9180", "http://evil.test", "", false),
            (loopback, "localhost:9180", "http://localhost:9180", "", true),
            (loopback, "localhost:9180", "http://LocalHost:9180", "same-origin", true),
            (loopback, "localhost:9180", "http://localhost:5173", "same-site", false),
            (loopback, "localhost:9180", "http://localhost", "", false),
            (loopback, "localhost:9180", "http://evil.test", "cross-site", false),
            (loopback, "localhost:9180", "null", "", false),
            (loopback, "localhost:9180", "http://admin.test:8080", "cross-site", true),
            (loopback, "localhost:9180", "", "none", true),
            (loopback, "localhost:9180", "", "same-origin", true),
            (loopback, "localhost:9180", "", "same-site", false),
            (loopback, "localhost:9180", "", "cross-site", false),
            (loopback, "localhost:9180", "", "anything else", false),
        ];
        for (local, host, origin, site, answered) in cases {
            let mut fields = HeaderMap::new();
            for (name, value) in [("host", host), ("origin", origin), ("sec-fetch-site", site)] {
                if !value.is_empty() {
                    fields.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
                }
            }
            let refusal = hosts.refusal(&Uri::from_static("/"), &fields, local.parse().unwrap());
            assert_eq!(refusal.is_none(), *answered, "{local} {host} {origin} {site}: {refusal:?}");
        }
        let mut fields = HeaderMap::new();
        fields.insert("host", HeaderValue::from_static("localhost"));
        let absolute = Uri::from_static("http://evil.test/apisix/admin/routes");
        assert!(hosts.refusal(&absolute, &fields, "127.0.0.1".parse().unwrap()).is_some());
    }
}
