//! A bind, a search, a request for TLS and their answers in the basic encoding rules (RFC 4511 sections 4.2, 4.5, 4.14 and
//! 5.1).

/// Number of the message on its connection, on which no other one is under way.
const ID: u8 = 1;

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const ENUMERATED: u8 = 0x0a;
const SEQUENCE: u8 = 0x30;
const BIND_REQUEST: u8 = 0x60;
const BIND_RESPONSE: u8 = 0x61;
const SEARCH_REQUEST: u8 = 0x63;
const SEARCH_ENTRY: u8 = 0x64;
const SEARCH_DONE: u8 = 0x65;
const SEARCH_REFERENCE: u8 = 0x73;
/// A filter: an attribute has this value.
const EQUALITY: u8 = 0xa3;
const EXTENDED_REQUEST: u8 = 0x77;
const EXTENDED_RESPONSE: u8 = 0x78;
/// Simple authentication: a choice with the number 0.
const SIMPLE: u8 = 0x80;

/// Name of the request for TLS (RFC 4511 section 4.14.1).
const START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";

/// Meaning of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Good,
    /// Name and password are not those of anybody.
    Refused,
    /// The server cannot say: its result code.
    Unable(u8),
}

/// A bind of the version 3 with a name and a password.
pub(super) fn bind(dn: &[u8], password: &[u8]) -> Vec<u8> {
    let mut request = Vec::with_capacity(dn.len() + password.len() + 16);
    put(&mut request, INTEGER, &[3]);
    put(&mut request, OCTETS, dn);
    put(&mut request, SIMPLE, password);
    message(BIND_REQUEST, &request)
}

/// A search below an entry, itself included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Search {
    /// Distinguished name of the entry.
    pub(crate) base: String,
    /// The attribute that has the value.
    pub(crate) attribute: String,
    /// Most entries that the server gives.
    pub(crate) size_limit: u32,
    /// Most seconds that the server searches; 0: as long as it likes.
    pub(crate) time_limit: u32,
}

/// The result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Distinguished names of entries.
    pub(super) entries: Vec<Vec<u8>>,
    /// The result code.
    pub(super) code: u8,
}

/// A search for the names of entries with this value.
pub(super) fn search(search: &Search, value: &[u8]) -> Vec<u8> {
    let mut filter = Vec::new();
    put(&mut filter, OCTETS, search.attribute.as_bytes());
    put(&mut filter, OCTETS, value);
    let mut nothing = Vec::new();
    // No attributes (section 4.5.1.8).
    put(&mut nothing, OCTETS, b"1.1");
    let mut request = Vec::new();
    put(&mut request, OCTETS, search.base.as_bytes());
    // The whole subtree, with aliases followed.
    put(&mut request, ENUMERATED, &[2]);
    put(&mut request, ENUMERATED, &[3]);
    put_number(&mut request, search.size_limit);
    put_number(&mut request, search.time_limit);
    put(&mut request, BOOLEAN, &[0]);
    put(&mut request, EQUALITY, &filter);
    put(&mut request, SEQUENCE, &nothing);
    message(SEARCH_REQUEST, &request)
}

fn put_number(out: &mut Vec<u8>, number: u32) {
    // A zero ahead keeps the number from being a negative one.
    let bytes = [&[0][..], &number.to_be_bytes()].concat();
    let is_needless = |at: usize| bytes.get(at) == Some(&0) && bytes.get(at + 1).is_some_and(|next| *next < 0x80);
    let first = (0..bytes.len()).find(|at| !is_needless(*at)).unwrap_or(0);
    put(out, INTEGER, bytes.get(first..).unwrap_or_default());
}

/// The answer to a search; `None`: there is more of it to come.
///
/// # Errors
/// The bytes are no answer to a search, or more than one.
pub(super) fn found(mut bytes: &[u8]) -> Result<Option<Found>, Broken> {
    let mut entries = Vec::new();
    while let Some((message, rest)) = take(bytes, SEQUENCE)? {
        bytes = rest;
        let (id, response) = take(message, INTEGER)?.ok_or(Broken)?;
        if id != [ID] {
            return Err(Broken);
        }
        match response.first() {
            Some(&SEARCH_ENTRY) => {
                let (entry, _) = take(response, SEARCH_ENTRY)?.ok_or(Broken)?;
                entries.push(take(entry, OCTETS)?.ok_or(Broken)?.0.to_vec());
            }
            // Another server's part of the tree.
            Some(&SEARCH_REFERENCE) => {}
            _ => {
                let (done, _) = take(response, SEARCH_DONE)?.ok_or(Broken)?;
                return match take(done, ENUMERATED)?.ok_or(Broken)?.0 {
                    [code] if bytes.is_empty() => Ok(Some(Found { entries, code: *code })),
                    _ => Err(Broken),
                };
            }
        }
    }
    Ok(None)
}

/// A request for TLS on the connection.
pub(super) fn start_tls() -> Vec<u8> {
    let mut request = Vec::with_capacity(START_TLS.len() + 2);
    // The name of the request: a choice with the number 0.
    put(&mut request, SIMPLE, START_TLS);
    message(EXTENDED_REQUEST, &request)
}

fn message(tag: u8, request: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(request.len() + 16);
    put(&mut message, INTEGER, &[ID]);
    put(&mut message, tag, request);
    let mut whole = Vec::with_capacity(message.len() + 8);
    put(&mut whole, SEQUENCE, &message);
    whole
}

fn put(out: &mut Vec<u8>, tag: u8, content: &[u8]) {
    out.push(tag);
    let bytes = (content.len() as u32).to_be_bytes();
    match content.len() {
        0..=0x7f => out.push(content.len() as u8),
        _ => {
            let skipped = bytes.iter().take_while(|byte| **byte == 0).count();
            out.push(0x80 | (bytes.len() - skipped) as u8);
            out.extend_from_slice(bytes.get(skipped..).unwrap_or_default());
        }
    }
    out.extend_from_slice(content);
}

/// Bytes that are no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// The answer to a bind; `None`: there is more of it to come.
///
/// # Errors
/// The bytes are no answer to a bind, or more than one.
pub(super) fn answer(bytes: &[u8]) -> Result<Option<Answer>, Broken> {
    read(BIND_RESPONSE, bytes)
}

/// The answer to a request for TLS; `None`: there is more of it to come.
///
/// # Errors
/// The bytes are no such answer, or more: they would be of whoever stands in between, and not under TLS.
pub(super) fn answer_to_start_tls(bytes: &[u8]) -> Result<Option<Answer>, Broken> {
    read(EXTENDED_RESPONSE, bytes)
}

fn read(tag: u8, bytes: &[u8]) -> Result<Option<Answer>, Broken> {
    let Some((message, rest)) = take(bytes, SEQUENCE)? else { return Ok(None) };
    if !rest.is_empty() {
        return Err(Broken);
    }
    // Within the message nothing is to come.
    let (id, rest) = take(message, INTEGER)?.ok_or(Broken)?;
    let (response, _) = take(rest, tag)?.ok_or(Broken)?;
    let (code, rest) = take(response, ENUMERATED)?.ok_or(Broken)?;
    let (_, rest) = take(rest, OCTETS)?.ok_or(Broken)?;
    take(rest, OCTETS)?.ok_or(Broken)?;
    match (id, code) {
        ([ID], [0]) => Ok(Some(Answer::Good)),
        // No such object, an invalid name, no fitting or wrong credentials, no right to bind, and no will to do so (RFC 4511
        // section 4.1.9): nobody with this name and password.
        ([ID], [32 | 34 | 48 | 49 | 50 | 53]) => Ok(Some(Answer::Refused)),
        ([ID], [code]) => Ok(Some(Answer::Unable(*code))),
        _ => Err(Broken),
    }
}

/// The content of an element, and the bytes behind it.
type Element<'a> = (&'a [u8], &'a [u8]);

/// The element with this tag at the front; `None`: there is more of it to come.
fn take(bytes: &[u8], tag: u8) -> Result<Option<Element<'_>>, Broken> {
    let Some((first, rest)) = bytes.split_first() else { return Ok(None) };
    if *first != tag {
        return Err(Broken);
    }
    let Some((length, rest)) = rest.split_first() else { return Ok(None) };
    let (length, rest) = match length {
        0..=0x7f => (usize::from(*length), rest),
        0x81..=0x84 => {
            let Some((digits, rest)) = rest.split_at_checked(usize::from(*length & 0x7f)) else { return Ok(None) };
            (digits.iter().fold(0, |number, digit| number << 8 | usize::from(*digit)), rest)
        }
        _ => return Err(Broken),
    };
    Ok(rest.split_at_checked(length))
}

#[cfg(test)]
mod tests {
    use super::{Answer, Broken, Found, Search, answer, answer_to_start_tls, bind, found, search, start_tls};

    #[test]
    fn a_bind_is_encoded() {
        let bytes = bind(b"cn=a", b"pw");
        assert_eq!(bytes, b"\x30\x12\x02\x01\x01\x60\x0d\x02\x01\x03\x04\x04cn=a\x80\x02pw");
        let long = bind(&[b'a'; 300], b"pw");
        assert_eq!(long.get(..4), Some(&b"\x30\x82\x01\x3e"[..]));
        assert_eq!(long.len(), 4 + 0x13e);
    }

    #[test]
    fn tls_is_asked_for() {
        assert_eq!(start_tls(), b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037");
        let good = b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x00\x04\x00\x04\x00";
        assert_eq!(answer_to_start_tls(good), Ok(Some(Answer::Good)));
        assert_eq!(answer_to_start_tls(&[&good[..], b"\x30"].concat()), Err(Broken), "bytes before TLS");
        assert_eq!(answer(good), Err(Broken));
    }

    #[test]
    fn a_search_is_encoded_and_its_answer_read() {
        let asked = Search { base: "dc=a".into(), attribute: "cn".into(), size_limit: 2, time_limit: 200 };
        let bytes = search(&asked, b"j");
        assert_eq!(
            bytes,
            b"\x30\x2b\x02\x01\x01\x63\x26\x04\x04dc=a\x0a\x01\x02\x0a\x01\x03\x02\x01\x02\x02\x02\x00\xc8\x01\x01\x00\xa3\x07\x04\x02cn\x04\x01j\x30\x05\x04\x031.1"
        );
        let entry = |name: &str| {
            let length = name.len() as u8;
            [&[0x30, length + 9, 2, 1, 1, 0x64, length + 4, 4, length], name.as_bytes(), &[0x30, 0]].concat()
        };
        let done = |code: u8| [&b"\x30\x0c\x02\x01\x01\x65\x07\x0a\x01"[..], &[code], b"\x04\x00\x04\x00"].concat();
        let reference = b"\x30\x08\x02\x01\x01\x73\x03\x04\x01x".to_vec();
        let whole = [entry("cn=a"), reference, entry("cn=b"), done(4)].concat();
        let entries = vec![b"cn=a".to_vec(), b"cn=b".to_vec()];
        assert_eq!(found(&whole), Ok(Some(Found { entries, code: 4 })));
        for end in 0..whole.len() {
            assert_eq!(found(&whole[..end]), Ok(None), "{end}");
        }
        assert_eq!(found(&[done(0), entry("cn=a")].concat()), Err(Broken), "something behind the end");
        let mut other = entry("cn=a");
        other[4] = 2;
        for broken in [&b"HTTP/1.1"[..], b"\x30\x05\x02\x01\x01\x61\x00", &other] {
            assert_eq!(found(broken), Err(Broken), "{broken:x?}");
        }
    }

    #[test]
    fn answers_are_read() {
        let of = |code: u8| [&b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01"[..], &[code], b"\x04\x00\x04\x00"].concat();
        for (code, meaning) in
            [(0, Answer::Good), (49, Answer::Refused), (32, Answer::Refused), (51, Answer::Unable(51))]
        {
            assert_eq!(answer(&of(code)), Ok(Some(meaning)), "{code}");
        }
        let whole = of(0);
        for end in 0..whole.len() {
            assert_eq!(answer(&whole[..end]), Ok(None), "{end}");
        }
        // The length in four bytes, as Active Directory writes it.
        let wide =
            [&b"\x30\x84\x00\x00\x00\x10\x02\x01\x01\x61\x84\x00\x00\x00\x07\x0a\x01\x00\x04\x00\x04\x00"[..], b""]
                .concat();
        assert_eq!(answer(&wide), Ok(Some(Answer::Good)));
        for broken in [
            &b"HTTP/1.1 200 OK"[..],
            b"\x30\x80\x00\x00",
            b"\x30\x85\x00\x00\x00\x00\x01",
            // Another message, an element that is longer than the message, and a second message.
            b"\x30\x0c\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00\x04\x00",
            b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x00\x04\x00\x04\x00",
            b"\x30\x0c\x02\x01\x01\x61\x27\x0a\x01\x00\x04\x00\x04\x00",
            b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\x00\x04\x00\x04\x00\x30",
            b"\x30\x08\x02\x01\x01\x61\x03\x0a\x01\x00",
        ] {
            assert_eq!(answer(broken), Err(Broken), "{broken:x?}");
        }
    }
}
