//! Kong's `acl`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AuthChange, CompileCx, Compiled, ConsumerMatch, Credentials, Define, Flow, Invalid, Phases, Plugin, RequestCx,
};
use weir_wire::name::FieldName;

use super::body;
use super::caller::groups_without_consumer;

/// The definition.
#[derive(Debug)]
pub(crate) struct Acl;

/// Kong's configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Groups that are let through.
    #[serde(alias = "whitelist")]
    allow: Option<Vec<String>>,
    /// Groups that are not.
    #[serde(alias = "blacklist")]
    deny: Option<Vec<String>>,
    /// Does not tell the upstream the groups.
    hide_groups_header: bool,
    /// Takes groups that another plugin has found before those of the consumer; a caller has either of them.
    always_use_authenticated_groups: bool,
}

/// On a consumer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerConf {
    /// The groups.
    groups: Vec<String>,
}

/// Groups by the numbers of consumers.
#[derive(Clone, Debug, Default)]
struct Groups(Vec<Arc<[Box<str>]>>);

impl Define for Acl {
    const NAME: &'static str = "acl";
    const PRIORITY: i32 = 950;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Lets consumers through, or refuses them, by their groups.";
    const EXAMPLE: &'static str = "allow: [admins]\n";
    const AUTH: bool = true;

    type Conf = Conf;
    type ConsumerConf = ConsumerConf;

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.always_use_authenticated_groups {
            cx.warn(
                "always_use_authenticated_groups",
                "no effect: plugins find groups of callers without a consumer alone",
            );
        }
        let lists = [conf.allow.unwrap_or_default(), conf.deny.unwrap_or_default()];
        let [allow, deny] = lists;
        if allow.is_empty() == deny.is_empty() {
            let text = "exactly one of these fields must be non-empty: 'config.allow', 'config.deny'";
            cx.say([Invalid::new("", text)]);
            return None;
        }
        let allows = deny.is_empty();
        let groups = if allows { allow } else { deny }.into_iter().map(Into::into).collect();
        let headers = (!conf.hide_groups_header)
            .then(|| ["X-Consumer-Groups", "X-Authenticated-Groups"].map(FieldName::constant));
        Some(Compiled::build(move |build| Ok(Checked { allows, groups, headers, position: build.position })))
    }

    fn credentials(change: AuthChange<'_, ConsumerConf>) -> Result<Credentials, (usize, Invalid)> {
        let mut groups = change.held::<Groups>().cloned().unwrap_or_default();
        for gone in change.gone.iter().flatten() {
            if let Some(place) = groups.0.get_mut(gone.who.consumer as usize) {
                *place = Arc::default();
            }
        }
        for (at, entry) in change.came.iter().enumerate() {
            let entry = entry.map_err(|fault| (at, fault))?;
            let place = entry.who.consumer as usize;
            if groups.0.len() <= place {
                groups.0.resize(place + 1, Arc::default());
            }
            if let Some(place) = groups.0.get_mut(place) {
                *place = entry.conf.groups.into_iter().map(Into::into).collect();
            }
        }
        Ok(Arc::new(groups))
    }
}

/// An instance.
#[derive(Debug)]
struct Checked {
    /// True if the listed groups are let through, false if all others are.
    allows: bool,
    groups: Box<[Box<str>]>,
    /// Fields with the groups of a consumer, and with those that another plugin has found.
    headers: Option<[FieldName; 2]>,
    position: u8,
}

impl Plugin for Checked {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut text = cx.take_scratch();
        let of_consumer = |who: ConsumerMatch| {
            let held = cx.credentials::<Groups>(self.position).and_then(|all| all.0.get(who.consumer as usize));
            held.map(|groups| &**groups).unwrap_or_default()
        };
        let (who, alone) = (cx.consumer(), groups_without_consumer(cx));
        let Some(held) = who.map(of_consumer).or(alone) else {
            cx.put_scratch(text);
            return body::error(cx, 401, "Unauthorized", &[]);
        };
        let is_listed = held.iter().any(|group| self.groups.contains(group));
        for group in held {
            if !text.is_empty() {
                text.extend_from_slice(b", ");
            }
            text.extend_from_slice(group.as_bytes());
        }
        // A caller without a consumer and without groups passes nowhere.
        let passes = is_listed == self.allows && (who.is_some() || !held.is_empty());
        if passes && let Some([of_consumer, found]) = &self.headers {
            cx.request_mut().set_field(if who.is_some() { of_consumer } else { found }, &text);
        }
        cx.put_scratch(text);
        if passes { Flow::Continue } else { body::error(cx, 403, "You cannot consume this service", &[]) }
    }
}
