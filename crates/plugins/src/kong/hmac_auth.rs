//! Kong's `hmac-auth`.

use std::sync::Arc;

use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, AuthEntry, CompileCx, Compiled, Credentials, Define, Flow, Invalid, Phases, Plugin, RequestCx,
};
use weir_wire::head::Version;
use weir_wire::name::FieldName;

use super::caller::{Caller, challenge};
use crate::auth::credentials::{self, CredentialTable};
use crate::auth::hmac_auth::algorithm::Algorithm;
use crate::auth::hmac_auth::signature::parameter;

/// The definition.
#[derive(Debug)]
pub(crate) struct HmacAuth;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Takes the signature out of the request.
    hide_credentials: bool,
    /// Most seconds between the date of a request and now.
    #[schemars(range(min = 1))]
    clock_skew: f64,
    /// Name or id of the consumer as whom requests without a valid signature go on.
    anonymous: Option<String>,
    /// Compares the body with the header `Digest`.
    validate_request_body: bool,
    /// Headers that have to be signed.
    enforce_headers: Vec<String>,
    /// Hashes of signatures that are accepted.
    #[schemars(length(min = 1))]
    algorithms: Vec<Algorithm>,
    /// The realm told in `WWW-Authenticate`.
    realm: Option<String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            hide_credentials: false,
            clock_skew: 300.0,
            anonymous: None,
            validate_request_body: false,
            enforce_headers: Vec::new(),
            algorithms: Algorithm::ALL.map(|(algorithm, _)| algorithm).to_vec(),
            realm: None,
        }
    }
}

/// A credential.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// Its id.
    #[serde(rename = "id")]
    _id: String,
    /// The user name.
    #[schemars(length(min = 1))]
    username: String,
    /// The secret that requests are signed with. Kong makes a random one where there is none, so that no signature is good.
    secret: Option<String>,
}

impl Define for HmacAuth {
    const NAME: &'static str = "hmac-auth";
    const PRIORITY: i32 = 1030;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Lets a request through that a consumer has signed.";
    const EXAMPLE: &'static str = "enforce_headers: [date, request-line]\n";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &["secret"];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if !conf
            .enforce_headers
            .iter()
            .any(|name| name.eq_ignore_ascii_case("date") || name.eq_ignore_ascii_case("x-date"))
        {
            let text = "without date or x-date among enforce_headers a client may leave the time unsigned: clock_skew stops \
                no replay of such a request";
            cx.warn("enforce_headers", text);
        }
        Some(Compiled::build(move |build| {
            Ok(Checked {
                enforced: conf.enforce_headers.into_iter().map(|name| name.into_bytes().into()).collect(),
                algorithms: conf.algorithms,
                skew: conf.clock_skew as u64,
                checks_body: conf.validate_request_body,
                hide: conf.hide_credentials,
                fields: ["Proxy-Authorization", "Authorization"].map(FieldName::constant),
                caller: Caller::new(conf.anonymous.as_deref(), challenge("hmac", conf.realm.as_deref()), build),
            })
        }))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let put = |table: &mut CredentialTable<bool>, AuthEntry { who, conf }: &AuthEntry<ConsumerConf>| {
            let secret = conf.secret.as_deref().unwrap_or_default();
            Ok(table.insert(conf.username.as_bytes(), secret.as_bytes(), *who, !secret.is_empty()))
        };
        let named = ("username", "user name");
        Ok(Arc::new(credentials::changed(&change, change.held(), |conf| &conf.username, put, named)?))
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    /// Headers that have to be signed.
    enforced: Box<[Box<[u8]>]>,
    algorithms: Vec<Algorithm>,
    skew: u64,
    checks_body: bool,
    hide: bool,
    fields: [FieldName; 2],
    caller: Caller,
}

const INVALID_DATE: &str =
    "HMAC signature cannot be verified, a valid date or x-date header is required for HMAC Authentication";
const INVALID: &str = "HMAC signature cannot be verified";
const DIFFERENT: &str = "HMAC signature does not match";
/// Most headers that a signature may name.
const MOST_FIELDS: usize = 64;
/// The longest signature, that of SHA-512, and two bytes that decoding wants to have spare.
const LONGEST: usize = 64 + 2;

impl Plugin for Checked {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.caller.is_done(cx) {
            return Flow::Continue;
        }
        let mut room = cx.take_scratch();
        let given = self.fields.iter().find_map(|field| Some((field, Params::parse(cx.request().field(field)?)?)));
        let hidden = given.as_ref().filter(|_| self.hide).map(|(field, _)| *field);
        let found = self.find(cx, given.as_ref().map(|(_, params)| params), &mut room);
        // The user name takes the place of what was signed.
        room.clear();
        let mut found = found.map(|(who, name)| {
            room.extend_from_slice(name);
            who
        });
        if found.is_ok() && self.checks_body {
            // The body is asked for by a request whose signature is good alone.
            if cx.body().is_none() {
                cx.put_scratch(room);
                return Flow::AwaitBody;
            }
            if !has_digest(cx) {
                found = Err(DIFFERENT);
            }
        }
        if let Some(field) = hidden {
            cx.request_mut().remove_field(field);
        }
        let flow = match found {
            Ok(who) => self.caller.accept(cx, who, Some(&room)),
            Err(message) => self.caller.refuse(cx, message),
        };
        cx.put_scratch(room);
        flow
    }
}

impl Checked {
    /// The consumer that has signed a request, and its user name.
    fn find<'c>(
        &self,
        cx: &'c RequestCx<'_>,
        params: Option<&Params<'c>>,
        room: &mut Vec<u8>,
    ) -> Result<(weir_plugin::ConsumerMatch, &'c [u8]), &'static str> {
        if self.fields.iter().all(|field| cx.request().field(field).is_none()) {
            return Err("Unauthorized");
        }
        let now = cx.unix_ms() / 1000;
        let is_recent = |name: &str| {
            let date = cx.request().field_str(name).and_then(weir_wire::date::parse);
            date.is_some_and(|date| date.abs_diff(now) <= self.skew)
        };
        if !is_recent("x-date") && !is_recent("date") {
            return Err(INVALID_DATE);
        }
        let params = params.ok_or(INVALID)?;
        let signs = |name: &[u8]| params.names().any(|signed| signed == name);
        let known = Algorithm::ALL.iter().find(|(_, name)| *name == params.algorithm).map(|(algorithm, _)| *algorithm);
        let algorithm = known.filter(|algorithm| self.algorithms.contains(algorithm)).ok_or(INVALID)?;
        if !self.enforced.iter().all(|name| signs(name)) || params.names().count() > MOST_FIELDS {
            return Err(INVALID);
        }
        let table = cx.credentials::<CredentialTable<bool>>(self.caller.position);
        let credential = table.and_then(|table| table.find(params.username)).filter(|found| *found.more);
        // An unknown user's signature is verified as well, so that the answer takes the same time.
        let key = algorithm.key(credential.as_ref().map_or(b"not a secret", |credential| credential.secret));
        let is_good = write_signed(cx, params, room) && params.verify(&key, room);
        let credential = credential.ok_or(INVALID)?;
        if is_good { Ok((credential.who, params.username)) } else { Err(DIFFERENT) }
    }
}

/// Puts down what is signed; false where a signed header is there twice, so that nobody knows which one was meant.
fn write_signed(cx: &RequestCx<'_>, params: &Params<'_>, out: &mut Vec<u8>) -> bool {
    out.clear();
    let request = cx.request();
    for (at, name) in params.names().enumerate() {
        if at > 0 {
            out.push(b'\n');
        }
        let base = request.buffer.bytes();
        let mut values = request.head.fields.iter(base).filter(|(held, _)| held.eq_ignore_ascii_case(name));
        match (values.next(), name) {
            (Some((_, value)), _) => {
                if values.next().is_some() {
                    return false;
                }
                out.extend_from_slice(name);
                out.extend_from_slice(b": ");
                out.extend_from_slice(value);
            }
            (None, b"@request-target") => {
                out.extend_from_slice(b"@request-target: ");
                out.extend(request.method_bytes().iter().map(u8::to_ascii_lowercase));
                out.push(b' ');
                out.extend_from_slice(request.real_request_uri());
            }
            (None, b"request-line") => {
                out.extend_from_slice(request.method_bytes());
                out.push(b' ');
                out.extend_from_slice(request.real_request_uri());
                out.extend_from_slice(match request.head.version {
                    Version::Http10 => b" HTTP/1.0",
                    Version::Http11 => b" HTTP/1.1",
                    _ => b" HTTP/2",
                });
            }
            (None, name) => {
                out.extend_from_slice(name);
                out.push(b':');
            }
        }
    }
    true
}

/// True if the body is that of the header `Digest`, or there is neither.
fn has_digest(cx: &RequestCx<'_>) -> bool {
    let body = cx.body().unwrap_or_default();
    let Some(given) = cx.request().field_str("digest") else { return body.is_empty() };
    let mut room = [0; 36];
    let given = given.strip_prefix(b"SHA-256=").and_then(|given| {
        let length = STANDARD.decode_slice(given, &mut room).ok()?;
        room.get(..length)
    });
    given == Some(digest::digest(&digest::SHA256, body).as_ref())
}

/// The parameters of `hmac username="…", algorithm="…", headers="…", signature="…"`.
#[derive(Debug, PartialEq)]
struct Params<'a> {
    username: &'a [u8],
    algorithm: &'a [u8],
    /// Names of headers, with blanks between them.
    headers: &'a [u8],
    /// In base64.
    signature: &'a [u8],
}

impl<'a> Params<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let (scheme, mut rest) = text.split_at_checked(4)?;
        if !scheme.eq_ignore_ascii_case(b"hmac") {
            return None;
        }
        let [mut username, mut algorithm, mut headers, mut signature] = [None; 4];
        rest = weir_wire::trim_ows(rest);
        while !rest.is_empty() {
            let (name, value, after) = parameter(rest)?;
            let slot = match name {
                b"username" => &mut username,
                b"algorithm" => &mut algorithm,
                b"headers" => &mut headers,
                b"signature" => &mut signature,
                _ => return None,
            };
            if slot.replace(value).is_some() {
                return None;
            }
            rest = match weir_wire::trim_ows(after) {
                [] => &[],
                [b',', next @ ..] => weir_wire::trim_ows(next),
                _ => return None,
            };
        }
        Some(Self { username: username?, algorithm: algorithm?, headers: headers?, signature: signature? })
    }

    fn names(&self) -> impl Iterator<Item = &'a [u8]> {
        self.headers.split(|b| *b == b' ').filter(|name| !name.is_empty())
    }

    /// True if the signature is that of `signed`, in constant time.
    fn verify(&self, key: &hmac::Key, signed: &[u8]) -> bool {
        let mut room = [0; LONGEST];
        let Ok(length) = STANDARD.decode_slice(self.signature, &mut room) else { return false };
        room.get(..length).is_some_and(|signature| hmac::verify(key, signed, signature).is_ok())
    }
}
