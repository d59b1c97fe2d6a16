//! The head of a message of syslog (RFC 5424 section 6).

use weir_plugin::View;

use super::stamp::push_rfc3339;

/// The facility of messages of users.
pub(crate) const USER: u8 = 1;
/// The facility of syslog's own messages.
pub(crate) const SYSLOG: u8 = 5;
/// The severity of informational messages.
pub(crate) const INFO: u8 = 6;
/// Most bytes of the name of a host.
const LONGEST_HOST: usize = 255;

/// Appends the head up to the id of the process: `<46>1 2026-01-01T00:00:00.000Z a.test apisix 123`.
pub(crate) fn push_head(facility: u8, severity: u8, x: View<'_>, out: &mut Vec<u8>) {
    out.push(b'<');
    weir_wire::push_number(out, u64::from(facility) * 8 + u64::from(severity));
    out.extend_from_slice(b">1 ");
    push_rfc3339(x.unix_ms() + x.duration() / 1000, out);
    out.push(b' ');
    let host = x.request().host();
    let host = host.get(..LONGEST_HOST).unwrap_or(host);
    // A name is printable ASCII without blanks (RFC 5424 section 6.2.4).
    if host.is_empty() || !host.iter().all(u8::is_ascii_graphic) {
        out.push(b'-');
    } else {
        out.extend_from_slice(host);
    }
    out.extend_from_slice(b" apisix ");
    weir_wire::push_number(out, u64::from(std::process::id()));
}

/// Appends a parameter of structured data (RFC 5424 section 6.3.3).
pub(crate) fn push_parameter(name: &str, value: &str, out: &mut Vec<u8>) {
    out.push(b' ');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"=\"");
    for byte in value.bytes() {
        if matches!(byte, b'"' | b'\\' | b']') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::push_parameter;

    #[test]
    fn values_of_parameters_are_escaped() {
        let mut out = Vec::new();
        push_parameter("tag", "a\"b]c\\d", &mut out);
        assert_eq!(out, br#" tag="a\"b\]c\\d""#);
    }
}
