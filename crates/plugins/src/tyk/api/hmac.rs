//! Signatures of requests with the secret of a session (`enable_signature_checking`), over the draft
//! `draft-cavage-http-signatures`.

use std::sync::Arc;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::Request;

use super::access::{Access, Read};
use super::jwt::Stop;
use crate::auth::hmac_auth::algorithm::Algorithm;
use crate::auth::hmac_auth::signature::parameter;
use crate::tyk::sessions::Session;

/// Signatures that are accepted.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// Algorithms; none: all.
    hmac_allowed_algorithms: Vec<Algorithm>,
    /// Milliseconds by which the date of a request may differ from now; 0 or less: any date is accepted.
    hmac_allowed_clock_skew: f64,
}

/// The answer to any fault.
const FAULT: (u16, &str) = (400, "Authorization field missing, malformed or invalid");
/// Most fields that a signature may name.
const MOST_FIELDS: usize = 64;
/// Longest signature, that of SHA-512, and two bytes that decoding wants to have spare.
const LONGEST: usize = 64 + 2;
/// The field that a date is looked for in first, for clients that cannot set `Date`.
const OTHER_DATE: &str = "x-aux-date";

/// The parameters of a signature.
#[derive(Debug, Default)]
struct Params<'a> {
    key_id: &'a [u8],
    algorithm: &'a [u8],
    headers: &'a [u8],
    signature: &'a [u8],
}

impl Conf {
    /// The session whose secret has signed a request; `given` is the value of the header.
    pub(super) fn session(
        &self,
        request: &Request,
        given: &[u8],
        (access, read, unix_ms, now_ms): (&Access, &Read, u64, u64),
    ) -> Result<Arc<Session>, Stop> {
        let params = Params::parse(given).ok_or(FAULT)?;
        let mut room = params.key_id.to_vec();
        let session = access.find(&mut room, 0, (read, now_ms))?;
        let enabled = session.as_ref().filter(|session| session.hmac_enabled);
        let secret = enabled.and_then(|session| session.hmac_secret.as_deref());
        let algorithm = Algorithm::ALL.iter().find(|(_, name)| *name == params.algorithm).ok_or(FAULT)?.0;
        if !self.hmac_allowed_algorithms.is_empty() && !self.hmac_allowed_algorithms.contains(&algorithm) {
            return Err(FAULT.into());
        }
        // The signature of an unknown key is verified as well, so that the answer takes the same time.
        let key = algorithm.key(secret.unwrap_or("not a secret").as_bytes());
        let mut signed = Vec::new();
        params.write_signed(request, &mut signed).ok_or(FAULT)?;
        let is_good = params.verify(&key, &signed) && self.is_in_time(request, unix_ms) && secret.is_some();
        session.filter(|_| is_good).ok_or(FAULT.into())
    }

    fn is_in_time(&self, request: &Request, unix_ms: u64) -> bool {
        let Some(date) = weir_wire::date::parse(date_of(request).1) else { return false };
        let skew = self.hmac_allowed_clock_skew;
        skew <= 0.0 || (date * 1000).abs_diff(unix_ms) as f64 <= skew
    }
}

/// The field with the date of a request, and its value.
fn date_of(request: &Request) -> (&'static str, &[u8]) {
    match request.field_str(OTHER_DATE).filter(|value| !value.is_empty()) {
        Some(value) => (OTHER_DATE, value),
        None => ("date", request.field_str("date").unwrap_or_default()),
    }
}

impl<'a> Params<'a> {
    /// Reads `Signature name="value",…`. A name that means nothing here, or that comes twice, is a fault.
    fn parse(text: &'a [u8]) -> Option<Self> {
        let scheme = |name: &[u8]| text.strip_prefix(name);
        let mut rest = weir_wire::trim_ows(scheme(b"Signature").or_else(|| scheme(b"signature")).unwrap_or(text));
        let mut found: [Option<&[u8]>; 4] = [None; 4];
        while !rest.is_empty() {
            let (name, value, after) = parameter(rest)?;
            let names: [&[u8]; 4] = [b"keyid", b"algorithm", b"headers", b"signature"];
            let at = names.iter().position(|known| known.eq_ignore_ascii_case(name))?;
            if found.get_mut(at)?.replace(value).is_some() {
                return None;
            }
            rest = match weir_wire::trim_ows(after) {
                [] => &[],
                [b',', next @ ..] => weir_wire::trim_ows(next),
                _ => return None,
            };
        }
        let [key_id, algorithm, headers, signature] = found;
        let headers = headers.filter(|headers| !headers.is_empty()).unwrap_or(b"date");
        Some(Self { key_id: key_id?, algorithm: algorithm?, headers, signature: signature? })
    }

    /// Appends what is signed: a line for each field that is named, without a line end behind the last.
    fn write_signed(&self, request: &Request, out: &mut Vec<u8>) -> Option<()> {
        for (number, name) in self.headers.split(|byte| *byte == b' ').enumerate() {
            if number >= MOST_FIELDS {
                return None;
            }
            if number > 0 {
                out.push(b'\n');
            }
            if name.eq_ignore_ascii_case(b"(request-target)") {
                out.extend_from_slice(b"(request-target): ");
                out.extend(request.method_bytes().iter().map(u8::to_ascii_lowercase));
                out.push(b' ');
                out.extend_from_slice(request.path());
                continue;
            }
            let (name, value) = match name.eq_ignore_ascii_case(b"date") {
                true => {
                    let (name, value) = date_of(request);
                    (name.as_bytes(), value)
                }
                false => (name, request.field_str(std::str::from_utf8(name).ok()?).unwrap_or_default()),
            };
            out.extend(name.iter().map(u8::to_ascii_lowercase));
            out.extend_from_slice(b": ");
            out.extend_from_slice(weir_wire::trim_ows(value));
        }
        Some(())
    }

    /// True if the signature, which is sent percent-encoded, is that of `signed`, in constant time.
    fn verify(&self, key: &hmac::Key, signed: &[u8]) -> bool {
        let mut text = Vec::with_capacity(self.signature.len());
        let mut rest = self.signature;
        while let Some((byte, after)) = rest.split_first() {
            let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
            match (byte, digit(0), digit(1)) {
                (b'%', Some(high), Some(low)) => {
                    text.extend(u8::try_from(high << 4 | low));
                    rest = after.get(2..).unwrap_or_default();
                }
                _ => {
                    text.push(*byte);
                    rest = after;
                }
            }
        }
        let mut room = [0; LONGEST];
        let Ok(length) = STANDARD.decode_slice(&text, &mut room) else { return false };
        room.get(..length).is_some_and(|signature| hmac::verify(key, signed, signature).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::Params;

    #[test]
    fn parameters_are_read_as_in_tyk() {
        let read = |text: &str| {
            let params = Params::parse(text.as_bytes())?;
            let parts = [params.key_id, params.algorithm, params.headers, params.signature];
            Some(parts.map(|part| String::from_utf8_lossy(part).into_owned()))
        };
        let expected = |headers: &str| Some(["k", "hmac-sha1", headers, "c2ln%3D"].map(str::to_owned));
        for (text, found) in [
            (
                r#"Signature keyId="k",algorithm="hmac-sha1",headers="(request-target) date",signature="c2ln%3D""#,
                "(request-target) date",
            ),
            (r#"signature KEYID="k", Algorithm="hmac-sha1",signature="c2ln%3D""#, "date"),
        ] {
            assert_eq!(read(text), expected(found), "{text}");
        }
        for text in [
            "",
            "Signature",
            r#"Signature keyId="k",algorithm="hmac-sha1""#,
            r#"Signature keyId="k",keyId="l",algorithm="a",signature="s""#,
            r#"Signature keyId="k",algorithm="a",signature="s",other="o""#,
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
