//! Ways of authentication: where a request has its credentials, and the session that they stand for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_net::tls::authorities::not_after;
use weir_plugin::{BuildCx, Invalid, Io, Request, RequestCx};
use weir_wire::name::FieldName;

use super::Refusal;
use super::access::{Access, Read};
use super::hmac;
use super::jwt::{self, Stop, Tokens};
use super::openid::{self, OpenId};
use super::signature::{self, Signature};
use crate::hex;
use crate::query;
use crate::tyk::coprocess::{Check, CheckConf};
use crate::tyk::scripts;
use crate::tyk::sessions::{Password, Session, records};
use crate::tyk::shared::{Progress, Wait};

/// A way of authentication.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// Its kind.
    kind: KindConf,
    /// Name of the header; empty: `Authorization`.
    auth_header_name: String,
    /// Does not look at the header.
    disable_header: bool,
    /// Looks at an argument of the query.
    use_param: bool,
    /// Its name; empty: that of the header.
    param_name: String,
    /// Looks at a cookie.
    use_cookie: bool,
    /// Its name; empty: that of the header.
    cookie_name: String,
    /// Verification and reading of tokens of JWT.
    jwt: Option<jwt::Conf>,
    /// The providers of OpenID.
    openid: Option<openid::Conf>,
    /// Signatures that are accepted.
    hmac: hmac::Conf,
    /// The service that knows the callers.
    custom: Option<CheckConf>,
    /// The script that knows them.
    script: Option<scripts::Conf>,
    /// Signatures of requests.
    signature: Option<signature::Conf>,
    /// Tokens are the certificates that clients show in TLS.
    use_certificate: bool,
    /// Clients without a certificate may have a token (`security.allow_unsafe_dynamic_mtls_token`).
    allows_tokens: bool,
    /// Keys that are bound to certificates need one of them (`use_mutual_tls_auth`).
    binds: bool,
}

/// Kind of a way of authentication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum KindConf {
    #[default]
    Token,
    Oauth,
    Basic,
    Hmac,
    Jwt,
    OpenId,
    Custom,
}

const DISALLOWED: &str = "Access to this API has been disallowed";
/// Refusals that `tyk.conf` may word otherwise.
const FIELD_MISSING: Refusal = (401, "Authorization field missing");
const KEY_NOT_FOUND: Refusal = (403, DISALLOWED);
const CERT_REQUIRED: Refusal = (401, "Client certificate required");
const CERT_EXPIRED: Refusal = (403, "Certificate has expired");
const CERT_MISMATCH: Refusal = (401, DISALLOWED);
const OAUTH_MISSING: Refusal = (400, "Authorization field missing");
const OAUTH_MALFORMED: Refusal = (400, "Bearer token malformed");
const OAUTH_NOT_FOUND: Refusal = (403, "Key not authorised");
const OAUTH_DELETED: Refusal = (403, "Key not authorised. OAuth client access was revoked");

/// Refusal of a request whose signature is wrong, for which a way has words of its own.
const UNSIGNED: Refusal = (401, "signature");

/// Ids of refusals in `override_messages`, each with the way that it is of and with true if that way has certificates.
const IDS: [(&str, KindConf, Option<bool>, Refusal); 10] = [
    ("auth.auth_field_missing", KindConf::Token, None, FIELD_MISSING),
    ("auth.key_not_found", KindConf::Token, Some(false), KEY_NOT_FOUND),
    ("auth.cert_not_found", KindConf::Token, Some(true), KEY_NOT_FOUND),
    ("auth.cert_required", KindConf::Token, None, CERT_REQUIRED),
    ("auth.cert_expired", KindConf::Token, None, CERT_EXPIRED),
    ("auth.cert_mismatch", KindConf::Token, None, CERT_MISMATCH),
    ("oauth.auth_field_missing", KindConf::Oauth, None, OAUTH_MISSING),
    ("oauth.auth_field_malformed", KindConf::Oauth, None, OAUTH_MALFORMED),
    ("oauth.key_not_found", KindConf::Oauth, None, OAUTH_NOT_FOUND),
    ("oauth.client_deleted", KindConf::Oauth, None, OAUTH_DELETED),
];

/// Ids of all refusals that can have other words.
pub fn message_ids() -> impl Iterator<Item = &'static str> {
    IDS.into_iter().map(|(id, ..)| id)
}

/// Refusals in other words by their ids (`override_messages`).
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct Messages(BTreeMap<String, Message>);

/// A refusal in other words.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Message {
    /// The text; empty: Tyk's own.
    message: String,
    /// The status; 0: Tyk's own.
    code: u16,
}

impl Messages {
    /// The refusal of a way in the words of the configuration.
    pub(super) fn of<'m>(&'m self, way: &'m Way, refusal: Refusal) -> (u16, &'m str) {
        let (status, text) = refusal;
        if let Some(signature) = way.signature.as_ref().filter(|_| refusal == UNSIGNED) {
            return signature.refusal();
        }
        let is_of = |has_certificates: Option<bool>| has_certificates.is_none_or(|has| has == way.use_certificate);
        let id = IDS.iter().find(|(_, kind, of, known)| *known == refusal && *kind == way.kind && is_of(*of));
        let Some(Message { message, code }) = id.and_then(|(id, ..)| self.0.get(*id)) else { return (status, text) };
        (if *code == 0 { status } else { *code }, if message.is_empty() { text } else { message })
    }
}

/// A way of authentication, compiled.
#[derive(Debug)]
pub(super) struct Way {
    kind: KindConf,
    header: Option<FieldName>,
    argument: Option<Box<[u8]>>,
    cookie: Option<Box<[u8]>>,
    /// Value of `WWW-Authenticate`.
    challenge: Option<Vec<u8>>,
    tokens: Option<Tokens>,
    openid: Option<OpenId>,
    hmac: hmac::Conf,
    custom: Option<Check>,
    script: Option<scripts::Check>,
    signature: Option<Signature>,
    use_certificate: bool,
    allows_tokens: bool,
    binds: bool,
}

/// A part of a way, if it has one. A fault is told under the name of the part.
fn part<C, T>(
    name: &str,
    conf: Option<C>,
    compile: impl FnOnce(C) -> Result<T, Invalid>,
) -> Result<Option<T>, Invalid> {
    conf.map(compile).transpose().map_err(|error| Invalid { path: format!("{name}.{}", error.path), ..error })
}

impl Way {
    pub(super) fn compile(conf: Conf, api: &str) -> Result<Self, Invalid> {
        let header = if conf.auth_header_name.is_empty() { "Authorization" } else { &conf.auth_header_name };
        let field = FieldName::new(header)
            .ok_or_else(|| Invalid::new("auth_header_name", format!("'{header}' is no name of a header")))?;
        let named =
            |is_used: bool, name: &str| is_used.then(|| if name.is_empty() { header } else { name }.as_bytes().into());
        let realm: String = api.chars().filter(|c| !c.is_control() && !['"', '\\'].contains(c)).collect();
        Ok(Self {
            argument: named(conf.use_param, &conf.param_name),
            cookie: named(conf.use_cookie, &conf.cookie_name),
            header: (!conf.disable_header).then_some(field),
            challenge: (conf.kind == KindConf::Basic).then(|| format!("Basic realm=\"{realm}\"").into_bytes()),
            tokens: part("jwt", conf.jwt, Tokens::compile)?,
            openid: part("openid", conf.openid, OpenId::compile)?,
            hmac: conf.hmac,
            custom: part("custom", conf.custom, Check::compile)?,
            script: part("script", conf.script, scripts::Check::compile)?,
            signature: part("signature", conf.signature, Signature::compile)?,
            kind: conf.kind,
            use_certificate: conf.use_certificate,
            allows_tokens: conf.allows_tokens,
            binds: conf.binds,
        })
    }

    pub(super) fn build(&mut self, build: &BuildCx<'_>) -> Result<(), Invalid> {
        self.openid.as_mut().map_or(Ok(()), |openid| openid.build(build))?;
        self.custom.as_mut().map_or(Ok(()), |custom| custom.build(build))?;
        self.script.as_mut().map_or(Ok(()), |script| script.build(build))?;
        self.tokens.as_mut().map_or(Ok(()), |tokens| tokens.build(build))
    }

    /// True if the provider of a token has signed it; `None` for a way without providers.
    pub(super) async fn verifies(&self, token: &str, now_ms: u64, io: &dyn Io) -> Option<bool> {
        Some(self.openid.as_ref()?.verifies(token, now_ms, io).await)
    }

    /// Fetches what has to be known before a request is checked.
    pub(super) async fn fetch(&self, now_ms: u64, io: &dyn Io) {
        if let Some(tokens) = &self.tokens {
            tokens.fetch(now_ms, io).await;
        }
    }

    /// The service that knows the callers.
    pub(super) fn custom(&self) -> Option<&Check> {
        self.custom.as_ref()
    }

    /// The script that knows them.
    pub(super) fn script(&self) -> Option<&scripts::Check> {
        self.script.as_ref()
    }

    pub(super) fn challenge(&self) -> Option<&[u8]> {
        self.challenge.as_deref()
    }

    /// The session that the credentials of a request stand for. The end of `room` is scratch memory.
    pub(super) fn session(
        &self,
        cx: &RequestCx<'_>,
        now: (u64, u64),
        access: &Access,
        room: &mut Vec<u8>,
        progress: &Progress,
    ) -> Result<(Arc<Session>, Option<String>), Stop> {
        let request = cx.request();
        let start = room.len();
        let read: &Read = &progress.read;
        match self.kind {
            KindConf::Token if self.use_certificate => {
                Ok((self.of_certificate(cx, now, access, room, progress)?, None))
            }
            KindConf::Token => {
                if !self.read(request, room) {
                    return Err(FIELD_MISSING.into());
                }
                let start = start + scheme_length(room.get(start..).unwrap_or_default());
                let found = access.find(room, start, (read, now.1))?.ok_or(KEY_NOT_FOUND)?;
                if self.binds
                    && let Some(bound) = found.bound.as_ref().filter(|bound| !bound.certificates.is_empty())
                {
                    let id = shown(cx, access.sessions().1)?.ok_or(CERT_MISMATCH)?;
                    if bound.certificates.iter().all(|known| **known != *id) {
                        return Err(CERT_MISMATCH.into());
                    }
                }
                let key = room.get(start..).unwrap_or_default();
                let second = (now.0 / 1000) as i64;
                match &self.signature {
                    Some(signature) if !signature.is_good(request, key, &found, second) => Err(UNSIGNED.into()),
                    _ => Ok((found, None)),
                }
            }
            KindConf::Oauth => Ok((self.of_client(request, now, access, room, progress)?, None)),
            KindConf::Basic => Ok((self.user(request, access, room, (read, now.1))?, None)),
            KindConf::Hmac => {
                if !self.read(request, room) {
                    return Err((400, "Authorization field missing, malformed or invalid").into());
                }
                let given = room.get(start..).unwrap_or_default();
                Ok((self.hmac.session(request, given, (access, read, now.0, now.1))?, None))
            }
            KindConf::OpenId => {
                let openid = self.openid.as_ref().ok_or((401, "Key not authorised"))?;
                self.read(request, room);
                let given = room.get(start..).unwrap_or_default();
                let token = given.get(scheme_length(given)..).unwrap_or_default();
                let (sessions, org) = access.sessions();
                let (session, identity) = openid.session(token, org, (now.0, progress.is_verified), sessions)?;
                Ok((session, Some(access.name_of_identity(&identity))))
            }
            KindConf::Custom => match &progress.custom {
                Some(Ok((session, name))) => Ok((Arc::clone(session), Some(name.clone()))),
                Some(Err(refusal)) => Err(Stop::Refused(*refusal)),
                None => Err(Stop::Waits(Wait::Custom)),
            },
            KindConf::Jwt => {
                if !self.read(request, room) {
                    return Err((400, "Authorization field missing").into());
                }
                let given = room.get(start..).unwrap_or_default();
                let token = given.get(scheme_length(given)..).unwrap_or_default();
                let (sessions, org) = access.sessions();
                let tokens = self.tokens.as_ref().ok_or((403, "Key not authorized"))?;
                let caller = tokens.caller(token, org, now, sessions)?;
                Ok((caller.session, Some(access.name_of_identity(&caller.identity))))
            }
        }
    }

    /// Appends the credentials of a request; false without any. An argument takes precedence over the header.
    fn read(&self, request: &Request, out: &mut Vec<u8>) -> bool {
        let argument = self.argument.as_ref().and_then(|name| query::argument(request.query()?, name));
        if let Some(value) = argument.filter(|value| !value.is_empty()) {
            query::decode(value, out);
            return true;
        }
        let header = self.header.as_ref().and_then(|field| request.field(field));
        let cookie = || self.cookie.as_ref().and_then(|name| request.cookie(name));
        let value = header.filter(|value| !value.is_empty()).or_else(cookie).unwrap_or_default();
        out.extend_from_slice(value);
        !value.is_empty()
    }

    /// The session of the certificate that a client shows.
    fn of_certificate(
        &self,
        cx: &RequestCx<'_>,
        now: (u64, u64),
        access: &Access,
        room: &mut Vec<u8>,
        progress: &Progress,
    ) -> Result<Arc<Session>, Stop> {
        let start = room.len();
        let (read, org) = (&*progress.read, access.sessions().1);
        let mut found = None;
        match shown(cx, org)? {
            None if !self.allows_tokens => return Err(CERT_REQUIRED.into()),
            None => {}
            Some(id) => {
                room.extend_from_slice(id.get(org.len()..).unwrap_or_default().as_bytes());
                found = Some(access.find_of_org(room, start, (read, now.1))?.ok_or(CERT_MISMATCH)?);
                // A certificate that was taken out of the store is no key any more.
                if !access.has_record(records::certificate(&id), now, progress)? {
                    return Err(KEY_NOT_FOUND.into());
                }
                room.truncate(start);
            }
        }
        if self.allows_tokens && self.read(cx.request(), room) {
            let start = start + scheme_length(room.get(start..).unwrap_or_default());
            found = Some(access.find(room, start, (read, now.1))?.ok_or(KEY_NOT_FOUND)?);
        }
        found.ok_or(FIELD_MISSING.into())
    }

    /// The session of a token of OAuth, whose client has to be there still.
    fn of_client(
        &self,
        request: &Request,
        now: (u64, u64),
        access: &Access,
        room: &mut Vec<u8>,
        progress: &Progress,
    ) -> Result<Arc<Session>, Stop> {
        let start = room.len();
        self.read(request, room);
        let given = room.get(start..).unwrap_or_default().to_vec();
        let mut words = given.split(|b| *b == b' ');
        let (scheme, Some(token)) = (words.next().unwrap_or_default(), words.next()) else {
            return Err(OAUTH_MISSING.into());
        };
        if !scheme.eq_ignore_ascii_case(b"bearer") {
            return Err(OAUTH_MALFORMED.into());
        }
        room.truncate(start);
        room.extend_from_slice(token);
        let found = access.find(room, start, (&progress.read, now.1))?.ok_or(OAUTH_NOT_FOUND)?;
        let client = found.bound.as_ref().map_or("", |bound| &*bound.oauth_client);
        if client.is_empty() || !access.has_record(records::oauth_client(access.api(), client), now, progress)? {
            return Err(OAUTH_DELETED.into());
        }
        Ok(found)
    }

    /// The session of a user with a password.
    fn user(
        &self,
        request: &Request,
        access: &Access,
        room: &mut Vec<u8>,
        read: (&Read, u64),
    ) -> Result<Arc<Session>, Stop> {
        const WRONG: Refusal = (401, "User not authorised");
        let start = room.len();
        if !self.read(request, room) {
            return Err((401, "Authorization field missing").into());
        }
        let mut words = room.get(start..).unwrap_or_default().split(|b| *b == b' ');
        let (Some(_scheme), Some(encoded), None) = (words.next(), words.next(), words.next()) else {
            return Err((400, "Attempted access with malformed header, header not in basic auth format").into());
        };
        let Ok(decoded) = STANDARD.decode(encoded) else {
            return Err((400, "Attempted access with malformed header, auth data not encoded correctly").into());
        };
        let Some(colon) = decoded.iter().position(|b| *b == b':') else {
            return Err((400, "Attempted access with malformed header, values not in basic auth format").into());
        };
        let (name, password) = decoded.split_at(colon);
        let password = password.get(1..).unwrap_or_default();
        // The password of an unknown user is compared as well, so that the answer takes the same time.
        let start = room.len();
        room.extend_from_slice(name);
        let session = access.find_of_org(room, start, read)?;
        let held = session.as_ref().and_then(|session| session.password.as_ref());
        let is_same = Password::fits(held, password);
        session.filter(|_| is_same).ok_or(WRONG.into())
    }

    /// Takes the credentials out of a request.
    pub(super) fn strip(&self, cx: &mut RequestCx<'_>) {
        if let Some(field) = &self.header {
            cx.request_mut().remove_field(field);
        }
        if let Some(name) = &self.argument {
            cx.request_mut().retain_arguments(|argument| !query::has_name(argument, name));
        }
    }
}

/// Id of the certificate that a client shows: its organisation and SHA-256.
///
/// # Errors
/// The certificate is over.
fn shown(cx: &RequestCx<'_>, org: &str) -> Result<Option<String>, Refusal> {
    let chain = cx.client_certificate();
    let Some(own) = chain.as_ref().and_then(|chain| chain.first()) else { return Ok(None) };
    if not_after(own).is_none_or(|end| Duration::from_millis(cx.unix_ms()) >= end) {
        return Err(CERT_EXPIRED);
    }
    Ok(Some(format!("{org}{}", hex::encode(digest(&SHA256, own).as_ref()))))
}

/// Length of the scheme before a token.
fn scheme_length(value: &[u8]) -> usize {
    let has_scheme = value.starts_with(b"Bearer ") || value.starts_with(b"bearer ");
    if has_scheme { "Bearer ".len() } else { 0 }
}
