//! `key-auth`: a consumer is known by a key in a field or in the query.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, CompileCx, Compiled, ConsumerMatch, Credentials, Define, Flow, Invalid, Phases, Plugin, RequestCx,
};
use weir_wire::name::FieldName;

use super::credentials::{self, CredentialTable};
use crate::query;

/// The definition.
#[derive(Debug)]
pub(crate) struct KeyAuth;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Name of the request field that carries the key. Empty: no field does.
    header: String,
    /// Name of the query argument that carries the key, when the field is absent. Name and value are compared decoded.
    /// Empty: no argument does.
    query: String,
    /// Takes the key out of the request before it goes upstream, wherever it stands: the field and every query argument
    /// of that name, also those that were not looked at.
    hide_credentials: bool,
    /// Name of the consumer as whom requests without a valid key are let through; without it, and while it does not
    /// exist, they are refused.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<String>,
    /// The realm told in `WWW-Authenticate` when a request is refused (RFC 9110 section 11.5).
    #[schemars(length(min = 1))]
    realm: String,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            header: "apikey".into(),
            query: "apikey".into(),
            hide_credentials: false,
            anonymous_consumer: None,
            realm: "key".into(),
        }
    }
}

/// On a consumer or a credential.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// The key. No two consumers or credentials may have the same.
    #[schemars(length(min = 1))]
    key: String,
}

impl Define for KeyAuth {
    const NAME: &'static str = "key-auth";
    const PRIORITY: i32 = 2500;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a request through when it carries the key of a consumer, in a field or in a query argument; the field goes first. \
The upstream is told who called by `X-Consumer-Username` and, where they are known, `X-Credential-Identifier` and \
`X-Consumer-Custom-ID`.

Otherwise the answer is 401 with `WWW-Authenticate: apikey realm=\"…\"` and a body that says whether the key was missing \
or unknown, unless `anonymous_consumer` names a consumer as whom such requests are let through.

Keys are looked up by a hash with a secret seed and compared in constant time: one consumer or a million cost the same, \
and how long the answer takes tells nothing about the keys.";
    const EXAMPLE: &'static str = "\
header: X-API-Key
hide_credentials: true
";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &["key"];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let header = cx.ok(super::source_field(&conf.header));
        cx.say(super::check_sources(&[&conf.header, &conf.query], "key"));
        cx.say(super::check_realm(&conf.realm).err());
        let header = header?;
        Some(Compiled::build(move |build| {
            Ok(Checked {
                header,
                query: super::source(conf.query),
                hide: conf.hide_credentials,
                anonymous: super::anonymous(conf.anonymous_consumer.as_deref(), build),
                challenge: format!("apikey realm=\"{}\"", conf.realm).into_bytes(),
                position: build.position,
            })
        }))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let table = credentials::changed_texts(&change, |conf| &conf.key, ("key", "key"))?;
        Ok(Arc::new(table))
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    /// `None`: no field carries a key.
    header: Option<FieldName>,
    /// `None`: no argument does.
    query: Option<Box<[u8]>>,
    hide: bool,
    anonymous: Option<u32>,
    challenge: Vec<u8>,
    /// Position of the plugin's credentials in the registry.
    position: u8,
}

impl Plugin for Checked {
    fn credential_argument(&self) -> Option<&[u8]> {
        self.query.as_deref()
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let found = self.find(cx);
        if self.hide && (found.is_ok() || self.anonymous.is_some()) {
            if let Some(header) = &self.header {
                cx.request_mut().remove_field(header);
            }
            if let Some(name) = &self.query {
                super::hide_argument(cx, name);
            }
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
    /// The key in the query, as it stands there.
    fn argument<'c>(&self, cx: &'c RequestCx<'_>) -> Option<&'c [u8]> {
        query::argument(cx.request().query()?, self.query.as_deref()?)
    }

    fn consumer(&self, cx: &RequestCx<'_>, key: &[u8]) -> Option<ConsumerMatch> {
        cx.credentials::<CredentialTable>(self.position)?.find(key).map(|found| found.who)
    }

    fn find(&self, cx: &mut RequestCx<'_>) -> Result<ConsumerMatch, &'static str> {
        const INVALID: &str = "Invalid API key in request";
        if let Some(key) = self.header.as_ref().and_then(|name| cx.request().field(name)) {
            return self.consumer(cx, key).ok_or(INVALID);
        }
        let Some(key) = self.argument(cx) else { return Err("Missing API key in request") };
        if query::is_plain(key) {
            return self.consumer(cx, key).ok_or(INVALID);
        }
        let mut decoded = cx.take_scratch();
        // The scratch was taken out of the exchange, so the key is read anew.
        if let Some(key) = self.argument(cx) {
            query::decode(key, &mut decoded);
        }
        let who = self.consumer(cx, &decoded);
        cx.put_scratch(decoded);
        who.ok_or(INVALID)
    }
}
