//! Kong's `key-auth`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_plugin::{
    AuthChange, AuthEntry, CompileCx, Compiled, ConsumerMatch, Credentials, Define, Flow, Invalid, Phases, Plugin,
    RequestCx,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::arguments::Arguments;
use super::caller::{Caller, challenge};
use super::media::Media;
use crate::auth::credentials::{self, CredentialTable};
use crate::query;

/// The definition.
#[derive(Debug)]
pub(crate) struct KeyAuth;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Names of fields and query arguments with the key.
    #[schemars(length(min = 1))]
    key_names: Vec<String>,
    /// Looks for keys in fields.
    key_in_header: bool,
    /// Looks for keys in query arguments.
    key_in_query: bool,
    /// Looks for keys in the body: in fields of a form and values of a JSON object.
    key_in_body: bool,
    /// True if `OPTIONS` needs a key too.
    run_on_preflight: bool,
    /// Takes the key out of the request.
    hide_credentials: bool,
    /// Name or id of the consumer as whom requests without a valid key go on.
    anonymous: Option<String>,
    /// The realm told in `WWW-Authenticate`.
    realm: Option<String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            key_names: vec!["apikey".into()],
            key_in_header: true,
            key_in_query: true,
            key_in_body: false,
            run_on_preflight: true,
            hide_credentials: false,
            anonymous: None,
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
    /// The key.
    #[schemars(length(min = 1))]
    key: String,
}

impl Define for KeyAuth {
    const NAME: &'static str = "key-auth";
    const PRIORITY: i32 = 1250;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Lets a request through that carries the key of a consumer.";
    const EXAMPLE: &'static str = "key_names: [apikey]\n";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &["key"];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let mut names = Vec::with_capacity(conf.key_names.len());
        for (at, name) in conf.key_names.into_iter().enumerate() {
            let field = FieldName::new(&name);
            let path = format!("key_names[{at}]");
            let field = cx.ok(field.ok_or_else(|| Invalid::new(path, "expected the name of a header")))?;
            names.push((field, name.into_bytes()));
        }
        Some(Compiled::build(move |build| {
            Ok(Checked {
                names,
                in_header: conf.key_in_header,
                in_query: conf.key_in_query,
                in_body: conf.key_in_body,
                on_preflight: conf.run_on_preflight,
                hide: conf.hide_credentials,
                caller: Caller::new(conf.anonymous.as_deref(), challenge("Key", conf.realm.as_deref()), build),
            })
        }))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let put = |table: &mut CredentialTable, entry: &AuthEntry<ConsumerConf>| {
            Ok(table.insert(entry.conf.key.as_bytes(), b"", entry.who, ()))
        };
        let table = credentials::changed(&change, change.held(), |conf| &conf.key, put, ("key", "key"))?;
        Ok(Arc::new(table))
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    names: Vec<(FieldName, Vec<u8>)>,
    in_header: bool,
    in_query: bool,
    in_body: bool,
    on_preflight: bool,
    hide: bool,
    caller: Caller,
}

impl Plugin for Checked {
    fn credential_argument(&self) -> Option<&[u8]> {
        self.names.first().filter(|_| self.in_query).map(|(_, name)| name.as_slice())
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.caller.is_done(cx) || !self.on_preflight && cx.request().method() == Method::Options {
            return Flow::Continue;
        }
        let media =
            self.in_body.then(|| Media::of(cx.request().field_str("content-type").unwrap_or_default())).flatten();
        if media.is_some() && cx.body().is_none() {
            return Flow::AwaitBody;
        }
        let body = media.and_then(|media| Keys::of(media, cx.body()?));
        let found = self.find(cx, body.as_ref());
        if self.hide {
            self.hide(cx);
            if let Some(hidden) = body.and_then(|body| body.without(self.names.iter().map(|(_, name)| &**name))) {
                cx.replace_body(&hidden);
            }
        }
        match found {
            Ok(who) => self.caller.accept(cx, who, None),
            Err(message) => self.caller.refuse(cx, message),
        }
    }
}

const DUPLICATE: &str = "Duplicate API key found";

/// A body in which keys are looked for.
enum Keys {
    Json(Map<String, Value>),
    Form(Arguments),
}

impl Keys {
    fn of(media: Media, body: &[u8]) -> Option<Self> {
        match media {
            Media::Json => serde_json::from_slice(body).ok().map(Self::Json),
            Media::Form => Some(Self::Form(Arguments::parse(body))),
        }
    }

    /// The key of this name, which may be there once.
    fn key(&self, name: &[u8]) -> Option<Result<Vec<u8>, &'static str>> {
        match self {
            Self::Json(values) => match values.get(std::str::from_utf8(name).ok()?)? {
                Value::String(key) if !key.is_empty() => Some(Ok(key.as_bytes().to_vec())),
                Value::Array(_) => Some(Err(DUPLICATE)),
                _ => None,
            },
            Self::Form(all) => match all.texts(name)[..] {
                [] => None,
                [key] => (!key.is_empty()).then(|| Ok(key.to_vec())),
                _ => Some(Err(DUPLICATE)),
            },
        }
    }

    /// The body without the keys of these names; `None` where it has none.
    fn without<'n>(self, names: impl Iterator<Item = &'n [u8]>) -> Option<Vec<u8>> {
        let mut is_changed = false;
        match self {
            Self::Json(mut values) => {
                for name in names.filter_map(|name| std::str::from_utf8(name).ok()) {
                    is_changed |= values.shift_remove(name).is_some();
                }
                is_changed.then(|| serde_json::to_vec(&values).unwrap_or_default())
            }
            Self::Form(mut all) => {
                for name in names {
                    is_changed |= all.has(name);
                    all.remove(name);
                }
                let mut out = Vec::new();
                all.write(&mut out);
                is_changed.then_some(out)
            }
        }
    }
}

impl Checked {
    fn find(&self, cx: &RequestCx<'_>, body: Option<&Keys>) -> Result<ConsumerMatch, &'static str> {
        for (field, name) in &self.names {
            if self.in_header {
                let request = cx.request();
                let mut given = request.head.fields.all(request.buffer.bytes(), field);
                if let Some(key) = given.next().filter(|key| !key.is_empty()) {
                    return if given.next().is_some() { Err(DUPLICATE) } else { self.consumer(cx, key) };
                }
            }
            let arguments = cx.request().query().filter(|_| self.in_query).unwrap_or_default().split(|b| *b == b'&');
            let mut given = arguments.filter(|argument| query::has_name(argument, name)).map(query::value);
            let Some(key) = given.next().filter(|key| !key.is_empty()) else {
                match body.and_then(|body| body.key(name)) {
                    None => continue,
                    Some(key) => return key.and_then(|key| self.consumer(cx, &key)),
                }
            };
            if given.next().is_some() {
                return Err(DUPLICATE);
            }
            if query::is_plain(key) {
                return self.consumer(cx, key);
            }
            let mut decoded = Vec::new();
            query::decode(key, &mut decoded);
            return self.consumer(cx, &decoded);
        }
        Err("No API key found in request")
    }

    fn consumer(&self, cx: &RequestCx<'_>, key: &[u8]) -> Result<ConsumerMatch, &'static str> {
        let found = cx.credentials::<CredentialTable>(self.caller.position).and_then(|table| table.find(key));
        found.map(|found| found.who).ok_or("Unauthorized")
    }

    fn hide(&self, cx: &mut RequestCx<'_>) {
        for (field, name) in &self.names {
            if self.in_header {
                cx.request_mut().remove_field(field);
            }
            if self.in_query && cx.request().query().is_some_and(|query| query::argument(query, name).is_some()) {
                cx.request_mut().retain_arguments(|argument| !query::has_name(argument, name));
            }
        }
    }
}
