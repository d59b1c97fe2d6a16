//! Who refers to whom: what keeps a resource from being deleted, and what a resource needs to be there.

use serde_json::{Map, Value};
use weir_store::{Key, Kind};

use crate::answer::Answer;
use crate::api::Api;
use crate::kinds::Resource;

/// Kinds whose resources refer to others, in the order in which they are named as the reason not to delete one.
const REFERRING: [Kind; 7] = [
    Kind::Routes,
    Kind::Services,
    Kind::Consumers,
    Kind::Upstreams,
    Kind::PluginConfigs,
    Kind::ConsumerGroups,
    Kind::GlobalRules,
];

/// A kind that is referred to, and the id.
type Reference = (Kind, String);

impl Api {
    /// Refuses to delete a resource that another one refers to.
    pub(crate) async fn check_unused(&self, key: &Key) -> Result<(), Answer> {
        if !matches!(
            key.kind(),
            Kind::Upstreams | Kind::Services | Kind::PluginConfigs | Kind::ConsumerGroups | Kind::Ssls
        ) {
            return Ok(());
        }
        for kind in REFERRING {
            let listing = self.configuration.store().list(Some(kind)).await.map_err(|error| Answer::store(&error))?;
            let key = key.clone();
            // With many routes this takes a while, which others shall not wait for.
            let search = tokio::task::spawn_blocking(move || {
                let refers = |value: &str| {
                    // Few have the id in them anywhere, so few are read.
                    value.contains(key.id())
                        && serde_json::from_str(value).is_ok_and(|value| {
                            references(kind, &value).iter().any(|to| *to == (key.kind(), key.id().to_owned()))
                        })
                };
                let user = listing.items.iter().find(|item| refers(&item.value))?;
                let (what, directly) =
                    (Resource::of(key.kind()).noun, if key.kind() == Kind::Services { " directly" } else { "" });
                let (by, id) = (Resource::of(kind).noun, user.key.id());
                Some(format!("can not delete this {what}{directly}, {by} [{id}] is still using it now"))
            });
            match search.await {
                Ok(None) => {}
                Ok(Some(message)) => return Err(Answer::bad(message)),
                Err(panicked) => {
                    tracing::error!(%panicked, "references could not be looked for");
                    return Err(Answer::internal());
                }
            }
        }
        Ok(())
    }

    /// What a value refers to that is not there, in APISIX's words.
    pub(crate) async fn missing_reference(&self, kind: Kind, value: &Map<String, Value>) -> Option<String> {
        for (to, id) in references(kind, value) {
            let key = Key::new(to, &id);
            if let Ok(None) = self.configuration.store().get(&key).await {
                let noun = Resource::of(to).noun;
                return Some(format!("failed to fetch {noun} info by {noun} id [{id}], response code: 404"));
            }
        }
        None
    }
}

/// Everything that a resource refers to.
fn references(kind: Kind, value: &Map<String, Value>) -> Vec<Reference> {
    let mut found = Vec::new();
    let mut field = |of: &Map<String, Value>, name: &str, to: Kind| match of.get(name) {
        Some(Value::String(id)) => found.push((to, id.clone())),
        Some(Value::Number(id)) => found.push((to, id.to_string())),
        _ => {}
    };
    match kind {
        Kind::Routes => {
            field(value, "upstream_id", Kind::Upstreams);
            field(value, "service_id", Kind::Services);
            field(value, "plugin_config_id", Kind::PluginConfigs);
        }
        Kind::Services => field(value, "upstream_id", Kind::Upstreams),
        Kind::Consumers => field(value, "group_id", Kind::ConsumerGroups),
        _ => {}
    }
    let upstream = if kind == Kind::Upstreams { Some(value) } else { value.get("upstream").and_then(Value::as_object) };
    if let Some(tls) = upstream.and_then(|upstream| upstream.get("tls")).and_then(Value::as_object) {
        field(tls, "client_cert_id", Kind::Ssls);
    }
    let rules = value.get("plugins").and_then(|plugins| plugins.get("traffic-split")?.get("rules")?.as_array());
    for rule in rules.into_iter().flatten() {
        let weighted = rule.get("weighted_upstreams").and_then(Value::as_array);
        for upstream in weighted.into_iter().flatten().filter_map(Value::as_object) {
            field(upstream, "upstream_id", Kind::Upstreams);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Kind, references};
    use serde_json::json;

    #[test]
    fn references_are_found() {
        let cases = [
            (Kind::Routes, json!({"uri": "/", "upstream_id": "u"}), vec![(Kind::Upstreams, "u")]),
            (
                Kind::Routes,
                json!({"upstream_id": 7, "service_id": "s"}),
                vec![(Kind::Upstreams, "7"), (Kind::Services, "s")],
            ),
            (Kind::Routes, json!({"plugin_config_id": "p"}), vec![(Kind::PluginConfigs, "p")]),
            (
                Kind::Services,
                json!({"upstream_id": "u", "service_id": "no field of a service"}),
                vec![(Kind::Upstreams, "u")],
            ),
            (Kind::Consumers, json!({"username": "a", "group_id": "g"}), vec![(Kind::ConsumerGroups, "g")]),
            (Kind::Upstreams, json!({"tls": {"client_cert_id": "c"}}), vec![(Kind::Ssls, "c")]),
            (Kind::Services, json!({"upstream": {"tls": {"client_cert_id": "c"}}}), vec![(Kind::Ssls, "c")]),
            (
                Kind::GlobalRules,
                json!({"plugins": {"traffic-split": {"rules": [{"weighted_upstreams": [{"upstream_id": 1}, {"weight": 2}]}]}}}),
                vec![(Kind::Upstreams, "1")],
            ),
        ];
        for (kind, value, expected) in cases {
            let found = references(kind, value.as_object().unwrap());
            let found: Vec<(Kind, &str)> = found.iter().map(|(kind, id)| (*kind, id.as_str())).collect();
            assert_eq!(found, expected, "{value}");
        }
    }
}
