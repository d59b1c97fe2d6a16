//! Request and response heads: whatever is accepted is strictly formed, framed as a naive reader frames it, complete
//! only with its last byte, and still so after it has been written out for the next hop.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_wire::head::{Framing, Limits, RequestHead, ResponseHead};
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
    if head.parse(data, limits) != Ok(true) {
        return;
    }
    let text = &data[..head.len];
    let fields = strict_fields(text.trim_ascii_start());
    assert!(fields.len() <= limits.fields && head.target.len() <= limits.target);
    let count = |name: &str| fields.iter().filter(|(n, _)| n == name).count();
    assert!(count("host") == 1 || (head.minor == 0 && count("host") == 0));
    match head.framing {
        Framing::None => assert_eq!(count("content-length") + count("transfer-encoding"), 0),
        Framing::Length(n) => {
            assert_eq!((count("content-length"), count("transfer-encoding")), (1, 0));
            let (_, value) = fields.iter().find(|(name, _)| name == "content-length").expect("counted above");
            assert_eq!(value.parse(), Ok(n));
        }
        Framing::Chunked => assert_eq!((count("content-length"), count("transfer-encoding"), head.minor), (0, 1, 1)),
        Framing::UntilClose => panic!("a request cannot end with its connection"),
    }

    // Less than a head is never taken for one. One cut a run is enough: the fuzzer moves it about.
    let cut = usize::from(data[data.len() - 1]) * head.len / 256;
    let mut part = RequestHead::default();
    assert_eq!(part.parse(&data[..cut], limits), Ok(false), "a head was accepted, but not its beginning");
    assert_eq!(part.parse(text, limits), Ok(true), "what follows a head changed what it says");
    assert_eq!((part.framing, part.keep_alive, part.len), (head.framing, head.keep_alive, head.len));

    // What goes on to the upstream is a head again, without anything that was meant for this connection alone.
    let mut sent = [head.method_span.of(data), b" ", head.target.of(data), b" HTTP/1.1\r\n"].concat();
    if head.host.is_none() {
        sent.extend_from_slice(b"Host: added\r\n");
    }
    head.fields.write(data, &mut sent);
    sent.extend_from_slice(b"\r\n");
    let mut again = RequestHead::default();
    let roomy = Limits { head: limits.head + 64, fields: limits.fields + 1, ..*limits };
    assert_eq!(again.parse(&sent, &roomy), Ok(true), "{}", String::from_utf8_lossy(&sent));
    assert_eq!(again.len, sent.len());
    assert!(again.keep_alive && !again.websocket);
    assert_eq!(again.framing, if head.framing == Framing::Chunked { Framing::None } else { head.framing });
    for (name, _) in again.fields.iter(&sent) {
        for hop in ["connection", "keep-alive", "transfer-encoding", "te", "upgrade", "proxy-connection"] {
            assert!(!name.eq_ignore_ascii_case(hop.as_bytes()), "{hop} was passed on");
        }
    }
}

fn response(data: &[u8], limits: &Limits, to: Method) {
    let mut head = ResponseHead::default();
    match head.parse(data, limits, to) {
        Ok(false) => return,
        Err(reject) => return assert_eq!(reject.status, 502),
        Ok(true) => {}
    }
    let fields = strict_fields(&data[..head.len]);
    assert!((100..=999).contains(&head.status));
    let bodyless = to == Method::Head || head.status < 200 || matches!(head.status, 204 | 304);
    assert_eq!(head.framing == Framing::None, bodyless);
    assert!(!(head.keep_alive && head.framing == Framing::UntilClose));
    assert!(
        !(fields.iter().any(|(name, _)| name == "content-length")
            && fields.iter().any(|(name, _)| name == "transfer-encoding"))
    );
    let cut = usize::from(data[data.len() - 1]) * head.len / 256;
    assert_eq!(ResponseHead::default().parse(&data[..cut], limits, to), Ok(false));
}

/// The fields of a head, names in lower case, read in the plainest way there is; fails where RFC 9112 is not met.
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
