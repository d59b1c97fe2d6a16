//! The PROXY protocol: a header before a connection's bytes, in which a proxy states the client's address.
//!
//! Versions 1 (a line of text) and 2 (binary) are read, as in HAProxy's `proxy-protocol.txt`. Other data in the
//! header (the TLVs of version 2) is ignored.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Maximum length of a header in bytes, as in nginx. A line of version 1 has at most 107 bytes; a header of version 2
/// could have 65,551 bytes because of ignored TLVs.
pub const MAX_LEN: usize = 4096;

/// First bytes of a version 2 header; the first line of no other protocol has them.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Maximum length of a version 1 line in bytes, including its line end.
const MAX_LINE: usize = 107;
/// Length of the fixed part: signature, version and command, family and protocol, length.
const FIXED: usize = 16;

const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// A complete header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the header in bytes; the connection's own bytes follow.
    pub len: usize,
    /// `None` if the connection is the proxy's own (LOCAL), or if its addresses are unknown (UNKNOWN, other
    /// families).
    pub addresses: Option<Addresses>,
}

/// Both ends of the proxied connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Address of the client.
    pub source: SocketAddr,
    /// Address at which the client reached the proxy.
    pub destination: SocketAddr,
}

/// Error for bytes that are no header, with a short reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// Parses the header at the start of a connection; `None` if more bytes are needed.
///
/// # Errors
/// The bytes are no header.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    const PREFIX: &[u8] = b"PROXY ";
    let begins = |with: &[u8]| bytes.iter().zip(with).all(|(a, b)| a == b);
    if begins(SIGNATURE) {
        parse_binary(bytes)
    } else if begins(PREFIX) {
        parse_line(bytes)
    } else {
        Err(Malformed("no PROXY header"))
    }
}

fn parse_line(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let within = bytes.get(..MAX_LINE).unwrap_or(bytes);
    let Some(end) = within.iter().position(|b| !(b' '..=b'~').contains(b)) else {
        return if bytes.len() < MAX_LINE { Ok(None) } else { Err(Malformed("PROXY line too long")) };
    };
    match within.get(end..) {
        Some([b'\r', b'\n', ..]) => {}
        Some([b'\r']) if bytes.len() < MAX_LINE => return Ok(None),
        _ => return Err(Malformed("PROXY line does not end with CRLF")),
    }
    let line = within.get(..end).and_then(|line| std::str::from_utf8(line).ok()).unwrap_or_default();
    let mut words = line.split(' ').skip(1);
    let len = end + 2;
    let addresses = match words.next() {
        // The rest of the line, if any, has no meaning.
        Some("UNKNOWN") => None,
        Some("TCP4") => Some(line_addresses::<Ipv4Addr>(&mut words)?),
        Some("TCP6") => Some(line_addresses::<Ipv6Addr>(&mut words)?),
        _ => return Err(Malformed("PROXY line of an unknown protocol")),
    };
    Ok(Some(Header { len, addresses }))
}

fn line_addresses<'a, A>(words: &mut impl Iterator<Item = &'a str>) -> Result<Addresses, Malformed>
where
    A: std::str::FromStr + Into<IpAddr>,
{
    let mut addr =
        || words.next().and_then(|text| text.parse::<A>().ok()).ok_or(Malformed("PROXY line with a bad address"));
    let (source, destination) = (addr()?, addr()?);
    let mut port = || words.next().and_then(decimal).ok_or(Malformed("PROXY line with a bad port"));
    let (source_port, destination_port) = (port()?, port()?);
    if words.next().is_some() {
        return Err(Malformed("PROXY line with more than addresses and ports"));
    }
    Ok(Addresses {
        source: SocketAddr::new(source.into(), source_port),
        destination: SocketAddr::new(destination.into(), destination_port),
    })
}

/// Parses a port without sign or leading zeros.
fn decimal(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|b| b.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    text.parse().ok().filter(|_| digits)
}

fn parse_binary(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let Some(&[command, kind, high, low]) = bytes.get(SIGNATURE.len()..FIXED) else { return Ok(None) };
    if !matches!(command, LOCAL | PROXY) {
        return Err(Malformed("PROXY header of an unknown version or command"));
    }
    if kind >> 4 > 3 || kind & 15 > 2 {
        return Err(Malformed("PROXY header of an unknown family or protocol"));
    }
    let len = FIXED + usize::from(u16::from_be_bytes([high, low]));
    if len > MAX_LEN {
        return Err(Malformed("PROXY header too long"));
    }
    let Some(payload) = bytes.get(FIXED..len) else { return Ok(None) };
    let addresses = match (command, kind) {
        (PROXY, TCP4) => Some(binary_addresses::<4, Ipv4Addr>(payload)?),
        (PROXY, TCP6) => Some(binary_addresses::<16, Ipv6Addr>(payload)?),
        _ => None,
    };
    Ok(Some(Header { len, addresses }))
}

/// Parses two addresses of `N` bytes and two ports; TLVs may follow.
fn binary_addresses<const N: usize, A>(payload: &[u8]) -> Result<Addresses, Malformed>
where
    A: From<[u8; N]> + Into<IpAddr>,
{
    let read = || {
        let (source, rest) = payload.split_first_chunk::<N>()?;
        let (destination, rest) = rest.split_first_chunk::<N>()?;
        let (source_port, rest) = rest.split_first_chunk::<2>()?;
        let destination_port = rest.first_chunk::<2>()?;
        let end = |addr: [u8; N], port: [u8; 2]| SocketAddr::new(A::from(addr).into(), u16::from_be_bytes(port));
        Some(Addresses { source: end(*source, *source_port), destination: end(*destination, *destination_port) })
    };
    read().ok_or(Malformed("PROXY header too short for its addresses"))
}

/// Appends a header of version 1; without addresses it is UNKNOWN.
pub fn write_line(out: &mut Vec<u8>, addresses: Option<Addresses>) {
    let written = match addresses.map(of_one_family) {
        None => out.write_all(b"PROXY UNKNOWN\r\n"),
        Some(Addresses { source, destination }) => {
            let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
            let (from, to) = (source.ip(), destination.ip());
            write!(out, "PROXY {family} {from} {to} {} {}\r\n", source.port(), destination.port())
        }
    };
    debug_assert!(written.is_ok(), "memory takes what is written to it");
}

/// Appends a header of version 2; without addresses its family is unspecified.
pub fn write_binary(out: &mut Vec<u8>, addresses: Option<Addresses>) {
    out.extend_from_slice(SIGNATURE);
    let Some(Addresses { source, destination }) = addresses.map(of_one_family) else {
        out.extend_from_slice(&[PROXY, 0, 0, 0]);
        return;
    };
    let (kind, len) = if source.is_ipv4() { (TCP4, 12) } else { (TCP6, 36) };
    out.extend_from_slice(&[PROXY, kind, 0, len]);
    for end in [source, destination] {
        match end.ip() {
            IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
        }
    }
    for end in [source, destination] {
        out.extend_from_slice(&end.port().to_be_bytes());
    }
}

/// Converts both addresses to one family, as a header requires: if one is IPv6, an IPv4 address is mapped into IPv6.
fn of_one_family(addresses: Addresses) -> Addresses {
    let Addresses { source, destination } = addresses;
    if source.is_ipv4() == destination.is_ipv4() {
        return addresses;
    }
    let mapped = |end: SocketAddr| match end.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), end.port()),
        IpAddr::V6(_) => end,
    };
    Addresses { source: mapped(source), destination: mapped(destination) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(source: &str, destination: &str) -> Option<Addresses> {
        let end = |text: &str| text.parse().expect("an address and a port");
        Some(Addresses { source: end(source), destination: end(destination) })
    }

    fn binary(command: u8, kind: u8, payload: &[u8]) -> Vec<u8> {
        let len = u16::try_from(payload.len()).expect("a short payload").to_be_bytes();
        [SIGNATURE, &[command, kind], &len, payload].concat()
    }

    #[test]
    fn headers_are_read() {
        let four = [192, 0, 2, 1, 192, 0, 2, 2, 0xc0, 0, 0, 80];
        let mut six = Vec::new();
        six.extend_from_slice(&Ipv6Addr::LOCALHOST.octets());
        six.extend_from_slice(&"2001:db8::1".parse::<Ipv6Addr>().expect("an address").octets());
        six.extend_from_slice(&[0, 1, 1, 0]);
        let tlvs = [&four[..], &[4, 0, 3, 1, 2, 3]].concat();
        let unix = vec![b'/'; 216];
        let cases: &[(&[u8], Option<Addresses>)] = &[
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 49152 80\r\n", ends("192.0.2.1:49152", "192.0.2.2:80")),
            (
                b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
                ends("255.255.255.255:65535", "255.255.255.255:65535"),
            ),
            (b"PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n", ends("0.0.0.0:0", "0.0.0.0:0")),
            (b"PROXY TCP6 ::1 2001:db8::1 1 256\r\n", ends("[::1]:1", "[2001:db8::1]:256")),
            (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", ends("[::ffff:192.0.2.1]:1", "[::1]:2")),
            (b"PROXY UNKNOWN\r\n", None),
            (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
            (&binary(PROXY, TCP4, &four), ends("192.0.2.1:49152", "192.0.2.2:80")),
            (&binary(PROXY, TCP4, &tlvs), ends("192.0.2.1:49152", "192.0.2.2:80")),
            (&binary(PROXY, TCP6, &six), ends("[::1]:1", "[2001:db8::1]:256")),
            (&binary(LOCAL, 0, &[]), None),
            (&binary(LOCAL, TCP4, &four), None),
            (&binary(LOCAL, TCP4, &[]), None),
            (&binary(PROXY, 0, &[1, 2, 3]), None),
            (&binary(PROXY, 0x12, &four), None),
            (&binary(PROXY, 0x31, &unix), None),
            (&binary(LOCAL, 0, &[0; MAX_LEN - FIXED]), None),
        ];
        for (bytes, addresses) in cases {
            let shown = String::from_utf8_lossy(bytes);
            let whole = Ok(Some(Header { len: bytes.len(), addresses: *addresses }));
            assert_eq!(parse(bytes), whole, "{shown}");
            assert_eq!(parse(&[*bytes, b"GET / HTTP/1.1\r\n"].concat()), whole, "{shown}");
            for len in 0..bytes.len() {
                assert_eq!(parse(&bytes[..len]), Ok(None), "{len} bytes of {shown}");
            }
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let mut longer = binary(LOCAL, 0, &[]);
        longer[14..16].copy_from_slice(&((MAX_LEN - FIXED + 1) as u16).to_be_bytes());
        let long_line = [&b"PROXY UNKNOWN "[..], &[b'x'; MAX_LINE]].concat();
        let cases: &[(&[u8], &str)] = &[
            (b"GET / HTTP/1.1\r\n", "no PROXY header"),
            (b"\x16\x03\x01", "no PROXY header"),
            (b"proxy TCP4 ", "no PROXY header"),
            (b"PROXYTCP4 ", "no PROXY header"),
            (b"\r\nPROXY ", "no PROXY header"),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n", "PROXY line does not end with CRLF"),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\r\n", "PROXY line does not end with CRLF"),
            (b"PROXY UNKNOWN \x01\r\n", "PROXY line does not end with CRLF"),
            (b"PROXY UNKNOWN\nGET / HTTP/1.1\r\n", "PROXY line does not end with CRLF"),
            (&long_line, "PROXY line too long"),
            (b"PROXY \r\n", "PROXY line of an unknown protocol"),
            (b"PROXY  TCP4 1.2.3.4 1.2.3.4 1 2\r\n", "PROXY line of an unknown protocol"),
            (b"PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n", "PROXY line of an unknown protocol"),
            (b"PROXY UNKNOWNS\r\n", "PROXY line of an unknown protocol"),
            (b"PROXY TCP4\r\n", "PROXY line with a bad address"),
            (b"PROXY TCP4 ::1 ::1 1 2\r\n", "PROXY line with a bad address"),
            (b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n", "PROXY line with a bad address"),
            (b"PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n", "PROXY line with a bad address"),
            (b"PROXY TCP4 1.2.3.04 1.2.3.4 1 2\r\n", "PROXY line with a bad address"),
            (b"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n", "PROXY line with a bad address"),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", "PROXY line with a bad port"),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n", "PROXY line with a bad port"),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n", "PROXY line with a bad port"),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", "PROXY line with a bad port"),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 \r\n", "PROXY line with more than addresses and ports"),
            (&binary(0x11, TCP4, &[0; 12]), "PROXY header of an unknown version or command"),
            (&binary(0x22, TCP4, &[0; 12]), "PROXY header of an unknown version or command"),
            (&binary(PROXY, 0x41, &[0; 12]), "PROXY header of an unknown family or protocol"),
            (&binary(PROXY, 0x13, &[0; 12]), "PROXY header of an unknown family or protocol"),
            (&binary(PROXY, TCP4, &[0; 11]), "PROXY header too short for its addresses"),
            (&binary(PROXY, TCP6, &[0; 35]), "PROXY header too short for its addresses"),
            (&longer, "PROXY header too long"),
        ];
        for (bytes, reason) in cases {
            assert_eq!(parse(bytes), Err(Malformed(reason)), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        for (addresses, read) in [
            (None, None),
            (ends("192.0.2.1:1", "192.0.2.2:65535"), ends("192.0.2.1:1", "192.0.2.2:65535")),
            (ends("[2001:db8::1]:1", "[::1]:2"), ends("[2001:db8::1]:1", "[::1]:2")),
            (ends("192.0.2.1:1", "[::1]:2"), ends("[::ffff:192.0.2.1]:1", "[::1]:2")),
            (ends("[::1]:1", "192.0.2.1:2"), ends("[::1]:1", "[::ffff:192.0.2.1]:2")),
        ] {
            for write in [write_line, write_binary] {
                let mut out = b"x".to_vec();
                write(&mut out, addresses);
                assert_eq!(parse(&out[1..]), Ok(Some(Header { len: out.len() - 1, addresses: read })));
            }
        }
    }
}
