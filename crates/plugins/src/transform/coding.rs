//! The common part of `gzip` and `brotli`: which responses are encoded, for whom, and how many at once.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::Held;
use weir_plugin::{CompileCx, Invalid, ResponseCx};
use weir_wire::head::Version;
use weir_wire::method::Method;
use weir_wire::name::{FieldName, Known};
use weir_wire::{status, trim_ows};

/// Media types, or all of them.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Types {
    /// `*`: all.
    All(Star),
    /// These.
    List(#[schemars(length(min = 1))] Vec<String>),
}

/// `*`
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
pub(crate) enum Star {
    /// Any type.
    #[serde(rename = "*")]
    Star,
}

/// The settings that all content codings share.
#[derive(Debug, Clone, Copy)]
pub(super) struct TermsConf<'a> {
    pub(super) types: &'a Types,
    pub(super) min_length: u64,
    pub(super) http_version: f64,
    pub(super) vary: bool,
}

/// The conditions under which a response is encoded.
#[derive(Debug)]
pub(super) struct Terms {
    /// In lower case; `None`: all.
    types: Option<Box<[Box<[u8]>]>>,
    min_length: u64,
    /// Least version that a client has to speak.
    version: Version,
    /// The field and the value to add.
    vary: Option<FieldName>,
    cache_control: FieldName,
}

impl TermsConf<'_> {
    pub(super) fn terms(&self, cx: &CompileCx<'_>) -> Option<Terms> {
        if ![1.0, 1.1].contains(&self.http_version) {
            cx.say([Invalid::new("http_version", "expected 1.0 or 1.1")]);
        }
        if let Types::List(types) = self.types {
            for (at, text) in types.iter().enumerate() {
                let path = format!("types[{at}]");
                if text.is_empty() {
                    cx.say([Invalid::new(path, "expected a media type")]);
                } else if !text.contains('/') || text.contains([';', '*']) {
                    cx.warn(path, "no response has this type: expected one such as text/html, or types: \"*\"");
                }
            }
        }
        Some(Terms {
            types: match self.types {
                Types::All(Star::Star) => None,
                Types::List(list) => {
                    Some(list.iter().map(|text| text.trim().to_ascii_lowercase().into_bytes().into()).collect())
                }
            },
            min_length: self.min_length,
            version: if self.http_version > 1.0 { Version::Http11 } else { Version::Http10 },
            vary: self.vary.then(|| FieldName::constant("Vary")),
            cache_control: FieldName::constant("Cache-Control"),
        })
    }
}

impl Terms {
    /// True if this response is encoded for this client; `Vary` is added for whoever else gets it.
    pub(super) fn hold(&self, cx: &mut ResponseCx<'_>, coding: &[&[u8]]) -> bool {
        if !self.fits(cx) {
            return false;
        }
        if let Some(vary) = &self.vary {
            let response = cx.response();
            let named = response.head.fields.all(response.buffer.bytes(), vary).any(varies_by_coding);
            if !named {
                cx.add_field(vary, b"Accept-Encoding");
            }
        }
        // The codings that the client accepts, even if a plugin has removed the field for the upstream.
        let request = cx.request();
        let asked = request.head.fields.all_received(request.buffer.bytes(), Known::AcceptEncoding);
        request.method() != Method::Head && request.head.version >= self.version && accepts(asked, coding)
    }

    /// True if a response is one that is encoded at all.
    fn fits(&self, cx: &ResponseCx<'_>) -> bool {
        let response = cx.response();
        let (fields, base) = (&response.head.fields, response.buffer.bytes());
        // A part is one of the bytes as they are (RFC 9110 section 14.2).
        if status::is_bodyless(response.status()) || response.status() == 206 {
            return false;
        }
        // An encoded body is not encoded again.
        if fields.get_known(base, Known::ContentEncoding).is_some_and(|coding| !is_identity(coding)) {
            return false;
        }
        let Some(media) = fields.get_known(base, Known::ContentType) else { return false };
        let media = trim_ows(media.split(|b| *b == b';').next().unwrap_or_default());
        if self.types.as_ref().is_some_and(|types| !types.iter().any(|t| t.eq_ignore_ascii_case(media))) {
            return false;
        }
        if response.content_length().is_some_and(|length| length < self.min_length) {
            return false;
        }
        // RFC 9111 section 5.2.2.6.
        !fields.all(base, &self.cache_control).any(|value| has_member(value, b"no-transform"))
    }
}

/// Memory of an encoder, of the budget for buffers. What finds no room is sent as it is: no client depends on a coding.
pub(super) fn room(bytes: usize) -> Option<Held> {
    let mut held = Held::default();
    held.grow_if_plenty(bytes).then_some(held)
}

fn is_identity(coding: &[u8]) -> bool {
    let coding = trim_ows(coding);
    coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
}

fn varies_by_coding(value: &[u8]) -> bool {
    has_member(value, b"accept-encoding") || has_member(value, b"*")
}

fn has_member(value: &[u8], name: &[u8]) -> bool {
    value.split(|b| *b == b',').any(|member| trim_ows(member).eq_ignore_ascii_case(name))
}

/// True if `Accept-Encoding` has one of these names with a weight above 0, or `*` and none of them (RFC 9110 section
/// 12.5.3).
fn accepts<'a>(values: impl Iterator<Item = &'a [u8]>, names: &[&[u8]]) -> bool {
    let (mut named, mut any) = (None, false);
    for member in values.flat_map(|value| value.split(|b| *b == b',')) {
        let mut parts = member.split(|b| *b == b';').map(trim_ows);
        let coding = parts.next().unwrap_or_default();
        let weighted = parts.all(|part| match part {
            [b'q' | b'Q', b'=', weight @ ..] => is_above_zero(weight),
            _ => true,
        });
        if names.iter().any(|name| name.eq_ignore_ascii_case(coding)) {
            named = Some(named.unwrap_or(false) || weighted);
        } else if coding == b"*" {
            any = weighted;
        }
    }
    named.unwrap_or(any)
}

/// True if a weight is more than 0; one that is none is not.
fn is_above_zero(weight: &[u8]) -> bool {
    let digits = weight.iter().all(|b| b.is_ascii_digit() || *b == b'.');
    digits && weight.iter().any(|b| (b'1'..=b'9').contains(b))
}

#[cfg(test)]
mod tests {
    use super::accepts;

    #[test]
    fn a_coding_is_accepted_by_name_and_weight() {
        for (values, gzip, br) in [
            (&["gzip"][..], true, false),
            (&["GZip , deflate;q=0.5"], true, false),
            (&["x-gzip"], true, false),
            (&["gzip;q=0"], false, false),
            (&["gzip;q=0.000"], false, false),
            (&["gzip; q=0.001"], true, false),
            (&["gzip;Q=1"], true, false),
            (&["gzip;q=x"], false, false),
            (&["gzip;q="], false, false),
            (&["*"], true, true),
            (&["*;q=0"], false, false),
            (&["gzip;q=0, *"], false, true),
            (&["*;q=0, br"], false, true),
            (&["br", "gzip"], true, true),
            (&["identity"], false, false),
            (&["gzipped, brr"], false, false),
            (&[""], false, false),
            (&[], false, false),
        ] {
            let asked = || values.iter().map(|value| value.as_bytes());
            assert_eq!(accepts(asked(), &[b"gzip", b"x-gzip"]), gzip, "{values:?}");
            assert_eq!(accepts(asked(), &[b"br"]), br, "{values:?}");
        }
    }
}
