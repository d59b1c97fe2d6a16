//! Field names: those that the gateway reads get a one-byte id in the header pass, others are compared as text.

/// Field names with a meaning to the gateway, and frequent ones.
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
    /// Id of a field name, compared case-insensitively.
    #[must_use]
    pub fn classify(name: &[u8]) -> Self {
        // Selected by length and first letter: rarely more than one comparison, and none for most names.
        let Some(first) = name.first() else { return Self::Other };
        let candidate: (&[u8], Self) = match (name.len(), first | 0x20) {
            (2, b't') => (b"te", Self::Te),
            (4, b'h') => (b"host", Self::Host),
            (4, b'd') => (b"date", Self::Date),
            (6, b'a') => match name.get(1).map(|b| b | 0x20) {
                Some(b'c') => (b"accept", Self::Accept),
                Some(b'p') => (b"apikey", Self::Apikey),
                _ => return Self::Other,
            },
            (6, b'c') => (b"cookie", Self::Cookie),
            (6, b'e') => (b"expect", Self::Expect),
            (6, b's') => (b"server", Self::Server),
            (7, b'u') => (b"upgrade", Self::Upgrade),
            (7, b't') => (b"trailer", Self::Trailer),
            (9, b'x') => (b"x-real-ip", Self::XRealIp),
            (9, b'f') => (b"forwarded", Self::Forwarded),
            (10, b'u') => (b"user-agent", Self::UserAgent),
            (10, b'c') => (b"connection", Self::Connection),
            (10, b'k') => (b"keep-alive", Self::KeepAlive),
            (12, b'c') => (b"content-type", Self::ContentType),
            (12, b'm') => (b"max-forwards", Self::MaxForwards),
            (13, b'a') => (b"authorization", Self::Authorization),
            (14, b'c') => (b"content-length", Self::ContentLength),
            (14, b'h') => (b"http2-settings", Self::Http2Settings),
            (15, b'a') => (b"accept-encoding", Self::AcceptEncoding),
            (15, b'x') => (b"x-forwarded-for", Self::XForwardedFor),
            (16, b'c') => (b"content-encoding", Self::ContentEncoding),
            (16, b'x') => match name.get(12).map(|b| b | 0x20) {
                Some(b'h') => (b"x-forwarded-host", Self::XForwardedHost),
                Some(b'p') => (b"x-forwarded-port", Self::XForwardedPort),
                _ => return Self::Other,
            },
            (16, b'p') => (b"proxy-connection", Self::ProxyConnection),
            (17, b't') => (b"transfer-encoding", Self::TransferEncoding),
            (17, b'x') => (b"x-forwarded-proto", Self::XForwardedProto),
            _ => return Self::Other,
        };
        if eq_token(name, candidate.0) { candidate.1 } else { Self::Other }
    }
}

/// True if `text` equals `lower`, a text of lower-case letters, digits and `-`, in any case. Compares several bytes
/// at a time.
fn eq_token(text: &[u8], lower: &[u8]) -> bool {
    // Setting bit 5 turns letters to lower case and leaves `-` and digits unchanged. It also turns some control bytes
    // into `-` and digits (a CR into `-`); those have neither bit 5 nor bit 6 set.
    const BIT5: u64 = 0x2020_2020_2020_2020;
    const BIT6: u64 = 0x4040_4040_4040_4040;
    let same = |word: Option<u64>, lower: Option<u64>| {
        word.zip(lower).is_some_and(|(word, lower)| word | BIT5 == lower && (word | word << 1) & BIT6 == BIT6)
    };
    let eight = |at: usize| same(eight_bytes(text, at), eight_bytes(lower, at));
    // The last read may overlap the one before it.
    match (text.len() == lower.len(), text.len()) {
        (false, _) => false,
        (true, 4..=7) => same(both_ends(text), both_ends(lower)),
        (true, 8..=16) => eight(0) && eight(text.len() - 8),
        (true, 17..=24) => eight(0) && eight(8) && eight(text.len() - 8),
        (true, _) => text.iter().zip(lower).all(|(t, l)| t | 0x20 == *l && t & 0x60 != 0),
    }
}

fn eight_bytes(text: &[u8], at: usize) -> Option<u64> {
    text.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// First four and last four bytes.
fn both_ends(text: &[u8]) -> Option<u64> {
    let (&[a, b, c, d], &[e, f, g, h]) = (text.first_chunk()?, text.last_chunk()?);
    Some(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

/// Lower-case names of fields that the gateway sets towards upstreams, itself or by a plugin whose field name is
/// fixed.
pub(crate) const SET_FOR_UPSTREAMS: [&[u8]; 9] = [
    b"x-consumer-custom-id",
    b"x-consumer-username",
    b"x-credential-identifier",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-proto",
    b"x-real-ip",
    b"x-request-id",
];

/// True if a CGI program cannot distinguish two field names: letters become upper-case and `-` becomes `_` (RFC 3875
/// section 4.1.18); some servers replace every byte that is no letter or digit.
pub(crate) fn same_in_cgi(name: &[u8], other: &[u8]) -> bool {
    let same =
        |(a, b): (&u8, &u8)| a.eq_ignore_ascii_case(b) || !(a.is_ascii_alphanumeric() || b.is_ascii_alphanumeric());
    name.len() == other.len() && name.iter().zip(other).all(same)
}

/// A field name compiled from configuration: its text, its id, and the start of a line with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldName {
    id: Known,
    mark: u8,
    /// True if all bytes are letters, digits and `-`.
    plain: bool,
    /// The text, a colon and a space.
    line: Box<[u8]>,
}

/// Mark of a field name for quick exclusion: 0 to 31 for a known name; 32 to 63 for another name, by its length and
/// some of its letters in any case.
pub(crate) fn mark(id: Known, name: &[u8]) -> u8 {
    if id != Known::Other {
        return id as u8 & 31;
    }
    let letter = |at: usize| usize::from(name.get(at).copied().unwrap_or_default() | 0x20);
    let len = name.len();
    32 + ((len + 3 * letter(len / 2) + 5 * letter(len.wrapping_sub(3))) & 31) as u8
}

impl FieldName {
    /// Compiles a name; `None` if it is no token (RFC 9110 section 5.1).
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        if text.is_empty() || !text.bytes().all(crate::is_tchar) {
            return None;
        }
        let id = Known::classify(text.as_bytes());
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        Some(Self { id, mark: mark(id, text.as_bytes()), plain, line: [text.as_bytes(), b": "].concat().into() })
    }

    /// Compiles a name that is a constant of the program.
    ///
    /// # Panics
    /// The name is no token.
    #[must_use]
    pub fn constant(text: &'static str) -> Self {
        Self::new(text).unwrap_or_else(|| panic!("{text:?} is not a token"))
    }

    /// Name in its original spelling.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        self.line.get(..self.line.len() - 2).unwrap_or_default()
    }

    /// True for a field that frames a message or belongs to one connection (RFC 9110 section 7.6.1): the gateway's own, which
    /// nobody else could set without breaking it.
    #[must_use]
    pub fn is_framing(&self) -> bool {
        matches!(
            self.id,
            Known::Connection
                | Known::ContentLength
                | Known::Http2Settings
                | Known::KeepAlive
                | Known::ProxyConnection
                | Known::Te
                | Known::Trailer
                | Known::TransferEncoding
                | Known::Upgrade
        )
    }

    /// Start of a line with the name: text, colon and space.
    pub(crate) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Result of [`mark`] for the name.
    pub(crate) fn mark(&self) -> u8 {
        self.mark
    }

    /// True if all bytes are letters, digits and `-`.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Id of the name.
    #[must_use]
    pub fn id(&self) -> Known {
        self.id
    }
}

#[cfg(test)]
mod tests {
    use super::{FieldName, Known, SET_FOR_UPSTREAMS, same_in_cgi};

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

    /// Every known name is a token: the head's parser relies on this.
    #[test]
    fn no_other_bytes_pass_for_a_known_name() {
        let names = ["te", "host", "keep-alive", "http2-settings", "transfer-encoding", "x-forwarded-proto", "accept"];
        for name in names {
            for at in 0..name.len() {
                for byte in 0..=u8::MAX {
                    let mut changed = name.as_bytes().to_vec();
                    changed[at] = byte;
                    let same = changed.eq_ignore_ascii_case(name.as_bytes());
                    assert_eq!(Known::classify(&changed) == Known::classify(name.as_bytes()), same, "{changed:?}");
                }
            }
        }
    }

    #[test]
    fn cgi_merges_names() {
        for (a, b, same) in [
            ("X_Forwarded_For", "x-forwarded-for", true),
            ("x.forwarded-FOR", "x-forwarded-for", true),
            ("X_Forwarded_For", "x-forwarded-fo1", false),
            ("X_A", "X-A-", false),
            ("XxA", "X-A", false),
        ] {
            assert_eq!(same_in_cgi(a.as_bytes(), b.as_bytes()), same, "{a} {b}");
        }
        assert!(SET_FOR_UPSTREAMS.is_sorted());
    }

    #[test]
    fn a_name_is_a_token() {
        assert!(FieldName::new("X-Key").is_some());
        for bad in ["", "a b", "a:", "a\r\n", "é"] {
            assert!(FieldName::new(bad).is_none(), "{bad:?}");
        }
    }
}
