//! `consumer`: the names of consumers as Kong has them, which upstreams are told.

use std::sync::{Arc, LazyLock};

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, CompileCx, Compiled, ConsumerMatch, Credentials, Define, HookCx, Invalid, Phases, Plugin, RequestCx,
};
use weir_wire::name::FieldName;

/// The definition.
#[derive(Debug)]
pub(crate) struct Consumer;

/// Nothing to configure.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {}

/// On a consumer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// The id.
    id: String,
    /// The user name.
    username: Option<String>,
    /// The id in another system.
    custom_id: Option<String>,
}

/// Texts about one consumer.
#[derive(Clone, Debug, Default)]
struct Identity {
    id: Box<str>,
    username: Option<Box<str>>,
    custom_id: Option<Box<str>>,
}

/// Identities by the numbers of consumers.
#[derive(Clone, Debug, Default)]
struct Identities(Vec<Option<Identity>>);

impl Define for Consumer {
    const NAME: &'static str = "consumer";
    const PRIORITY: i32 = 0;
    const PHASES: Phases = Phases::NONE;
    const DOC: &'static str = "The names of consumers.";
    const EXAMPLE: &'static str = "{}\n";
    const AUTH: bool = true;

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn compile(_: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        Some(Compiled::ready(Nothing))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let mut identities = change.held::<Identities>().cloned().unwrap_or_default();
        for gone in change.gone.iter().flatten() {
            if let Some(place) = identities.0.get_mut(gone.who.consumer as usize) {
                *place = None;
            }
        }
        for (at, entry) in change.came.iter().enumerate() {
            let entry = entry.map_err(|fault| (at, fault))?;
            let place = entry.who.consumer as usize;
            if identities.0.len() <= place {
                identities.0.resize(place + 1, None);
            }
            let ConsumerConf { id, username, custom_id } = entry.conf;
            let identity =
                Identity { id: id.into(), username: username.map(Into::into), custom_id: custom_id.map(Into::into) };
            if let Some(place) = identities.0.get_mut(place) {
                *place = Some(identity);
            }
        }
        Ok(Arc::new(identities))
    }
}

/// An instance, which does nothing.
#[derive(Debug)]
struct Nothing;

impl Plugin for Nothing {}

/// Id of the consumer that calls.
pub(super) fn id_of_consumer(cx: &impl HookCx) -> Option<&[u8]> {
    identity(cx).map(|identity| identity.id.as_bytes())
}

/// Id in another system of the consumer that calls.
pub(super) fn custom_id_of_consumer(cx: &impl HookCx) -> Option<&[u8]> {
    identity(cx).and_then(|identity| identity.custom_id.as_deref()).map(str::as_bytes)
}

/// Identity of the consumer that calls, for scripts.
pub(super) fn identity_for_scripts(cx: &RequestCx<'_>) -> Option<weir_script::Identity> {
    let Identity { id, username, custom_id } = identity(cx)?;
    let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
    Some(weir_script::Identity { id: id.to_string(), username: text(username), custom_id: text(custom_id) })
}

fn identity(cx: &impl HookCx) -> Option<&Identity> {
    static POSITION: LazyLock<u8> = LazyLock::new(position);
    let (tables, who) = (cx.view().tables()?, cx.view().caller()?);
    let table = tables.credentials.get(usize::from(*POSITION))?.as_ref()?;
    table.downcast_ref::<Identities>()?.0.get(who.consumer as usize)?.as_ref()
}

/// Position of [`Consumer`] in the registry.
fn position() -> u8 {
    let is_this = |definition: &&dyn weir_plugin::host::Definition| definition.name() == Consumer::NAME;
    let position = super::definitions().iter().position(is_this).unwrap_or_default();
    u8::try_from(position).unwrap_or(u8::MAX)
}

/// Names of the fields that tell upstreams who calls, made once for each plugin that authenticates.
#[derive(Debug)]
pub(super) struct Told {
    fields: [FieldName; 4],
    anonymous: FieldName,
    /// Position of [`Consumer`] in the registry.
    position: u8,
}

impl Told {
    pub(super) fn new() -> Self {
        let names = ["X-Consumer-ID", "X-Consumer-Username", "X-Consumer-Custom-ID", "X-Credential-Identifier"];
        Self {
            fields: names.map(FieldName::constant),
            anonymous: FieldName::constant("X-Anonymous-Consumer"),
            position: position(),
        }
    }

    /// Says that a caller without a consumer has this credential, if any.
    pub(super) fn authenticate_alone(&self, cx: &mut RequestCx<'_>, credential: Option<&[u8]>) {
        cx.forget_consumer();
        self.clear(cx);
        let [.., identifier] = &self.fields;
        if let Some(credential) = credential {
            cx.request_mut().head.fields.add(identifier.text(), credential);
        }
    }

    /// Drops the fields as the client sent them.
    fn clear(&self, cx: &mut RequestCx<'_>) {
        for field in self.fields.iter().chain([&self.anonymous]) {
            cx.request_mut().remove_field(field);
        }
    }

    /// Says who calls. What the client sent in these fields is dropped. `credential` is `None` for the anonymous
    /// consumer.
    pub(super) fn authenticate(&self, cx: &mut RequestCx<'_>, who: ConsumerMatch, credential: Option<&[u8]>) {
        cx.set_consumer_alone(who);
        let [id, username, custom_id, identifier] = &self.fields;
        self.clear(cx);
        let tables = cx.tables();
        let fields = &mut cx.request_mut().head.fields;
        let table = tables.as_ref().and_then(|tables| tables.credentials.get(usize::from(self.position)));
        let identities = table.and_then(Option::as_ref).and_then(|table| table.downcast_ref::<Identities>());
        let identity = identities.and_then(|all| all.0.get(who.consumer as usize)).and_then(Option::as_ref);
        if let Some(identity) = identity {
            fields.add(id.text(), identity.id.as_bytes());
            for (field, value) in [(username, &identity.username), (custom_id, &identity.custom_id)] {
                if let Some(value) = value {
                    fields.add(field.text(), value.as_bytes());
                }
            }
        }
        match credential {
            Some(value) => fields.add(identifier.text(), value),
            None => fields.add(self.anonymous.text(), b"true"),
        }
    }
}
