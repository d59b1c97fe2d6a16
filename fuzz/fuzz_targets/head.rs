//! Request and response heads: an accepted head is strictly formed, framed as by a naive parser, complete only with
//! its last byte, and still accepted after it was written out for the next hop.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_wire::head::{Framing, Limits, RequestHead, ResponseHead, Version};
use weir_wire::method::Method;

fuzz_target!(|data: &[u8]| {
    let limits = Limits { head: 4096, fields: 32, target: 1024 };
    request(data, &limits);
    for to in [Method::Get, Method::Head] {
        response(data, &limits, to);
    }
});

fn request(data: &[u8], limits: &Limits) {
    let mut head = RequestHead::default();
    let Ok(Some(http1)) = head.parse(data, limits) else { return };
    let text = &data[..http1.len];
    let fields = strict_fields(text.trim_ascii_start());
    assert!(fields.len() <= limits.fields && head.target.len() <= limits.target);
    let count = |name: &str| fields.iter().filter(|(n, _)| n == name).count();
    assert!(count("host") == 1 || (head.version == Version::Http10 && count("host") == 0));
    match http1.framing {
        Framing::None => assert_eq!(count("content-length") + count("transfer-encoding"), 0),
        Framing::Length(n) => {
            assert_eq!((count("content-length"), count("transfer-encoding")), (1, 0));
            let (_, value) = fields.iter().find(|(name, _)| name == "content-length").expect("counted above");
            assert_eq!(value.parse(), Ok(n));
        }
        Framing::Chunked => {
            assert_eq!((count("content-length"), count("transfer-encoding"), head.version), (0, 1, Version::Http11));
        }
        Framing::UntilClose => panic!("a request cannot end with its connection"),
    }

    // A prefix of a head is never taken for a head. One cut per run is enough, because the fuzzer varies it.
    let cut = usize::from(data[data.len() - 1]) * http1.len / 256;
    let mut part = RequestHead::default();
    assert_eq!(part.parse(&data[..cut], limits), Ok(None), "a head was accepted, but not its beginning");
    assert_eq!(part.parse(text, limits), Ok(Some(http1)), "what follows a head changed what it says");

    // The forwarded text is a head again, without any field that was meant for this connection only.
    let mut sent = [head.method_span.of(data), b" ", head.target.of(data), b" HTTP/1.1\r\n"].concat();
    if head.host.is_none() {
        sent.extend_from_slice(b"Host: added\r\n");
    }
    head.fields.write(data, &mut sent);
    sent.extend_from_slice(b"\r\n");
    let mut again = RequestHead::default();
    let roomy = Limits { head: limits.head + 64, fields: limits.fields + 1, ..*limits };
    let found = again.parse(&sent, &roomy).ok().flatten();
    let found = found.unwrap_or_else(|| panic!("no head: {}", String::from_utf8_lossy(&sent)));
    assert_eq!(found.len, sent.len());
    assert!(found.keep_alive && !again.websocket);
    assert_eq!(found.framing, if http1.framing == Framing::Chunked { Framing::None } else { http1.framing });
    for (name, _) in again.fields.iter(&sent) {
        for hop in ["connection", "keep-alive", "transfer-encoding", "te", "upgrade", "proxy-connection"] {
            assert!(!name.eq_ignore_ascii_case(hop.as_bytes()), "{hop} was passed on");
        }
    }
}

fn response(data: &[u8], limits: &Limits, to: Method) {
    let mut head = ResponseHead::default();
    let http1 = match head.parse(data, limits, to) {
        Ok(None) => return,
        Err(reject) => return assert_eq!(reject.status, 502),
        Ok(Some(http1)) => http1,
    };
    let fields = strict_fields(&data[..http1.len]);
    assert!((100..=999).contains(&head.status));
    let bodyless = to == Method::Head || head.status < 200 || matches!(head.status, 204 | 304);
    assert_eq!(http1.framing == Framing::None, bodyless);
    assert!(!(http1.keep_alive && http1.framing == Framing::UntilClose));
    assert!(
        !(fields.iter().any(|(name, _)| name == "content-length")
            && fields.iter().any(|(name, _)| name == "transfer-encoding"))
    );
    let cut = usize::from(data[data.len() - 1]) * http1.len / 256;
    assert_eq!(ResponseHead::default().parse(&data[..cut], limits, to), Ok(None));
}

/// Parses the fields of a head in the simplest way, with names in lower case; panics if they violate RFC 9112.
fn strict_fields(head: &[u8]) -> Vec<(String, String)> {
    assert!(!head.contains(&0));
    let text: String = head.iter().map(|b| char::from(*b)).collect();
    let lines = text.strip_suffix("\r\n\r\n").expect("a head ends in an empty line").split("\r\n");
    let fields = lines.skip(1).map(|line| {
        assert!(!line.is_empty() && !line.contains(['\r', '\n']), "{line:?}");
        let (name, value) = line.split_once(':').expect("a field has a colon");
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)));
        let value = value.trim_matches([' ', '\t']);
        assert!(value.chars().all(|c| c == '\t' || (c >= ' ' && c != '\x7f')), "{value:?}");
        (name.to_ascii_lowercase(), value.to_owned())
    });
    fields.collect()
}
