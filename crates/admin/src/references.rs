//! References: those that keep a resource from being deleted, and those that a resource lacks.

use serde_json::{Map, Value};
use weir_store::{Key, Kind};

use crate::answer::Answer;
use crate::api::Api;
use crate::write::id_text;

/// Kinds whose plugins are built only together with what uses them: what they refer to is missed no sooner.
const LAID_UNDER: [Kind; 3] = [Kind::Services, Kind::PluginConfigs, Kind::ConsumerGroups];

/// Kinds that plugins refer to.
const NEEDED_BY_PLUGINS: [Kind; 2] = [Kind::Upstreams, Kind::Protos];

/// A kind that is referred to, and the id.
type Reference = (Kind, String);

impl Api {
    /// Refuses to delete a resource that another one refers to, though nothing would miss it yet.
    pub(crate) async fn check_unused_by_plugins(&self, key: &Key) -> Result<(), Answer> {
        if NEEDED_BY_PLUGINS.contains(&key.kind()) && self.check_unused_among(key, &LAID_UNDER).await.is_err() {
            return self.check_unused(key).await;
        }
        Ok(())
    }

    /// Refuses to delete a resource that another one refers to.
    pub(crate) async fn check_unused(&self, key: &Key) -> Result<(), Answer> {
        self.check_unused_among(key, Kind::ranked()).await
    }

    async fn check_unused_among(&self, key: &Key, kinds: &[Kind]) -> Result<(), Answer> {
        if !key.kind().is_referred_to() && !NEEDED_BY_PLUGINS.contains(&key.kind()) {
            return Ok(());
        }
        for kind in kinds.iter().copied() {
            let listing = self.configuration.store().list(Some(kind)).await.map_err(|error| Answer::store(&error))?;
            let key = key.clone();
            // With many routes this takes a while, which others shall not wait for.
            let search = tokio::task::spawn_blocking(move || {
                let refers = |value: &str| {
                    // Few have the id in them anywhere, so few are read.
                    let value = Some(value).filter(|value| value.contains(key.id()));
                    let value: Map<String, Value> = serde_json::from_str(value?).ok()?;
                    let is_it = |(kind, id): &Reference| *kind == key.kind() && id == key.id();
                    if of_plugins(&value).iter().any(is_it) {
                        return Some(true);
                    }
                    of_fields(kind, &value).iter().any(is_it).then_some(false)
                };
                let (user, by_plugin) = listing.items.iter().find_map(|item| Some((item, refers(&item.value)?)))?;
                let (what, directly) =
                    (key.kind().entry().noun, if key.kind() == Kind::Services { " directly" } else { "" });
                let id = user.key.id();
                let by = match by_plugin {
                    true if key.kind() == Kind::Upstreams => format!("plugin in {}", named_by_plugins(kind)),
                    _ => kind.entry().noun.to_owned(),
                };
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

    /// Missing reference of a value, in APISIX's words.
    pub(crate) async fn missing_reference(&self, kind: Kind, value: &Map<String, Value>) -> Option<String> {
        for (to, id) in of_fields(kind, value).into_iter().chain(of_plugins(value)) {
            let key = Key::new(to, &id);
            let noun = to.entry().noun;
            let fault = match self.configuration.store().get(&key).await {
                Ok(None) => "response code: 404",
                Ok(Some(item)) if to == Kind::Ssls && !is_for_upstreams(&item.value) => "wrong ssl type",
                _ => continue,
            };
            return Some(format!("failed to fetch {noun} info by {noun} id [{id}], {fault}"));
        }
        None
    }
}

/// True for a certificate that is shown to upstreams.
fn is_for_upstreams(ssl: &str) -> bool {
    serde_json::from_str(ssl).is_ok_and(|ssl: Value| ssl.get("type").and_then(Value::as_str) == Some("client"))
}

/// References of a resource itself, in the order in which APISIX checks them.
fn of_fields(kind: Kind, value: &Map<String, Value>) -> Vec<Reference> {
    let at = |path: &str| {
        let mut steps = path.split('.');
        let first = value.get(steps.next()?)?;
        id_text(steps.try_fold(first, |value, step| value.get(step))?)
    };
    let references = kind.entry().references.iter();
    references.filter_map(|(field, to)| Some((*to, at(field)?))).collect()
}

/// References of the plugins of a resource.
fn of_plugins(value: &Map<String, Value>) -> Vec<Reference> {
    let plugins = value.get("plugins");
    let proto = plugins.and_then(|plugins| id_text(plugins.get("grpc-transcode")?.get("proto_id")?));
    let rules = plugins.and_then(|plugins| plugins.get("traffic-split")?.get("rules")?.as_array());
    let weighted = rules.into_iter().flatten().filter_map(|rule| rule.get("weighted_upstreams")?.as_array());
    let upstreams =
        weighted.flatten().filter_map(|upstream| Some((Kind::Upstreams, id_text(upstream.get("upstream_id")?)?)));
    upstreams.chain(proto.map(|id| (Kind::Protos, id))).collect()
}

/// Name of a kind where a plugin of one of its resources is the reason.
fn named_by_plugins(kind: Kind) -> &'static str {
    match kind {
        Kind::GlobalRules => "global_rules",
        other => other.entry().name,
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, of_fields, of_plugins};
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
            (
                Kind::Routes,
                json!({"plugins": {"grpc-transcode": {"proto_id": 1, "service": "a.S", "method": "M"}}}),
                vec![(Kind::Protos, "1")],
            ),
        ];
        for (kind, value, expected) in cases {
            let value = value.as_object().unwrap();
            let found = [of_fields(kind, value), of_plugins(value)].concat();
            let found: Vec<(Kind, &str)> = found.iter().map(|(kind, id)| (*kind, id.as_str())).collect();
            assert_eq!(found, expected, "{value:?}");
        }
    }
}
