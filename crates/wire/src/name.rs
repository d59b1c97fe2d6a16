//! Field names: the ones the gateway reads get a one-byte id in the header pass, the others are compared as text.

/// Field names with a meaning to the gateway itself, and frequent ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the registered field names")]
pub enum Known {
    /// Any other name.
    #[default]
    Other,
    Accept,
    AcceptEncoding,
    Apikey,
    Authorization,
    Connection,
    ContentEncoding,
    ContentLength,
    ContentType,
    Cookie,
    Date,
    Expect,
    Forwarded,
    Host,
    Http2Settings,
    KeepAlive,
    MaxForwards,
    ProxyConnection,
    Server,
    Te,
    Trailer,
    TransferEncoding,
    Upgrade,
    UserAgent,
    XForwardedFor,
    XForwardedHost,
    XForwardedPort,
    XForwardedProto,
    XRealIp,
}

impl Known {
    /// The id of a field name, whatever its case.
    #[must_use]
    pub fn classify(name: &[u8]) -> Self {
        // By length first: at most three comparisons a name.
        let candidates: &[(&[u8], Self)] = match name.len() {
            2 => &[(b"te", Self::Te)],
            4 => &[(b"host", Self::Host), (b"date", Self::Date)],
            6 => &[(b"accept", Self::Accept), (b"cookie", Self::Cookie), (b"apikey", Self::Apikey), (b"expect", Self::Expect),
                (b"server", Self::Server)],
            7 => &[(b"upgrade", Self::Upgrade), (b"trailer", Self::Trailer)],
            9 => &[(b"x-real-ip", Self::XRealIp), (b"forwarded", Self::Forwarded)],
            10 => &[(b"user-agent", Self::UserAgent), (b"connection", Self::Connection), (b"keep-alive", Self::KeepAlive)],
            12 => &[(b"content-type", Self::ContentType), (b"max-forwards", Self::MaxForwards)],
            13 => &[(b"authorization", Self::Authorization)],
            14 => &[(b"content-length", Self::ContentLength), (b"http2-settings", Self::Http2Settings)],
            15 => &[(b"accept-encoding", Self::AcceptEncoding), (b"x-forwarded-for", Self::XForwardedFor)],
            16 => &[(b"content-encoding", Self::ContentEncoding), (b"x-forwarded-host", Self::XForwardedHost),
                (b"x-forwarded-port", Self::XForwardedPort), (b"proxy-connection", Self::ProxyConnection)],
            17 => &[(b"transfer-encoding", Self::TransferEncoding), (b"x-forwarded-proto", Self::XForwardedProto)],
            _ => &[],
        };
        candidates.iter().find(|(text, _)| name.eq_ignore_ascii_case(text)).map_or(Self::Other, |(_, id)| *id)
    }
}

/// A field name compiled once from configuration: its text and its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldName {
    id: Known,
    text: Box<[u8]>,
}

impl FieldName {
    /// Compiles a name; `None` when it is not a token (RFC 9110 section 5.1).
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        if text.is_empty() || !text.bytes().all(crate::is_tchar) {
            return None;
        }
        Some(Self { id: Known::classify(text.as_bytes()), text: text.as_bytes().into() })
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> Known {
        self.id
    }
}

#[cfg(test)]
mod tests {
    use super::{FieldName, Known};

    #[test]
    fn names_are_known_in_any_case() {
        for (name, id) in [
            ("Host", Known::Host),
            ("cOnTeNt-LeNgTh", Known::ContentLength),
            ("TRANSFER-ENCODING", Known::TransferEncoding),
            ("Content_Length", Known::Other),
            ("X-Other", Known::Other),
            ("", Known::Other),
        ] {
            assert_eq!(Known::classify(name.as_bytes()), id, "{name}");
        }
    }

    #[test]
    fn a_name_is_a_token() {
        assert!(FieldName::new("X-Key").is_some());
        for bad in ["", "a b", "a:", "a\r\n", "é"] {
            assert!(FieldName::new(bad).is_none(), "{bad:?}");
        }
    }
}
