//! From a configuration of Kong's to a rules file in APISIX's form, with a comment for everything that changes.
//!
//! | Kong | rules file |
//! |---|---|
//! | service | service with its upstream and plugins |
//! | route | route: paths and hosts, or conditions and `priority` where Kong's order needs them ([`order`]) |
//! | `strip_path`, path of the service | `proxy-rewrite` |
//! | global plugin | global rule; written at each service where a more specific configuration takes its place somewhere |
//! | consumer | consumer with credentials, groups as the label `groups` |
//! | plugin without a counterpart | left out where it only reports; else its requests are answered with 503 |

mod order;
mod plugins;
mod rewrite;
mod values;
mod yaml;

use std::collections::HashSet;

use serde_json::{Map, Value, json};
use weir_config::{Entity, Lowered, ResourceKind};

use order::Order;
use plugins::Made;

use crate::lower::{ANSWERS, GLOBAL, LAYER, NO_ROUTE};

/// A rules file in APISIX's form.
#[derive(Debug)]
pub struct Converted {
    /// The text.
    pub text: String,
    /// Places of the configuration that have no counterpart, with what is done instead.
    pub missing: Vec<String>,
}

/// An item with the comments that are written before it.
struct Item {
    value: Map<String, Value>,
    notes: Vec<String>,
}

/// Converts a lowered configuration. `source` names it in the comments.
#[must_use]
pub fn convert(lowered: &Lowered, source: &str) -> Converted {
    let mut conversion = Conversion::new(lowered);
    let sections = [
        (ResourceKind::Ssls, conversion.copied(lowered, ResourceKind::Ssls)),
        (ResourceKind::GlobalRules, conversion.global_rules()),
        (ResourceKind::Services, conversion.services(lowered)),
        (ResourceKind::Routes, conversion.routes(lowered)),
        (ResourceKind::StreamRoutes, conversion.stream_routes(lowered)),
        (ResourceKind::Consumers, conversion.consumers(lowered)),
        (ResourceKind::Plans, conversion.copied(lowered, ResourceKind::Plans)),
    ];
    let missing = conversion.missing;
    let mut text = format!("# Made from {source}, a configuration of Kong's.\n#\n");
    for line in CHANGES {
        text.push_str(&format!("# {line}\n"));
    }
    if missing.is_empty() {
        text.push_str("#\n# Everything has a counterpart.\n");
    } else {
        text.push_str("#\n# Without a counterpart:\n");
        missing.iter().for_each(|line| yaml::comment(line, "# - ", &mut text));
    }
    for (kind, items) in sections.into_iter().filter(|(_, items)| !items.is_empty()) {
        text.push_str(&format!("\n{}:\n", kind.directory()));
        for item in items {
            item.notes.iter().for_each(|note| yaml::comment(note, "  # ", &mut text));
            yaml::item(&item.value, &mut text);
        }
    }
    text.push_str("#END\n");
    Converted { text, missing }
}

/// Changes that concern every request.
const CHANGES: [&str; 6] = [
    "For all requests: errors have APISIX's bodies, and the fields X-Kong-*, Via, X-Forwarded-Path and X-Forwarded-Prefix",
    "are gone. Hosts are compared without regard to case. Of plugins on several levels those of a consumer come first, then",
    "those of a route, then those of its service, as in Kong; they run in APISIX's order of priorities. Windows of limits",
    "begin with the first request of a key, not with the minute of the clock, and refused requests are told X-RateLimit-Reset.",
    "The name of the consumer is told in X-Consumer-Username. Ports are the gateway's own (9080, 9443) unless settings say",
    "otherwise. Variables of the environment are written as the values that they had.",
];

struct Conversion {
    /// Kong's plugins for all requests.
    global: Map<String, Value>,
    /// Names of plugins that some more specific place configures as well.
    specific: HashSet<String>,
    /// Settings of the services by their ids, for the routes that lie over them.
    services: Vec<(String, Made)>,
    /// True if secrets of `jwt` are written in base64.
    has_base64_secrets: bool,
    missing: Vec<String>,
}

impl Conversion {
    fn new(lowered: &Lowered) -> Self {
        let global = lowered.items(ResourceKind::PluginConfigs).find(|(item, _)| id(item) == GLOBAL);
        let global = global.map(|(item, _)| plugins_of(&item.to_json())).unwrap_or_default();
        let mut specific = HashSet::new();
        let mut has_base64_secrets = false;
        let kinds = [
            ResourceKind::Services,
            ResourceKind::Routes,
            ResourceKind::Consumers,
            ResourceKind::ConsumerGroups,
            ResourceKind::PluginConfigs,
        ];
        for (kind, item) in kinds.into_iter().flat_map(|kind| lowered.items(kind).map(move |(item, _)| (kind, item))) {
            let plugins = plugins_of(&item.to_json());
            has_base64_secrets |= plugins.get("jwt").is_some_and(|conf| conf["secret_is_base64"] == true);
            // Of these a consumer has its groups and its names.
            let is_own = |name: &str| kind == ResourceKind::Consumers && matches!(name, "acl" | "consumer");
            if kind != ResourceKind::PluginConfigs {
                specific.extend(plugins.into_iter().map(|(name, _)| name).filter(|name| !is_own(name)));
            }
        }
        Self { global, specific, services: Vec::new(), has_base64_secrets, missing: Vec::new() }
    }

    /// Items whose form is the same.
    fn copied(&mut self, lowered: &Lowered, kind: ResourceKind) -> Vec<Item> {
        let item = |(item, _): (&weir_config::Node, _)| {
            let Value::Object(value) = item.to_json() else { return None };
            Some(Item { value, notes: Vec::new() })
        };
        lowered.items(kind).filter_map(item).collect()
    }

    /// The plugins for all requests that no other configuration takes the place of.
    fn global_rules(&mut self) -> Vec<Item> {
        let own: Map<String, Value> = self.global.clone();
        let own = own.into_iter().filter(|(name, _)| !self.specific.contains(name)).collect();
        let made = self.made(&own, "plugins");
        if made.plugins().is_empty() {
            return Vec::new();
        }
        let value = json!({ "id": GLOBAL, "plugins": made.plugins() });
        vec![item(value, made.notes)]
    }

    /// The global plugins that other configurations take the place of, under those of one place.
    fn with_global(&self, own: Map<String, Value>) -> Map<String, Value> {
        let mut all = own;
        for (name, conf) in self.global.iter().filter(|(name, _)| self.specific.contains(*name)) {
            if !all.contains_key(name) {
                all.insert(name.clone(), conf.clone());
            }
        }
        all
    }

    fn made(&mut self, plugins: &Map<String, Value>, place: &str) -> Made {
        let made = Made::of(plugins);
        self.missing.extend(made.missing.iter().map(|text| format!("{place}: {text}")));
        made
    }

    fn services(&mut self, lowered: &Lowered) -> Vec<Item> {
        let mut items = Vec::new();
        for (node, entity) in lowered.items(ResourceKind::Services) {
            let Value::Object(mut value) = node.to_json() else { continue };
            let plugins = self.with_global(plugins_of(&Value::Object(value.clone())));
            let made = self.made(&plugins, path(entity));
            put(&mut value, "plugins", made.plugins());
            let notes = made.notes.clone();
            self.services.push((text(&value, "id"), made));
            items.push(Item { value, notes });
        }
        items
    }

    fn routes(&mut self, lowered: &Lowered) -> Vec<Item> {
        let order = Order::of(lowered);
        let mut items = Vec::new();
        let routes = lowered.items(ResourceKind::Routes).filter(|(item, _)| id(item) != NO_ROUTE);
        for (node, entity) in routes {
            let Value::Object(mut value) = node.to_json() else { continue };
            value.remove("plugin_config_id");
            let mut plugins = plugins_of(&Value::Object(value.clone()));
            let behaviour = plugins.remove("route").unwrap_or_default();
            let service = value.get("service_id").and_then(Value::as_str).unwrap_or_default();
            let of_service = self.services.iter().position(|(id, _)| id == service);
            if of_service.is_none() {
                plugins = self.with_global(plugins);
            }
            let mut made = self.made(&plugins, path(entity));
            let gone = rewrite::apply(&behaviour, &mut made);
            self.missing.extend(gone.into_iter().map(|text| format!("{}: {text}", path(entity))));
            if let Some((_, under)) = of_service.and_then(|at| self.services.get(at)) {
                made.lie_over(under, &plugins);
            }
            if of_service.is_none() && !made.answers() {
                made.close("a route without a service: no plugin of it answers");
            }
            put(&mut value, "plugins", made.plugins());
            let mut notes = made.notes;
            let matching = entity.and_then(|entity| entity.matching.as_ref());
            for (at, piece) in order.pieces(text(&value, "id").as_str(), matching).into_iter().enumerate() {
                let mut value = value.clone();
                if at > 0 {
                    let more = format!("{}-{at}", text(&value, "id"));
                    value.insert("id".to_owned(), more.into());
                }
                piece.write(&mut value);
                notes.extend(piece.note);
                items.push(Item { value, notes: std::mem::take(&mut notes) });
            }
        }
        items
    }

    fn stream_routes(&mut self, lowered: &Lowered) -> Vec<Item> {
        let mut items = Vec::new();
        for (node, entity) in lowered.items(ResourceKind::StreamRoutes) {
            let Value::Object(mut value) = node.to_json() else { continue };
            value.remove("plugin_config_id");
            let made = self.made(&plugins_of(&Value::Object(value.clone())), path(entity));
            put(&mut value, "plugins", made.plugins());
            items.push(Item { value, notes: made.notes });
        }
        items
    }

    fn consumers(&mut self, lowered: &Lowered) -> Vec<Item> {
        let mut items = Vec::new();
        for (node, entity) in lowered.items(ResourceKind::Consumers) {
            let Value::Object(mut value) = node.to_json() else { continue };
            let mut plugins = plugins_of(&Value::Object(value.clone()));
            let identity = plugins.remove("consumer").unwrap_or_default();
            let groups = plugins.remove("acl").map(|acl| acl["groups"].to_string());
            let (mut notes, mut labels) = (Vec::new(), Map::new());
            if let Some(custom_id) = identity["custom_id"].as_str() {
                labels.insert("custom_id".to_owned(), custom_id.into());
            }
            if let Some(groups) = groups {
                labels.insert("groups".to_owned(), groups.into());
                notes.push("The groups of acl are the label groups.".to_owned());
            }
            if !labels.is_empty() {
                value.insert("labels".to_owned(), labels.into());
            }
            let mut made = self.made(&plugins, path(entity));
            if made.refuse_rewrites() {
                let text = "request-transformer of a consumer: requests are answered with 503";
                self.missing.push(format!("{}: {text}", path(entity)));
            }
            let has_more = value.remove("group_id").is_some();
            if has_more || entity.is_some_and(|entity| !entity.on_routes.is_empty()) {
                let text = "plugins of consumer groups, or of a consumer on single routes";
                made.close(text);
                self.missing.push(format!("{}: {text}: requests of the consumer are answered with 503", path(entity)));
            }
            put(&mut value, "plugins", made.plugins());
            self.credentials(&mut value, path(entity), &mut notes);
            notes.extend(made.notes);
            items.push(Item { value, notes });
        }
        items
    }

    fn credentials(&mut self, consumer: &mut Map<String, Value>, place: &str, notes: &mut Vec<String>) {
        let Some(Value::Array(held)) = consumer.remove("credentials") else { return };
        let mut kept = Vec::new();
        for credential in held {
            match plugins::credential(&credential, self.has_base64_secrets) {
                Ok(made) => kept.push(made),
                Err(reason) => self.missing.push(format!("{place}: a credential is left out: {reason}")),
            }
        }
        if self.has_base64_secrets && kept.iter().any(|made| !made["plugins"]["jwt-auth"].is_null()) {
            notes.push("Secrets of jwt are taken for base64, as secret_is_base64 of the plugin says.".to_owned());
        }
        if !kept.is_empty() {
            consumer.insert("credentials".to_owned(), kept.into());
        }
    }
}

fn item(value: Value, notes: Vec<String>) -> Item {
    let Value::Object(value) = value else { return Item { value: Map::new(), notes } };
    Item { value, notes }
}

fn id(item: &weir_config::Node) -> &str {
    item.get("id").and_then(weir_config::Node::as_str).unwrap_or_default()
}

fn path(entity: Option<&Entity>) -> &str {
    entity.map_or("", |entity| entity.path.as_str())
}

fn text(item: &Map<String, Value>, field: &str) -> String {
    item.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The plugins of an item in Kong's form, without those that stand for no plugin of a user.
fn plugins_of(item: &Value) -> Map<String, Value> {
    let plugins = item["plugins"].as_object().cloned().unwrap_or_default();
    plugins.into_iter().filter(|(name, _)| name != ANSWERS && name != NO_ROUTE && !name.starts_with(LAYER)).collect()
}

/// Puts plugins into an item, or takes the field out where there is none.
fn put(item: &mut Map<String, Value>, field: &str, plugins: Map<String, Value>) {
    item.remove(field);
    if !plugins.is_empty() {
        item.insert(field.to_owned(), plugins.into());
    }
}
