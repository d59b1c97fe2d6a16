//! Kong's `basic-auth`.

use std::sync::Arc;

use aws_lc_rs::digest;
use base64::Engine;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, AuthEntry, CompileCx, Compiled, ConsumerMatch, Credentials, Define, Flow, Invalid, Phases, Plugin,
    RequestCx,
};
use weir_wire::name::FieldName;

use super::caller::{Caller, challenge};
use crate::auth::basic_auth::{BASE64, credentials_of};
use crate::auth::credentials::{self, CredentialTable, same_secret};
use crate::hex;

/// The definition.
#[derive(Debug)]
pub(crate) struct BasicAuth;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Takes the credentials out of the request.
    hide_credentials: bool,
    /// Name or id of the consumer as whom requests without valid credentials go on.
    anonymous: Option<String>,
    /// The realm told in `WWW-Authenticate`.
    realm: String,
}

impl Default for Conf {
    fn default() -> Self {
        Self { hide_credentials: false, anonymous: None, realm: "service".into() }
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
    /// The password, or as Kong stores it.
    password: String,
    /// The id of the consumer, with which passwords are hashed.
    consumer_id: String,
    /// True if the password is hashed: `_transform: false`.
    is_hashed: bool,
}

/// Kong's hash of a password, SHA-1 of it and the consumer's id, in bytes.
fn hash(password: &[u8], consumer_id: &[u8]) -> digest::Digest {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(password);
    context.update(consumer_id);
    context.finish()
}

/// The bytes of a hash that is written in digits.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    hex::decode(text).filter(|hash| hash.len() == 20)
}

impl Define for BasicAuth {
    const NAME: &'static str = "basic-auth";
    const PRIORITY: i32 = 1100;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "Lets a request through that carries user name and password of a consumer.";
    const EXAMPLE: &'static str = "hide_credentials: true\n";
    const AUTH: bool = true;
    const ENCRYPTED: &'static [&'static str] = &["password"];

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn check_consumer(conf: &ConsumerConf) -> Result<(), Vec<Invalid>> {
        match conf.is_hashed && from_hex(&conf.password).is_none() {
            true => Err(vec![Invalid::new(
                "password",
                "expected the 40 hexadecimal digits of a hash, as _transform: false says",
            )]),
            false => Ok(()),
        }
    }

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::build(move |build| {
            Ok(Checked {
                hide: conf.hide_credentials,
                fields: ["Proxy-Authorization", "Authorization"].map(FieldName::constant),
                caller: Caller::new(conf.anonymous.as_deref(), challenge("Basic", Some(&conf.realm)), build),
            })
        }))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let put = |table: &mut CredentialTable<Box<str>>, AuthEntry { who, conf }: &AuthEntry<ConsumerConf>| {
            let hashed = match conf.is_hashed {
                true => from_hex(&conf.password).unwrap_or_default(),
                false => hash(conf.password.as_bytes(), conf.consumer_id.as_bytes()).as_ref().to_vec(),
            };
            Ok(table.insert(conf.username.as_bytes(), &hashed, *who, conf.consumer_id.as_str().into()))
        };
        let named = ("username", "user name");
        Ok(Arc::new(credentials::changed(&change, change.held(), |conf| &conf.username, put, named)?))
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    hide: bool,
    fields: [FieldName; 2],
    caller: Caller,
}

impl Plugin for Checked {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.caller.is_done(cx) {
            return Flow::Continue;
        }
        let mut room = cx.take_scratch();
        let given = self.fields.iter().find_map(|field| cx.request().field(field).and_then(credentials_of));
        let found = find(cx.credentials(self.caller.position), given, &mut room);
        let flow = match found {
            Some((who, length)) => {
                let flow = self.caller.accept(cx, who, room.get(..length));
                if self.hide {
                    self.fields.iter().for_each(|field| cx.request_mut().remove_field(field));
                }
                flow
            }
            None => self.caller.refuse(cx, "Unauthorized"),
        };
        // Scratch memory may be read by the next plugin or request, were there a fault elsewhere.
        room.fill(0);
        cx.put_scratch(room);
        flow
    }
}

/// Whose credentials these are, and the length of the user name at the front of `room`.
fn find(
    users: Option<&CredentialTable<Box<str>>>,
    given: Option<&[u8]>,
    room: &mut Vec<u8>,
) -> Option<(ConsumerMatch, usize)> {
    BASE64.decode_vec(given?, room).ok()?;
    let colon = room.iter().position(|b| *b == b':')?;
    let (name, password) = room.split_at(colon);
    let password = password.get(1..).unwrap_or_default();
    // An unknown user's password is hashed and compared as well, so that the answer takes the same time.
    let user = users.and_then(|users| users.find(name));
    let hashed = hash(password, user.as_ref().map_or(b"", |user| user.more.as_bytes()));
    let same = same_secret(hashed.as_ref(), user.as_ref().map_or(b"not a password of 20", |user| user.secret));
    user.filter(|_| same).map(|user| (user.who, colon))
}
