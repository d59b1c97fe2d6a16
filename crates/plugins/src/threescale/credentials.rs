//! Credentials of requests: their kind, their place, and what a backend is told of them.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::RequestCx;
use weir_wire::method::Method;
use weir_wire::query;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::usage::encode;

/// The kind of credentials, which is the version of the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub(super) enum Version {
    /// `user_key`.
    #[default]
    #[serde(rename = "1")]
    UserKey,
    /// `app_id` and `app_key`.
    #[serde(rename = "2")]
    AppId,
    /// A token of an OpenID Connect provider.
    #[serde(rename = "oauth", alias = "oidc")]
    Token,
}

/// The place of credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Location {
    /// The query, or the form in the body.
    #[default]
    Query,
    /// Fields of the request.
    Headers,
    /// The field `Authorization`.
    Authorization,
}

/// Credentials of a request.
#[derive(Debug, Default)]
pub(super) struct Found {
    version: Version,
    values: [Vec<u8>; 2],
    /// Which of the values are there.
    has: [bool; 2],
}

/// Outcome of a search that found none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lacking {
    /// There are none.
    Missing,
    /// They may be in the body, which is not here yet.
    Body,
}

impl Found {
    /// Sets credentials of a kind.
    pub(super) fn set(&mut self, version: Version, values: [Option<&[u8]>; 2]) {
        self.version = version;
        for ((room, has), value) in self.values.iter_mut().zip(&mut self.has).zip(values) {
            room.clear();
            room.extend_from_slice(value.unwrap_or_default());
            *has = value.is_some();
        }
    }

    pub(super) fn clear(&mut self, kept: usize) {
        self.has = [false, false];
        for room in &mut self.values {
            if room.capacity() > kept {
                *room = Vec::new();
            }
            room.clear();
        }
    }

    /// True if all credentials of their kind are there.
    pub(super) fn is_complete(&self) -> bool {
        match self.version {
            Version::AppId => self.has == [true, true],
            Version::UserKey | Version::Token => self.has[0],
        }
    }

    /// The token.
    pub(super) fn token(&self) -> &[u8] {
        &self.values[0]
    }

    /// Names and values.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        let names = match self.version {
            Version::UserKey => ["user_key", ""],
            Version::AppId => ["app_id", "app_key"],
            Version::Token => ["access_token", ""],
        };
        let all = names.into_iter().zip(&self.values).zip(self.has);
        all.filter(|(_, has)| *has).map(|((name, value), _)| (name, value.as_slice()))
    }

    /// Appends them as arguments of a question.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for (at, (name, value)) in self.named().enumerate() {
            if at > 0 {
                out.push(b'&');
            }
            out.extend_from_slice(name.as_bytes());
            out.push(b'=');
            encode(value, out);
        }
    }

    /// Appends what identifies the application in reports.
    pub(super) fn write_report(&self, out: &mut Vec<u8>) {
        if let Some((name, value)) = self.named().next() {
            out.extend_from_slice(name.as_bytes());
            out.push(b'=');
            encode(value, out);
        }
    }
}

/// A search for credentials.
#[derive(Debug)]
pub(super) struct Extractor {
    pub(super) version: Version,
    pub(super) location: Location,
    /// Names in lower case.
    pub(super) names: [Box<str>; 2],
}

impl Extractor {
    /// Looks for the credentials of a request.
    pub(super) fn extract(&self, cx: &RequestCx<'_>, found: &mut Found) -> Result<(), Lacking> {
        found.set(self.version, [None, None]);
        let wanted = if self.version == Version::AppId { 2 } else { 1 };
        match self.location {
            Location::Query => {
                for (at, name) in self.names.iter().take(wanted).enumerate() {
                    put(found, at, in_query(cx.request().query().unwrap_or_default(), name.as_bytes()));
                }
                if !found.is_complete() && has_form(cx) {
                    let Some(body) = cx.body() else { return Err(Lacking::Body) };
                    for (at, name) in self.names.iter().take(wanted).enumerate() {
                        if !found.has.get(at).is_some_and(|has| *has) {
                            put(found, at, in_query(body, name.as_bytes()));
                        }
                    }
                }
            }
            Location::Headers => {
                let request = cx.request();
                for (at, name) in self.names.iter().take(wanted).enumerate() {
                    let fields = request.head.fields.iter(request.buffer.bytes());
                    let value = fields.into_iter().find(|(known, _)| is_same_field(known, name.as_bytes()));
                    if let Some((_, value)) = value {
                        put(found, at, Some(value.to_vec()));
                    }
                }
            }
            Location::Authorization => self.authorization(cx, found),
        }
        // RFC 6750 section 2.1: a token in this field has to be accepted.
        if self.version == Version::Token && !found.is_complete() {
            put(found, 0, bearer(cx).map(<[u8]>::to_vec));
        }
        if found.is_complete() { Ok(()) } else { Err(Lacking::Missing) }
    }

    fn authorization(&self, cx: &RequestCx<'_>, found: &mut Found) {
        if let Some(token) = bearer(cx) {
            return put(found, 0, Some(token.to_vec()));
        }
        if self.version == Version::Token {
            return;
        }
        let Some((user, password)) = basic(cx) else { return };
        put(found, 0, Some(user));
        if self.version == Version::AppId {
            put(found, 1, Some(password));
        }
    }
}

fn put(found: &mut Found, at: usize, value: Option<Vec<u8>>) {
    if let (Some(value), Some(room), Some(has)) = (value, found.values.get_mut(at), found.has.get_mut(at)) {
        *room = value;
        *has = true;
    }
}

/// The decoded value of the first argument with this name, without regard to case, as in nginx.
pub(super) fn in_query(text: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    text.split(|byte| *byte == b'&').find_map(|argument| {
        let at = argument.iter().position(|byte| *byte == b'=')?;
        let (known, value) = argument.split_at_checked(at)?;
        let mut decoded = Vec::with_capacity(value.len());
        query::decode(known, &mut decoded);
        if !decoded.eq_ignore_ascii_case(name) {
            return None;
        }
        decoded.clear();
        query::decode(value.get(1..)?, &mut decoded);
        Some(decoded)
    })
}

/// True for a request whose body is a form that has arguments.
pub(super) fn has_form(cx: &RequestCx<'_>) -> bool {
    let request = cx.request();
    let takes = matches!(request.method(), Method::Post | Method::Put | Method::Patch);
    let form = b"application/x-www-form-urlencoded";
    let is_form = |kind: &[u8]| kind.windows(form.len()).any(|part| part.eq_ignore_ascii_case(form));
    takes && request.field_str("content-type").is_some_and(is_form)
}

/// True if two names of fields are the same, where `_` stands for `-`.
fn is_same_field(one: &[u8], other: &[u8]) -> bool {
    let plain = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    one.len() == other.len() && one.iter().map(plain).eq(other.iter().map(plain))
}

/// Text that follows a scheme in the field `Authorization`.
fn authorization<'c>(cx: &'c RequestCx<'_>, scheme: &str) -> Option<&'c [u8]> {
    let value = cx.request().field_str("authorization")?;
    let (known, rest) = value.split_at_checked(scheme.len())?;
    let is_end = rest.first().is_none_or(|byte| *byte == b' ' || *byte == b'\t');
    (known.eq_ignore_ascii_case(scheme.as_bytes()) && is_end).then(|| weir_wire::trim_ows(rest))
}

/// The token of the field `Authorization`.
pub(super) fn bearer<'c>(cx: &'c RequestCx<'_>) -> Option<&'c [u8]> {
    authorization(cx, "bearer").filter(|token| !token.is_empty())
}

/// User and password of the field `Authorization`. The last colon divides them, as in APIcast.
fn basic(cx: &RequestCx<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut text = STANDARD.decode(authorization(cx, "basic")?).ok()?;
    let at = text.iter().rposition(|byte| *byte == b':')?;
    let password = text.split_off(at + 1);
    text.pop();
    Some((text, password))
}

#[cfg(test)]
mod tests {
    use super::{Found, Version, in_query, is_same_field};

    #[test]
    fn arguments_are_found_without_regard_to_case() {
        for (query, name, expected) in [
            ("a=1&User_Key=%61b+c", "user_key", Some("ab c")),
            ("user_key", "user_key", None),
            ("user_key=", "user_key", Some("")),
            ("x=1", "user_key", None),
            ("user%5Fkey=1&user_key=2", "user_key", Some("1")),
        ] {
            let found = in_query(query.as_bytes(), name.as_bytes());
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{query}");
        }
        assert!(is_same_field(b"User-Key", b"user_key") && !is_same_field(b"user", b"user-key"));
    }

    #[test]
    fn backends_are_told_credentials() {
        let text = |found: &Found| {
            let (mut question, mut report) = (Vec::new(), Vec::new());
            found.write(&mut question);
            found.write_report(&mut report);
            (String::from_utf8(question).expect("text"), String::from_utf8(report).expect("text"))
        };
        let mut found = Found::default();
        found.set(Version::AppId, [Some(b"a&b"), Some(b"k[1]")]);
        assert_eq!(text(&found), ("app_id=a%26b&app_key=k%5B1%5D".into(), "app_id=a%26b".into()));
        assert!(found.is_complete());
        found.set(Version::AppId, [Some(b"a"), None]);
        assert!(!found.is_complete());
        found.set(Version::UserKey, [Some(b"k"), None]);
        assert_eq!(text(&found), ("user_key=k".into(), "user_key=k".into()));
    }
}
