//! `jwe-decrypt`: the content of an encrypted token (RFC 7516), for the upstream.

use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, AuthEntry, CompileCx, Compiled, Credentials, Define, Flow, Invalid, Phases, Plugin, RequestCx,
};
use weir_wire::name::FieldName;

use super::credentials::{self, CredentialTable};

/// The definition.
#[derive(Debug)]
pub(crate) struct JweDecrypt;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Name of the request field that carries the token, with or without `Bearer` before it.
    header: String,
    /// Name of the field in which the upstream receives the content of the token.
    forward_header: String,
    /// Refuses requests without a token. With `false` they pass without `forward_header`: one that the client sent there is
    /// dropped.
    strict: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Self { header: "Authorization".into(), forward_header: "Authorization".into(), strict: true }
    }
}

/// On a consumer or a credential.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// The name of the key, which tokens carry as `kid`. No two consumers or credentials may have the same.
    #[schemars(length(min = 1))]
    key: String,
    /// The key: 32 bytes.
    secret: String,
    /// `secret` is in base64 (the alphabet for URLs).
    #[serde(default)]
    is_base64_encoded: bool,
}

/// The alphabet for URLs; padding is left out in tokens, and says nothing.
const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl ConsumerConf {
    fn secret(&self) -> Result<Vec<u8>, &'static str> {
        if credentials::is_reference(&self.secret) {
            return Err("no secret for this reference: it was not resolved");
        }
        let secret = match self.is_base64_encoded {
            true => {
                BASE64URL.decode(&self.secret).map_err(|_| "expected 32 bytes in base64 (the alphabet for URLs)")?
            }
            false => self.secret.as_bytes().to_vec(),
        };
        if secret.len() == 32 { Ok(secret) } else { Err("expected 32 bytes: the algorithm is A256GCM") }
    }
}

impl Define for JweDecrypt {
    const NAME: &'static str = "jwe-decrypt";
    const PRIORITY: i32 = 2509;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Decrypts a token (RFC 7516, compact form, `\"alg\":\"dir\"`, `\"enc\":\"A256GCM\"`) with the key of the consumer that its `kid` \
names, and puts the content into a field for the upstream. A token that was made over its header, as the standard wants it, is \
taken, and so is one that APISIX's tools have made without it.

No consumer is set: the key says who could make the token, and what the token says is for the upstream to judge.

| answer | |
|---|---|
| 403, `missing JWE token in request` | there is no token, with `strict` |
| 400, `JWE token invalid` | it is no token of this kind |
| 400, `missing kid in JWE token`, `invalid kid in JWE token` | it names no key, or none of a consumer |
| 400, `failed to decrypt JWE token` | it was not made with that key, or its content does not fit into a field |";
    const EXAMPLE: &'static str = "\
header: X-Token
forward_header: X-Payload
";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &["key", "secret"];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn check_consumer(conf: &ConsumerConf) -> Result<(), Vec<Invalid>> {
        // A reference is looked up later.
        match conf.secret() {
            Err(message) if !credentials::is_reference(&conf.secret) => Err(vec![Invalid::new("secret", message)]),
            _ => Ok(()),
        }
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let name = |field: &str, name: &str| {
            cx.ok(FieldName::new(name).ok_or_else(|| Invalid::new(field, "expected the name of a field")))
        };
        let (header, forward) = (name("header", &conf.header), name("forward_header", &conf.forward_header));
        let (header, forward, strict) = (header?, forward?, conf.strict);
        Some(Compiled::build(move |build| Ok(Decrypting { header, forward, strict, position: build.position })))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let put = |table: &mut CredentialTable, AuthEntry { who, conf }: &AuthEntry<ConsumerConf>| {
            super::check_credential(&conf.key).map_err(|message| Invalid::new("key", message))?;
            let secret = conf.secret().map_err(|message| Invalid::new("secret", message))?;
            Ok(table.insert(conf.key.as_bytes(), &secret, *who, ()))
        };
        Ok(Arc::new(credentials::changed(&change, change.held(), |conf| &conf.key, put, ("key", "key"))?))
    }
}

/// An instance.
#[derive(Debug)]
struct Decrypting {
    header: FieldName,
    forward: FieldName,
    strict: bool,
    /// Position of the plugin's credentials in the registry.
    position: u8,
}

/// The header of a token.
#[derive(Deserialize)]
struct Header {
    kid: Option<String>,
    alg: Option<String>,
    enc: Option<String>,
    /// Compression, which would be a decoder for whoever holds a key.
    zip: Option<serde::de::IgnoredAny>,
    /// Extensions that a reader has to know (RFC 7516 section 4.1.13).
    crit: Option<serde::de::IgnoredAny>,
}

impl Plugin for Decrypting {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut room = cx.take_scratch();
        let flow = match self.token(cx).map(|token| decrypt(token, cx.credentials(self.position), &mut room)) {
            Some(Ok(length)) => {
                let content = room.get(..length).unwrap_or_default();
                cx.request_mut().set_field(&self.forward, content);
                Flow::Continue
            }
            Some(Err(message)) => cx.refuse(400, message),
            None if self.strict => cx.refuse(403, "missing JWE token in request"),
            None => {
                cx.request_mut().remove_field(&self.forward);
                Flow::Continue
            }
        };
        // A fault elsewhere could let the next plugin or request read scratch memory.
        room.fill(0);
        cx.put_scratch(room);
        flow
    }
}

impl Decrypting {
    fn token<'c>(&self, cx: &'c RequestCx<'_>) -> Option<&'c [u8]> {
        let value = cx.request().field(&self.header)?;
        let bearer = value.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        Some(bearer.map_or(value, |(_, token)| token)).filter(|token| !token.is_empty())
    }
}

const INVALID: &str = "JWE token invalid";
const UNREADABLE: &str = "failed to decrypt JWE token";

/// Decrypts a token to the front of `room`; returns the length of its content.
fn decrypt(token: &[u8], keys: Option<&CredentialTable>, room: &mut Vec<u8>) -> Result<usize, &'static str> {
    let mut parts = token.split(|b| *b == b'.');
    let mut part = || parts.next().ok_or(INVALID);
    let (header, key, iv, text, tag) = (part()?, part()?, part()?, part()?, part()?);
    // With `dir` there is no key in the token.
    if parts.next().is_some() || !key.is_empty() {
        return Err(INVALID);
    }
    BASE64URL.decode_vec(header, room).map_err(|_| INVALID)?;
    let told: Header = serde_json::from_slice(room).map_err(|_| INVALID)?;
    let kid = told.kid.ok_or("missing kid in JWE token")?;
    let is_known = told.alg.is_none_or(|alg| alg == "dir") && told.enc.is_none_or(|enc| enc == "A256GCM");
    if !is_known || told.zip.is_some() || told.crit.is_some() {
        return Err(INVALID);
    }
    let found = keys.and_then(|keys| keys.find(kid.as_bytes())).ok_or("invalid kid in JWE token")?;
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, found.secret).map_err(|_| UNREADABLE)?);
    let mut nonce = [0; 12];
    let written = BASE64URL.decode_slice(iv, &mut nonce).map_err(|_| INVALID)?;
    if written != nonce.len() {
        return Err(INVALID);
    }
    // Over the header (RFC 7516 section 5.2), and as APISIX makes tokens, over nothing.
    for over in [header, b""] {
        room.clear();
        BASE64URL.decode_vec(text, room).map_err(|_| INVALID)?;
        BASE64URL.decode_vec(tag, room).map_err(|_| INVALID)?;
        if let Ok(content) = key.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(over), room) {
            return if content.iter().all(|b| weir_wire::is_field_byte(*b)) {
                Ok(content.len())
            } else {
                Err(UNREADABLE)
            };
        }
    }
    Err(UNREADABLE)
}
