//! Request fields that name the client of a proxy: which of them are trusted, and the client's address in them (nginx's
//! realip rules).

use std::net::IpAddr;

use weir_plugin::host::Exchange;
use weir_wire::forwarded;
use weir_wire::name::Known;

use crate::options::{Options, RealIp};

impl Options {
    /// Removes an untrusted peer's statements about its client before anything reads the request: X-Forwarded-Proto,
    /// -Host and -Port, and Forwarded; X-Forwarded-For as well where some proxies are trusted. Where none are, the list
    /// in X-Forwarded-For is continued for every peer, as in APISIX.
    #[cold]
    pub(crate) fn distrust(&self, x: &mut Exchange) {
        if self.trusted_proxies.iter().any(|net| net.contains(&x.client.sender)) {
            return;
        }
        let fields = &mut x.request.head.fields;
        for name in [Known::XForwardedProto, Known::XForwardedHost, Known::XForwardedPort, Known::Forwarded] {
            fields.remove_known(name);
        }
        if !self.trusted_proxies.is_empty() {
            fields.remove_known(Known::XForwardedFor);
        }
    }
}

impl RealIp {
    /// The address that a trusted `peer` reports; `None` when it is not trusted or reports none.
    ///
    /// A list is read from the right: its last address, or with `recursive` the last one that is not trusted itself.
    pub(crate) fn client<'a>(&self, peer: IpAddr, values: impl Iterator<Item = &'a [u8]>) -> Option<IpAddr> {
        let trusted = |addr: IpAddr| self.trusted.iter().any(|net| net.contains(&addr));
        if !trusted(peer) {
            return None;
        }
        forwarded::client(values, self.recursive, trusted).map(|(addr, _)| addr)
    }
}

#[cfg(test)]
mod tests {
    use super::RealIp;
    use weir_wire::name::FieldName;

    #[test]
    fn trusted_peers_are_believed() {
        for (peer, value, recursive, found) in [
            ("10.0.0.1", "1.2.3.4", false, Some("1.2.3.4")),
            ("10.0.0.1", "9.9.9.9, 1.2.3.4", false, Some("1.2.3.4")),
            ("10.0.0.1", "9.9.9.9, 1.2.3.4, 10.0.0.2", true, Some("1.2.3.4")),
            ("10.0.0.1", "10.0.0.3, 10.0.0.2", true, Some("10.0.0.3")),
            ("10.0.0.1", "1.2.3.4:99", false, Some("1.2.3.4")),
            ("10.0.0.1", "[2001:db8::1]:99", false, Some("2001:db8::1")),
            ("10.0.0.1", "junk", false, None),
            ("10.0.0.1", "1.2.3.4, junk, 10.0.0.2", true, Some("10.0.0.2")),
            ("11.0.0.1", "1.2.3.4", false, None),
        ] {
            let rule = RealIp {
                field: FieldName::new("X-Forwarded-For").unwrap(),
                trusted: Box::new(["10.0.0.0/8".parse().unwrap()]),
                recursive,
            };
            let got = rule.client(peer.parse().unwrap(), std::iter::once(value.as_bytes()));
            assert_eq!(got, found.map(|f| f.parse().unwrap()), "{peer} {value}");
        }
    }
}
