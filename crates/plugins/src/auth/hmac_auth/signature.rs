//! A signature as it is sent, and what it signs: APISIX's form of `draft-cavage-http-signatures`.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_plugin::Request;

/// The longest signature, that of SHA-512, and two bytes that decoding wants to have spare.
const LONGEST: usize = 64 + 2;
/// Most fields that a signature may name.
const MOST_FIELDS: usize = 64;
/// Name of method and target in the list of fields.
const TARGET: &[u8] = b"@request-target";

/// The parameters of `Authorization: Signature …`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Params<'a> {
    pub(super) key_id: &'a [u8],
    pub(super) algorithm: &'a [u8],
    /// Names of fields, with blanks between them.
    headers: &'a [u8],
    /// In base64.
    signature: &'a [u8],
}

impl<'a> Params<'a> {
    /// Reads `name="value"`, with commas between them; names that mean nothing here are passed over. A parameter that
    /// comes twice is a fault: another reader might take the other one.
    pub(super) fn parse(text: &'a [u8]) -> Option<Self> {
        let (mut key_id, mut algorithm, mut headers, mut signature) = (None, None, None, None);
        let mut rest = weir_wire::trim_ows(text);
        while !rest.is_empty() {
            let (name, value, after) = parameter(rest)?;
            let slot = match name {
                b"keyId" => Some(&mut key_id),
                b"algorithm" => Some(&mut algorithm),
                b"headers" => Some(&mut headers),
                b"signature" => Some(&mut signature),
                _ => None,
            };
            if slot.is_some_and(|slot| slot.replace(value).is_some()) {
                return None;
            }
            rest = match weir_wire::trim_ows(after) {
                [] => &[],
                [b',', next @ ..] => weir_wire::trim_ows(next),
                _ => return None,
            };
        }
        Some(Self {
            key_id: key_id?,
            algorithm: algorithm?,
            headers: headers.unwrap_or_default(),
            signature: signature?,
        })
    }

    fn fields(&self) -> impl Iterator<Item = &'a [u8]> {
        self.headers.split(|b| *b == b' ').filter(|name| !name.is_empty())
    }

    /// Puts down what is signed: the key's id, and a line for each field that is named, in that order, with `target`
    /// for that of the request. A field that the request does not have is passed over; one that it has twice is a
    /// fault, since it would be open which one was meant.
    pub(super) fn write_signed(&self, request: &Request, target: &[u8], out: &mut Vec<u8>) -> Option<()> {
        out.clear();
        out.extend_from_slice(self.key_id);
        out.push(b'\n');
        for (number, name) in self.fields().enumerate() {
            if number >= MOST_FIELDS {
                return None;
            }
            if name == TARGET {
                out.extend_from_slice(request.method_bytes());
                out.push(b' ');
                out.extend_from_slice(target);
            } else {
                let Some(value) = only(request, name)? else { continue };
                out.extend_from_slice(name);
                out.extend_from_slice(b": ");
                out.extend_from_slice(value);
            }
            out.push(b'\n');
        }
        Some(())
    }

    /// True if this field is signed: it is named, and the request has it.
    pub(super) fn signs(&self, field: &[u8], request: &Request) -> bool {
        self.fields().any(|name| name.eq_ignore_ascii_case(field))
            && (field == TARGET || matches!(only(request, field), Some(Some(_))))
    }

    /// True if the signature is that of `signed`, in constant time.
    pub(super) fn verify(&self, key: &hmac::Key, signed: &[u8]) -> bool {
        let mut room = [0; LONGEST];
        let Ok(len) = STANDARD.decode_slice(self.signature, &mut room) else { return false };
        room.get(..len).is_some_and(|signature| hmac::verify(key, signed, signature).is_ok())
    }
}

/// The first parameter: its name, its value and what follows. A value is quoted and holds no escapes, or is a token.
pub(crate) fn parameter(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let end = text.iter().position(|b| !weir_wire::is_tchar(*b))?;
    let (name, rest) = text.split_at(end);
    match rest {
        [b'=', b'"', value @ ..] => {
            let end = value.iter().position(|b| matches!(b, b'"' | b'\\'))?;
            let (value, after) = value.split_at(end);
            Some((name, value, after.strip_prefix(b"\"")?)).filter(|_| !name.is_empty())
        }
        [b'=', value @ ..] => {
            let end = value.iter().position(|b| !weir_wire::is_tchar(*b)).unwrap_or(value.len());
            let (value, after) = value.split_at(end);
            Some((name, value, after)).filter(|_| !name.is_empty() && !value.is_empty())
        }
        _ => None,
    }
}

/// The value of a field that is there once; `Some(None)` where it is not there, `None` where it is there more often.
#[allow(clippy::option_option, reason = "absent and ambiguous are two things, and the second one ends it")]
fn only<'r>(request: &'r Request, name: &[u8]) -> Option<Option<&'r [u8]>> {
    let fields = &request.head.fields;
    let base = request.buffer.bytes();
    if fields.get_str(base, name).is_none() {
        return Some(None);
    }
    let mut values = fields.iter(base).filter(|(held, _)| held.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    let first = values.next();
    values.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::Params;
    use aws_lc_rs::hmac;

    #[test]
    fn parameters_are_read_in_any_order() {
        let read = Params { key_id: b"k", algorithm: b"a", headers: b"x  y", signature: b"c2ln" };
        for text in [
            r#"keyId="k",algorithm="a",headers="x  y",signature="c2ln""#,
            r#" signature="c2ln" , headers="x  y" ,	algorithm="a", keyId="k" "#,
            r#"keyId="k",algorithm="a",created=1402170695,opaque="a,b=c",headers="x  y",signature="c2ln","#,
            r#"keyId=k,algorithm=a,headers="x  y",signature=c2ln"#,
        ] {
            assert_eq!(Params::parse(text.as_bytes()).as_ref(), Some(&read), "{text}");
        }
        assert_eq!(read.fields().collect::<Vec<_>>(), [b"x", b"y"]);
    }

    #[test]
    fn what_is_missing_or_twice_there_is_a_fault() {
        for text in [
            "",
            ",",
            r#"keyId="k""#,
            r#"keyId="k",algorithm="a""#,
            r#"keyId="k",signature="c2ln""#,
            r#"algorithm="a",signature="c2ln""#,
            r#"keyId="k",algorithm="a",signature="c2ln",keyId="l""#,
            r#"keyId="k",algorithm="a",signature="c2ln",headers="a",headers="b""#,
            r#"keyId="k" algorithm="a",signature="c2ln""#,
            r#"keyId="k,algorithm="a",signature="c2ln""#,
            r#"keyId="k",algorithm="a",signature="c2ln"#,
            r#"keyId="a\"b",algorithm="a",signature="c2ln""#,
            r#"keyId="k",algorithm="a",signature="c2ln",="x""#,
            r#"keyId="k",algorithm="a",signature="c2ln",x"#,
            r#"keyId="k",algorithm="a",signature="c2ln",x="#,
        ] {
            assert_eq!(Params::parse(text.as_bytes()), None, "{text}");
        }
    }

    /// Made with `printf 'k\n' | openssl dgst -sha256 -hmac secret -binary | base64`.
    #[test]
    fn only_the_whole_signature_is_one() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
        let good = "KBZSApN7/EZPZDT08M88cr/DEeRwhZUvfkxkqriZTlM=";
        let verify = |signature: &str, signed: &[u8]| {
            Params { signature: signature.as_bytes(), ..Params::default() }.verify(&key, signed)
        };
        assert!(verify(good, b"k\n"));
        assert!(!verify(good, b"k"));
        let long = good.replace('=', "A").repeat(3);
        for bad in ["", "!!!!", "AAAA", good.trim_end_matches('='), &good[4..], &good[..40], &long] {
            assert!(!verify(bad, b"k\n"), "{bad}");
        }
    }
}
