//! `hmac-auth`: a consumer is known by a signature of the request with a secret.

pub(crate) mod algorithm;
pub(crate) mod signature;

use std::sync::Arc;

use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, AuthEntry, CompileCx, Compiled, ConsumerMatch, Credentials, Define, Failure, Flow, Invalid, PerRequest,
    Phases, Plugin, RequestCx, Side,
};
use weir_wire::name::{FieldName, Known};

use super::credentials::{self, CredentialTable};
use signature::Params;

/// The definition.
#[derive(Debug)]
pub(crate) struct HmacAuth;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The algorithms that signatures may be made with.
    #[schemars(length(min = 1), extend("default" = ["hmac-sha1", "hmac-sha256", "hmac-sha512"]))]
    allowed_algorithms: Vec<Algorithm>,
    /// Seconds by which the request's `Date` may differ from the gateway's clock.
    #[schemars(range(min = 1))]
    clock_skew: u32,
    /// Fields that a signature has to cover, `@request-target` among them where method and target have to be. `date`,
    /// unless it says otherwise: a `Date` that is not signed can be changed.
    #[schemars(inner(length(min = 1, max = 50)))]
    signed_headers: Vec<String>,
    /// Asks for `Digest: SHA-256=…` with the digest of the body in base64. It protects the body where `digest` is among
    /// `signed_headers`; the body is collected whole, up to `limits.buffered_body`.
    validate_request_body: bool,
    /// Most bytes of a body that is validated (413 above), where it is less than `limits.buffered_body`.
    #[schemars(range(min = 1))]
    max_req_body_size: u64,
    /// Takes `Authorization` out of the request before it goes upstream.
    hide_credentials: bool,
    /// Name of the consumer as whom requests without a valid signature are let through; without it, and while it does
    /// not exist, they are refused.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<String>,
    /// The realm told in `WWW-Authenticate` when a request is refused (RFC 9110 section 11.5).
    #[schemars(length(min = 1))]
    realm: String,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            allowed_algorithms: vec![Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha512],
            clock_skew: 300,
            signed_headers: vec!["date".into()],
            validate_request_body: false,
            max_req_body_size: 64 << 20,
            hide_credentials: false,
            anonymous_consumer: None,
            realm: "hmac".into(),
        }
    }
}

/// An algorithm of signatures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(inline)]
enum Algorithm {
    #[serde(rename = "hmac-sha1")]
    Sha1,
    #[serde(rename = "hmac-sha256")]
    Sha256,
    #[serde(rename = "hmac-sha512")]
    Sha512,
}

impl Algorithm {
    fn parse(name: &[u8]) -> Option<Self> {
        match name {
            b"hmac-sha1" => Some(Self::Sha1),
            b"hmac-sha256" => Some(Self::Sha256),
            b"hmac-sha512" => Some(Self::Sha512),
            _ => None,
        }
    }

    fn key(self, secret: &[u8]) -> hmac::Key {
        let algorithm = match self {
            // SHA-1 is broken by collisions, on which an HMAC does not rest (RFC 6194 section 3.3).
            Self::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::Key::new(algorithm, secret)
    }
}

/// On a consumer or a credential.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// The `keyId` of its signatures. It may not hold quotes, backslashes and control characters, and no two consumers
    /// or credentials may have the same.
    #[schemars(length(min = 1, max = MOST_CHARACTERS))]
    key_id: String,
    /// The secret that requests are signed with.
    #[schemars(length(min = 1, max = MOST_CHARACTERS))]
    secret_key: String,
}

impl Define for HmacAuth {
    const NAME: &'static str = "hmac-auth";
    const PRIORITY: i32 = 2530;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a request through that is signed with the secret of a consumer:

```text
Date: Fri, 06 Sep 2024 06:41:29 GMT
Authorization: Signature keyId=\"jacks-id\",algorithm=\"hmac-sha256\",headers=\"@request-target date\",signature=\"…\"
```

`signature` is the HMAC in base64 of these lines, each with a line end (LF): the `keyId`; then one for each name in \
`headers`, in that order. For `@request-target` it is the method, a blank, and the target with its query \
(`GET /orders?page=2`), as it was sent or, as in APISIX, with its path decoded and without dot segments; for a field \
its name as it stands in the list, a colon, a blank, and the value \
(`date: Fri, 06 Sep 2024 06:41:29 GMT`). A field that the request does not have has no line. A field that it has twice \
cannot be signed.

A request needs a `Date` within `clock_skew` of the gateway's clock. All of `signed_headers` have to be in the list and \
in the request (APISIX is content with the list). The upstream is told who called by `X-Consumer-Username` and, where \
they are known, `X-Credential-Identifier` and `X-Consumer-Custom-ID`.

Otherwise the answer is 401 with `WWW-Authenticate: hmac realm=\"…\"`, unless `anonymous_consumer` names a consumer as \
whom such requests are let through. The body tells a missing field and another scheme from the rest, which is \
`client request can't be validated`. Whether a `keyId` is known is told neither by the text nor by the time that the \
answer takes.";
    const EXAMPLE: &'static str = "\
allowed_algorithms: [hmac-sha256, hmac-sha512]
signed_headers: [\"@request-target\", date]
hide_credentials: true
";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &["secret_key"];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn check_consumer(conf: &ConsumerConf) -> Result<(), Vec<Invalid>> {
        check_key_id(&conf.key_id).map_err(|fault| vec![fault])
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let fields = cx.ok(conf.fields());
        cx.say(super::check_realm(&conf.realm).err());
        let signs = |field: &str| conf.signed_headers.iter().any(|name| name.eq_ignore_ascii_case(field));
        if !signs("date") {
            cx.warn("signed_headers", "without date the time of a request is not signed: clock_skew stops no replay");
        }
        if conf.validate_request_body && !signs("digest") {
            let message = "a Digest that is not signed protects nothing: add digest to signed_headers";
            cx.warn("validate_request_body", message);
        }
        let fields = fields?;
        Some(Compiled::build(move |build| {
            Ok(Checked {
                fields,
                algorithms: conf.allowed_algorithms,
                skew: u64::from(conf.clock_skew),
                body: conf.validate_request_body.then(|| usize::try_from(conf.max_req_body_size).unwrap_or(usize::MAX)),
                hide: conf.hide_credentials,
                anonymous: super::anonymous(conf.anonymous_consumer.as_deref(), build),
                challenge: format!("hmac realm=\"{}\"", conf.realm).into_bytes(),
                position: build.position,
                found: PerRequest::new(),
            })
        }))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let put = |table: &mut CredentialTable, AuthEntry { who, conf, .. }: &AuthEntry<ConsumerConf>| {
            for (field, value) in [("key_id", &conf.key_id), ("secret_key", &conf.secret_key)] {
                super::check_credential(value).map_err(|message| Invalid::new(field, message))?;
                if value.chars().count() > MOST_CHARACTERS {
                    let message = format!("expected a text of 1 to {MOST_CHARACTERS} characters");
                    return Err(Invalid::new(field, message));
                }
            }
            check_key_id(&conf.key_id)?;
            Ok(table.insert(conf.key_id.as_bytes(), conf.secret_key.as_bytes(), *who, ()))
        };
        let named = ("key_id", "key id");
        Ok(Arc::new(credentials::changed(&change, change.held(), |conf| &conf.key_id, put, named)?))
    }
}

/// Most characters of a key id and of a secret, as in APISIX.
const MOST_CHARACTERS: usize = 256;

/// A key id is sent within quotes, as it stands.
fn check_key_id(id: &str) -> Result<(), Invalid> {
    if id.bytes().all(|b| weir_wire::is_field_byte(b) && !matches!(b, b'"' | b'\\')) {
        Ok(())
    } else {
        Err(Invalid::new("key_id", "expected a text without quotes, backslashes and control characters"))
    }
}

impl Conf {
    fn fields(&self) -> Result<Vec<Vec<u8>>, Invalid> {
        let field = |(at, name): (usize, &String)| {
            if name == "@request-target" || FieldName::new(name).is_some() {
                Ok(name.as_bytes().to_vec())
            } else {
                Err(Invalid::new(format!("signed_headers[{at}]"), "expected the name of a field or @request-target"))
            }
        };
        self.signed_headers.iter().enumerate().map(field).collect()
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    algorithms: Vec<Algorithm>,
    skew: u64,
    /// The fields that have to be signed.
    fields: Vec<Vec<u8>>,
    /// Largest body whose digest is checked, in bytes; `None`: digests of bodies are not.
    body: Option<usize>,
    hide: bool,
    anonymous: Option<u32>,
    challenge: Vec<u8>,
    /// Position of the plugin's credentials in the registry.
    position: u8,
    /// The consumer whose signature was good, while the body is collected.
    found: PerRequest<ConsumerMatch>,
}

/// The only message to a client about an invalid signature.
const REFUSED: &str = "client request can't be validated";

impl Plugin for Checked {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        // The signature was good before the body was collected, which may have changed the framing fields.
        let found = match self.found.get(cx) {
            Some(who) => Ok(*who),
            None => {
                let mut room = cx.take_scratch();
                let found = self.find(cx, &mut room);
                cx.put_scratch(room);
                found
            }
        };
        let found = match (found, self.body) {
            (Ok(who), Some(most)) => match cx.body() {
                None => {
                    self.found.put(cx, who);
                    return Flow::AwaitBody;
                }
                Some(body) if body.len() > most => {
                    return Flow::Abort(Failure { status: 413, side: Side::Client, reason: "request body too large" });
                }
                Some(body) => {
                    if has_digest(cx, body) {
                        Ok(who)
                    } else {
                        Err(REFUSED)
                    }
                }
            },
            (found, _) => found,
        };
        if self.hide && (found.is_ok() || self.anonymous.is_some()) {
            cx.request_mut().head.fields.remove_known(Known::Authorization);
        }
        match found {
            Ok(who) => {
                cx.set_consumer(who);
                Flow::Continue
            }
            Err(message) => super::refuse(cx, self.anonymous, &self.challenge, message),
        }
    }
}

impl Checked {
    fn find(&self, cx: &RequestCx<'_>, room: &mut Vec<u8>) -> Result<ConsumerMatch, &'static str> {
        let request = cx.request();
        let given = request.head.fields.get_known(request.buffer.bytes(), Known::Authorization);
        let given = given.ok_or("client request can't be validated: missing Authorization header")?;
        let params = given.split_at_checked(9).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"signature"));
        let (_, params) =
            params.ok_or("client request can't be validated: Authorization header does not start with 'Signature'")?;
        self.validate(cx, params, room).ok_or(REFUSED)
    }

    fn validate(&self, cx: &RequestCx<'_>, params: &[u8], room: &mut Vec<u8>) -> Option<ConsumerMatch> {
        let request = cx.request();
        let params = Params::parse(params)?;
        let algorithm = Algorithm::parse(params.algorithm).filter(|algorithm| self.algorithms.contains(algorithm))?;
        let date = request.head.fields.get_known(request.buffer.bytes(), Known::Date);
        let date = date.and_then(weir_wire::date::parse)?;
        if date.abs_diff(cx.unix_ms() / 1000) > self.skew || !self.fields.iter().all(|f| params.signs(f, request)) {
            return None;
        }
        // An unknown key's signature is verified as well, so that the answer takes the same time.
        let secrets = cx.credentials::<CredentialTable>(self.position);
        let credential = secrets.and_then(|secrets| secrets.find(params.key_id));
        let secret = credential.map_or(&b"not a secret"[..], |credential| credential.secret);
        let key = algorithm.key(secret);
        // Clients of APISIX sign what that signs: the normalised target. Both are of the same resource.
        let (sent, normalised) = (request.real_request_uri(), request.request_uri());
        params.write_signed(request, sent, room)?;
        let mut good = params.verify(&key, room);
        if sent != normalised {
            params.write_signed(request, normalised, room)?;
            good |= params.verify(&key, room);
        }
        credential.filter(|_| good).map(|credential| credential.who)
    }
}

/// True if the request has the digest of this body, in the form of RFC 3230 that APISIX takes.
fn has_digest(cx: &RequestCx<'_>, body: &[u8]) -> bool {
    let Some((algorithm, given)) = cx.request().field_str("Digest").and_then(|field| field.split_at_checked(8)) else {
        return false;
    };
    let mut room = [0; 36];
    let given = STANDARD.decode_slice(given, &mut room).ok().and_then(|len| room.get(..len));
    algorithm.eq_ignore_ascii_case(b"sha-256=") && given == Some(digest::digest(&digest::SHA256, body).as_ref())
}
