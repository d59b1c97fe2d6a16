//! References: those that keep a resource from being deleted, and those that a resource lacks.

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use weir_store::{Item, Key, Kind};

use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::request::Request;
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

    /// Resources that refer to a resource.
    pub(crate) async fn references(&self, request: &Request) -> Outcome {
        let key = request.query.get("key").unwrap_or_default();
        let key = key.parse::<Key>().map_err(|error| Answer::bad(format!("key: {error}")))?;
        let _turn = self.turns.list().await?;
        let listing = self.configuration.listing(None).await.map_err(|error| Answer::store(&error))?;
        let search = tokio::task::spawn_blocking(move || {
            let (mut found, mut total) = (Vec::new(), 0usize);
            for item in &listing.items {
                if !refers(item, &key) {
                    continue;
                }
                total += 1;
                if found.len() < MOST_SHOWN {
                    let value: Value = serde_json::from_str(&item.value).unwrap_or_default();
                    found.push(json!({ "key": item.key.to_string(), "name": value.get("name") }));
                }
            }
            json!({ "key": key.to_string(), "total": total, "references": found })
        });
        let told = search.await.map_err(|panicked| {
            tracing::error!(%panicked, "references could not be looked for");
            Answer::internal()
        })?;
        Ok(Answer::json(StatusCode::OK, &told))
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

/// Resources in an answer about references.
const MOST_SHOWN: usize = 200;

/// True if a resource refers to another one.
fn refers(item: &Item, key: &Key) -> bool {
    let kind = item.key.kind();
    if kind.is_nested() && kind.section() == key.kind() {
        return item.key.owner() == Some(key.id());
    }
    // Few have the id in them anywhere, so few are read.
    if item.key == *key || !item.value.contains(key.own_id()) {
        return false;
    }
    let Ok(value) = serde_json::from_str::<Map<String, Value>>(&item.value) else { return false };
    let is_it = |(kind, id): &Reference| *kind == key.kind() && id == key.id();
    of_plugins(&value).iter().any(is_it)
        || of_fields(kind, &value).iter().any(is_it)
        || match key.kind() {
            Kind::Plans => plans_of(&value).any(|plan| plan == key.id()),
            Kind::Routes | Kind::Services if kind == Kind::Plans => {
                let field = key.kind().plural();
                let access = value.get("access").and_then(Value::as_array).into_iter().flatten();
                let named = access.filter_map(|entry| entry.get(field)?.as_array()).flatten();
                named.filter_map(id_text).any(|id| id == key.id())
            }
            _ => false,
        }
}

/// Plans that a consumer, a consumer group or a credential is on.
fn plans_of(value: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let by_plugin = value.get("plugins").and_then(|plugins| plugins.get("plan"));
    let own = [by_plugin, value.get("plan")].into_iter().flatten();
    own.filter_map(|plan| plan.get("plans")?.as_array()).flatten().filter_map(Value::as_str)
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
    use super::{Item, Key, Kind, of_fields, of_plugins, refers};
    use serde_json::json;

    #[test]
    fn resources_know_who_refers_to_them() {
        let item = |key: &str, value: serde_json::Value| Item {
            key: key.parse().expect("a key"),
            value: value.to_string().into(),
            created: 1,
            modified: 1,
        };
        let gold = json!({ "plan": { "plans": ["gold"] } });
        for (key, item, expected) in [
            ("upstreams/u", item("routes/1", json!({ "upstream_id": "u" })), true),
            ("upstreams/u", item("routes/1", json!({ "upstream_id": "uu" })), false),
            ("upstreams/u", item("routes/1", json!({ "service_id": "u" })), false),
            ("upstreams/u", item("upstreams/u", json!({ "id": "u" })), false),
            ("consumers/jack", item("consumers/jack/credentials/c", json!({})), true),
            ("consumers/jack", item("consumers/jill/credentials/jack", json!({})), false),
            ("plans/gold", item("consumers/jack/credentials/c", gold.clone()), true),
            ("plans/gold", item("consumers/jack", json!({ "plugins": gold })), true),
            ("plans/silver", item("consumers/jack", json!({ "desc": "silver" })), false),
            ("routes/1", item("plans/gold", json!({ "access": [{ "routes": ["1"] }] })), true),
            ("services/1", item("plans/gold", json!({ "access": [{ "routes": ["1"] }] })), false),
        ] {
            assert_eq!(refers(&item, &key.parse::<Key>().expect("a key")), expected, "{key} {item:?}");
        }
    }

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
