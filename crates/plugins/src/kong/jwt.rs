//! Kong's `jwt`.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, AuthEntry, CompileCx, Compiled, Credentials, Define, Flow, Invalid, Phases, Plugin, RequestCx,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::caller::Caller;
use crate::auth::basic_auth::BASE64;
use crate::auth::credentials::{self, CredentialTable};
use crate::auth::jwt_auth::key::{Algorithm, Verifier};
use crate::auth::jwt_auth::token::{self, Token};
use crate::auth::jwt_auth::verified::Known;
use crate::auth::jwt_auth::{self, Keys};
use crate::query;

/// The definition.
#[derive(Debug)]
pub(crate) struct Jwt;

/// A claim that is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Claim {
    Exp,
    Nbf,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Query arguments with the token.
    uri_param_names: Vec<String>,
    /// Cookies with the token.
    cookie_names: Vec<String>,
    /// Fields with the token, after `Bearer`.
    header_names: Vec<String>,
    /// The claim, or the field of the token's header, that names the credential.
    #[schemars(length(min = 1))]
    key_claim_name: String,
    /// True if secrets are written in base64.
    secret_is_base64: bool,
    /// Claims that have to be there and to hold.
    claims_to_verify: Option<Vec<Claim>>,
    /// Most seconds from now to `exp`; 0: any.
    #[schemars(range(min = 0, max = 31536000))]
    maximum_expiration: f64,
    /// Name or id of the consumer as whom requests without a valid token go on.
    anonymous: Option<String>,
    /// True if `OPTIONS` needs a token too.
    run_on_preflight: bool,
    /// The realm told in `WWW-Authenticate`.
    realm: Option<String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            uri_param_names: vec!["jwt".into()],
            cookie_names: Vec::new(),
            header_names: vec!["authorization".into()],
            key_claim_name: "iss".into(),
            secret_is_base64: false,
            claims_to_verify: None,
            maximum_expiration: 0.0,
            anonymous: None,
            run_on_preflight: true,
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
    /// Value of the key claim.
    #[schemars(length(min = 1))]
    key: String,
    /// The secret, for HS256, HS384 and HS512.
    secret: Option<String>,
    /// The public key in PEM, for the other algorithms.
    rsa_public_key: Option<String>,
    /// The algorithm.
    #[serde(default)]
    algorithm: Algorithm,
}

impl ConsumerConf {
    fn verifier(&self) -> Result<(Verifier, Vec<u8>), Invalid> {
        let conf = jwt_auth::ConsumerConf {
            key: self.key.clone(),
            secret: self.secret.clone(),
            public_key: self.rsa_public_key.clone(),
            algorithm: self.algorithm,
            exp: jwt_auth::exp(),
            base64_secret: false,
            lifetime_grace_period: 0,
        };
        Verifier::new(&conf)
    }
}

type Table = CredentialTable<Arc<Verifier>>;

impl Define for Jwt {
    const NAME: &'static str = "jwt";
    const PRIORITY: i32 = 1450;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a request through that carries a JSON web token of a consumer. The gateway remembers the last 8192 tokens that it \
found good, so that a signature is verified once and not for each request; times are checked each time.";
    const EXAMPLE: &'static str = "claims_to_verify: [exp]\n";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &["secret"];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn check_consumer(conf: &ConsumerConf) -> Result<(), Vec<Invalid>> {
        conf.verifier().map(drop).map_err(|fault| vec![fault])
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let mut headers = Vec::with_capacity(conf.header_names.len());
        for (at, name) in conf.header_names.iter().enumerate() {
            let path = format!("header_names[{at}]");
            headers
                .push(cx.ok(FieldName::new(name).ok_or_else(|| Invalid::new(path, "expected the name of a header")))?);
        }
        let claims = conf.claims_to_verify.unwrap_or_default();
        if conf.maximum_expiration > 0.0 && !claims.contains(&Claim::Exp) {
            let text = "maximum_expiration needs exp in claims_to_verify";
            cx.say([Invalid::new("maximum_expiration", text)]);
        }
        let challenge = match &conf.realm {
            Some(_) => super::caller::challenge("Bearer", conf.realm.as_deref()),
            None => "Bearer".to_owned(),
        };
        Some(Compiled::build(move |build| {
            Ok(Checked {
                headers,
                arguments: conf.uri_param_names,
                cookies: conf.cookie_names,
                memory: format!("{}{}", if conf.secret_is_base64 { "base64 " } else { "" }, conf.key_claim_name),
                claim: conf.key_claim_name,
                is_base64: conf.secret_is_base64,
                needs_exp: claims.contains(&Claim::Exp),
                needs_nbf: claims.contains(&Claim::Nbf),
                most: conf.maximum_expiration,
                on_preflight: conf.run_on_preflight,
                invalid: format!("{challenge}{} error=\"invalid_token\"", if conf.realm.is_some() { "," } else { "" }),
                missing: challenge.clone(),
                caller: Caller::new(conf.anonymous.as_deref(), challenge, build),
            })
        }))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let put = |table: &mut Table, entry: &AuthEntry<ConsumerConf>| {
            let (verifier, secret) = entry.conf.verifier()?;
            Ok(table.insert(entry.conf.key.as_bytes(), &secret, entry.who, Arc::new(verifier)))
        };
        let held = change.held::<Keys>().map(|keys| &keys.table);
        let table = credentials::changed(&change, held, |conf| &conf.key, put, ("key", "key"))?;
        Ok(Arc::new(Keys::new(table).map_err(|fault| (change.came.len(), fault))?))
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    headers: Vec<FieldName>,
    arguments: Vec<String>,
    cookies: Vec<String>,
    claim: String,
    /// The claim and the reading of secrets, under which verified tokens are remembered.
    memory: String,
    is_base64: bool,
    needs_exp: bool,
    needs_nbf: bool,
    most: f64,
    on_preflight: bool,
    missing: String,
    invalid: String,
    caller: Caller,
}

/// Refusal of a request: status, body, and true if the request brought a token.
struct Refusal {
    status: u16,
    body: String,
    has_token: bool,
}

impl Refusal {
    fn of(message: impl std::fmt::Display) -> Self {
        let body = serde_json::json!({ "message": message.to_string() }).to_string();
        Self { status: 401, body, has_token: true }
    }

    fn claim(claim: &str, message: &str) -> Self {
        Self { body: serde_json::json!({ claim: message }).to_string(), ..Self::of("") }
    }
}

impl Plugin for Checked {
    fn credential_argument(&self) -> Option<&[u8]> {
        self.arguments.first().map(String::as_bytes)
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.caller.is_done(cx) || !self.on_preflight && cx.request().method() == Method::Options {
            return Flow::Continue;
        }
        let Err(refusal) = self.check(cx) else { return Flow::Continue };
        if self.caller.fall_back(cx) {
            return Flow::Continue;
        }
        if refusal.status != 401 {
            return super::body::error(cx, refusal.status, &refusal.body, &[]);
        }
        let challenge = if refusal.has_token { &self.invalid } else { &self.missing };
        let answer = cx.reply(401).field("Content-Type", b"application/json; charset=utf-8");
        answer.field("WWW-Authenticate", challenge.as_bytes()).body(refusal.body.as_bytes()).done()
    }
}

impl Checked {
    /// The tokens of a request; the same one in several places is one.
    fn tokens(&self, cx: &RequestCx<'_>) -> Vec<Vec<u8>> {
        let mut found: Vec<Vec<u8>> = Vec::new();
        let mut add = |token: &[u8]| {
            if !token.is_empty() && !found.iter().any(|known| known == token) {
                found.push(token.to_vec());
            }
        };
        let request = cx.request();
        for name in &self.arguments {
            request.query().and_then(|query| query::argument(query, name.as_bytes())).into_iter().for_each(&mut add);
        }
        for name in &self.cookies {
            request.cookie(name.as_bytes()).into_iter().for_each(&mut add);
        }
        for name in &self.headers {
            let bearer = |value: &[u8]| -> Option<Vec<u8>> {
                let (scheme, rest) = value.split_at_checked(6)?;
                let rest = rest.strip_prefix(b" ").filter(|_| scheme.eq_ignore_ascii_case(b"bearer"))?;
                Some(weir_wire::trim_ows(rest).to_vec())
            };
            if let Some(token) = request.field(name).and_then(bearer) {
                add(&token);
            }
        }
        found
    }

    fn check(&self, cx: &mut RequestCx<'_>) -> Result<(), Refusal> {
        let tokens = self.tokens(cx);
        let [text] = &tokens[..] else {
            let message = if tokens.is_empty() { "Unauthorized" } else { "Multiple tokens provided" };
            return Err(Refusal { has_token: !tokens.is_empty(), ..Refusal::of(message) });
        };
        let keys = cx.credentials::<Keys>(self.caller.position);
        let tag = keys.map(|keys| keys.verified.tag(&self.memory, text));
        let remembered = keys.zip(tag).and_then(|(keys, tag)| keys.verified.find(&tag));
        let known = remembered.map_or_else(|| self.verify(text, keys), Ok)?;
        self.check_times(known, cx.unix_ms() as f64 / 1000.0)?;
        let Some((keys, tag)) = keys.zip(tag) else { return Err(self.unknown()) };
        if remembered.is_none() {
            keys.verified.remember(tag, known);
        }
        let found = keys.table.get(known.at).ok_or_else(|| self.unknown())?;
        let (who, key) = (found.who, found.name.to_vec());
        let _ = self.caller.accept(cx, who, Some(&key));
        Ok(())
    }

    fn unknown(&self) -> Refusal {
        Refusal::of(format!("No credentials found for given '{}'", self.claim))
    }

    /// Verifies a token that is not remembered.
    fn verify(&self, text: &[u8], keys: Option<&Keys>) -> Result<Known, Refusal> {
        let mut room = Vec::new();
        let token = Token::parse(text, &self.claim, &mut room).ok_or_else(|| Refusal::of("Bad token; invalid JSON"))?;
        let name = &self.claim;
        if !ALGORITHMS.contains(&&*token.algorithm) {
            return Err(Refusal::of("Bad token; invalid alg"));
        }
        let key = match &token.claims.key {
            token::Key::Text(key) => key.to_string(),
            token::Key::Absent => {
                header_field(text, name).ok_or_else(|| Refusal::of(format!("No mandatory '{name}' in claims")))?
            }
            token::Key::Other => {
                return Err(Refusal { status: 500, body: "An unexpected error occurred".into(), has_token: true });
            }
        };
        if key.is_empty() {
            return Err(Refusal::of(format!("Invalid '{name}' in claims")));
        }
        let found = keys.and_then(|keys| keys.table.find(key.as_bytes())).ok_or_else(|| self.unknown())?;
        if token.algorithm != found.more.algorithm.name() {
            return Err(Refusal::of("Invalid algorithm"));
        }
        let decoded = match self.is_base64 && found.more.algorithm.has_secret() {
            true => Some(BASE64.decode(found.secret).map_err(|_| Refusal::of("Invalid key/secret"))?),
            false => None,
        };
        if !found.more.verifies(decoded.as_deref().unwrap_or(found.secret), token.signed, token.signature) {
            return Err(Refusal::of("Invalid signature"));
        }
        Ok(Known { at: found.at, exp: token.claims.exp, nbf: token.claims.nbf })
    }

    fn check_times(&self, Known { exp, nbf, .. }: Known, now: f64) -> Result<(), Refusal> {
        for (name, given, is_needed) in [("exp", exp, self.needs_exp), ("nbf", nbf, self.needs_nbf)] {
            if is_needed && given.is_none() {
                return Err(Refusal::claim(name, "must be a number"));
            }
        }
        match (exp, nbf) {
            (Some(exp), _) if self.needs_exp && exp <= now => Err(Refusal::claim("exp", "token expired")),
            (_, Some(nbf)) if self.needs_nbf && nbf > now => Err(Refusal::claim("nbf", "token not valid yet")),
            (Some(exp), _) if self.most > 0.0 && exp > now + self.most => {
                Err(Refusal::claim("exp", "exceeds maximum allowed expiration"))
            }
            _ => Ok(()),
        }
    }
}

/// The algorithms that there are.
const ALGORITHMS: [&str; 13] = [
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA",
];

/// A text of the token's header.
fn header_field(token: &[u8], name: &str) -> Option<String> {
    let header = URL_SAFE_NO_PAD.decode(token.split(|b| *b == b'.').next()?).ok()?;
    let header: serde_json::Value = serde_json::from_slice(&header).ok()?;
    header.get(name)?.as_str().map(str::to_owned)
}
