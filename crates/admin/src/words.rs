//! What is wrong with a change, in the words that clients of APISIX know. Where it has none, the words are ours.

use hyper::StatusCode;
use serde_json::{Map, Value};
use weir_config::diagnostic::lua_type_name;
use weir_config::node::{Step, steps};
use weir_config::{Diagnostic, Fault, Mark};
use weir_store::{Key, Kind};

use crate::Refused;
use crate::answer::Answer;
use crate::api::Api;
use crate::kinds::Resource;

/// What a route without anything to do with its requests is told.
const ROUTE_ALTERNATIVES: &str = r#"object matches none of the required: ["plugins","uri"] or ["upstream","uri"] or ["upstream_id","uri"] or ["service_id","uri"] or ["plugins","uris"] or ["upstream","uris"] or ["upstream_id","uris"] or ["service_id","uris"] or ["script","uri"] or ["script","uris"]"#;

const NONE_MATCHES: &str = "value should match only one schema, but matches none";
const BOTH_MATCH: &str = "value should match only one schema, but matches both schemas 1 and 2";
const NONE_REQUIRED: &str = "object matches none of the required";

impl Api {
    /// The answer to a change that was refused; `value` is what should have been stored as `key`.
    pub(crate) async fn refusal(&self, key: &Key, refused: Refused, value: Option<&Map<String, Value>>) -> Answer {
        let found = match refused {
            Refused::Store(error) => return Answer::store(&error),
            Refused::ReadOnly(reason) => return Answer::error(StatusCode::METHOD_NOT_ALLOWED, reason),
            Refused::Invalid(found) => found,
        };
        let own: Vec<Diagnostic> = found.iter().filter_map(|found| inside(found, key)).collect();
        let first = worst(&own);
        // APISIX looks at the form of a resource first, then at what it refers to, then at its plugins.
        let formal = first.is_some_and(|found| rank(found) == Rank::Form);
        if let (false, Some(value)) = (formal, value)
            && let Some(message) = self.missing_reference(key.kind(), value).await
        {
            return Answer::bad(message);
        }
        match (first, found.iter().find(|found| found.is_error()).or(found.first())) {
            (Some(found), _) => Answer::bad(of_item(found, Resource::of(key.kind()), value)),
            // Something else would be wrong with this change.
            (None, Some(found)) => Answer::bad(format!("invalid configuration: {}", plain(found, &steps(&found.path)))),
            (None, None) => Answer::bad("invalid configuration"),
        }
    }
}

/// What is wrong with a resource. The path is that inside it.
fn of_item(found: &Diagnostic, resource: &Resource, value: Option<&Map<String, Value>>) -> String {
    let steps = steps(&found.path);
    let names: Vec<&str> = steps.iter().filter_map(name).collect();
    let special = match (resource.kind, names.as_slice()) {
        (Kind::Upstreams, names) | (Kind::Routes | Kind::Services, ["upstream", names @ ..]) => {
            of_upstream(found, names)
        }
        (Kind::Ssls, names) => of_ssl(found, names, value),
        (Kind::Secrets, names) => of_secret(found, names, value),
        (Kind::PluginMetadata, ["id"]) if found.message.starts_with("there is no plugin ") => {
            Some("invalid plugin name".to_owned())
        }
        (Kind::PluginMetadata, ["id"]) if found.message.starts_with("not supported yet: the plugin ") => {
            let plugin = found.message.trim_start_matches("not supported yet: the plugin ");
            Some(format!("invalid plugin name: the plugin {plugin} is known and not supported yet"))
        }
        (Kind::PluginMetadata, ["id"]) if found.message.ends_with(" is not in the setting `plugins`") => {
            Some(format!("invalid plugin name: {}", found.message))
        }
        _ => None,
    };
    if let Some(message) = special {
        return message;
    }
    match (rank(found), names.as_slice()) {
        (Rank::Plugin, ["plugins", plugin, ..]) => {
            let conf = value.and_then(|value| value.get("plugins")?.get(plugin));
            let message = of_plugin(found, plugin, &steps[2..], conf);
            match resource.kind {
                // Whether the plugin exists is said without more words.
                Kind::Consumers | Kind::Credentials
                    if !["only ", "duplicate "].iter().any(|w| message.starts_with(w)) =>
                {
                    format!("invalid plugins configuration: {message}")
                }
                _ => message,
            }
        }
        (Rank::Rule, ["uris"]) if found.message == "only one of uri and uris is allowed" => {
            format!("invalid configuration: allOf 1 failed: {BOTH_MATCH}")
        }
        (Rank::Rule, [field]) if found.message.starts_with("only one of ") => {
            format!("only one of {} or {field} is allowed", field.trim_end_matches('s'))
        }
        (Rank::Rule, []) if resource.kind == Kind::Routes && found.message == "a route needs uri or uris" => {
            format!("invalid configuration: allOf 1 failed: {NONE_MATCHES}")
        }
        (Rank::Rule, []) if resource.kind == Kind::Routes && found.message.starts_with("a route needs ") => {
            format!("invalid configuration: {ROUTE_ALTERNATIVES}")
        }
        (Rank::Rule, ["vars", ..]) => of_conditions(found, &steps[1..]),
        _ => format!("invalid configuration: {}", phrase(found, &steps)),
    }
}

/// What is wrong with an item of a section.
pub(crate) fn of_listed(section: &str, found: &Diagnostic, item: &Value) -> String {
    let named = |kind: &Kind| *kind != Kind::Credentials && kind.directory() == section;
    let kind = Kind::ALL.into_iter().find(named).unwrap_or(Kind::Credentials);
    of_item(found, Resource::of(kind), item.as_object())
}

/// What is wrong with a resource that is only looked at: without the words that tell of a change.
pub(crate) fn of_check(section: &str, found: &Diagnostic, item: &Value) -> String {
    let message = of_listed(section, found, item);
    message.strip_prefix("invalid configuration: ").map(str::to_owned).unwrap_or(message)
}

/// What is told of a value that is no resource at all.
pub(crate) fn no_object(value: &Value) -> String {
    format!("invalid configuration: wrong type: expected object, got {}", lua_type_name(value))
}

/// What is told of a consumer whose name can be none.
pub(crate) fn no_username(name: &str) -> String {
    let fault = Fault::Pattern { pattern: r"^[a-zA-Z0-9_\-]+$".to_owned(), found: name.to_owned() };
    let found = Diagnostic::error(Mark::NONE, "username", "").with_fault(fault);
    format!("invalid configuration: {}", phrase(&found, &steps("username")))
}

/// What is wrong with an upstream beyond its schema, if APISIX has words for it. The names lead to it inside the upstream.
fn of_upstream(found: &Diagnostic, names: &[&str]) -> Option<String> {
    let message = found.message.as_str();
    match names {
        ["type"] if message.starts_with("type: chash needs key: ") => Some("missing key".to_owned()),
        // Its schema depends on what is hashed, and is not that of a field.
        ["key"] if matches!(found.fault.as_deref(), Some(Fault::Pattern { .. })) => {
            Some(format!("invalid configuration: {}", phrase(found, &[])))
        }
        ["pass_host"] if message == "pass_host: rewrite needs upstream_host" => {
            Some("`upstream_host` can't be empty when `pass_host` is `rewrite`".to_owned())
        }
        ["nodes", ..] if message.contains("an IPv6 address must stand in brackets") => {
            Some("invalid configuration: IPv6 address must be enclosed with '[' and ']'".to_owned())
        }
        ["nodes", node] if message.starts_with("expected a port from 1 to 65535") => {
            let port = node.rsplit_once(':')?.1.parse::<u64>().ok()?;
            Some(format!("invalid port {port}"))
        }
        _ => None,
    }
}

/// What is wrong with a certificate in other words than those of its fields.
fn of_ssl(found: &Diagnostic, names: &[&str], value: Option<&Map<String, Value>>) -> Option<String> {
    let message = found.message.as_str();
    let lacks = match (found.fault.as_deref(), names) {
        (Some(Fault::MissingField(field)), []) => matches!(field.as_str(), "cert" | "key"),
        (None, [] | ["snis"]) => {
            message.contains(" needs sni or snis") || message.starts_with("only one of sni and snis")
        }
        _ => false,
    };
    if lacks {
        // What a certificate needs depends on what it is for.
        let is_client = value.and_then(|value| value.get("type")?.as_str()) == Some("client");
        let clause = if is_client { "else" } else { "then" };
        return Some(format!("invalid configuration: {clause} clause did not match"));
    }
    message.contains(" certificates in certs, but ").then(|| "mismatched number of certs and keys".to_owned())
}

/// What is wrong with a secret manager: its schema is that of its kind.
fn of_secret(found: &Diagnostic, names: &[&str], value: Option<&Map<String, Value>>) -> Option<String> {
    let message = found.message.as_str();
    match names {
        ["id"] if message.starts_with("there is no secret manager ") => {
            let (manager, _) = value?.get("id")?.as_str()?.split_once('/')?;
            Some(format!("invalid secret manager: {manager}"))
        }
        [] => {
            let field = message.strip_prefix("vault needs ")?;
            Some(format!("invalid configuration: property \"{field}\" is required"))
        }
        _ => None,
    }
}

/// What is wrong with conditions: alone where APISIX says the same, else with the place inside them.
fn of_conditions(found: &Diagnostic, steps: &[Step]) -> String {
    const KNOWN: [&str; 3] = ["invalid operator '", "rule too short", "rule should be wrapped inside brackets"];
    let message = match KNOWN.iter().any(|known| found.message.starts_with(known)) {
        true => found.message.clone(),
        false => plain(found, steps),
    };
    format!("failed to validate the 'vars' expression: {message}")
}

fn of_plugin(found: &Diagnostic, plugin: &str, rest: &[Step], conf: Option<&Value>) -> String {
    let message = found.message.as_str();
    if let Some(conf) = conf.filter(|conf| !conf.is_object() && !conf.is_array()) {
        return format!("invalid plugin conf {conf} for plugin [{plugin}]");
    }
    if let (None, [Step::Name(meta), Step::Name(filter), rest @ ..]) = (&found.fault, rest)
        && meta == "_meta"
        && filter == "filter"
    {
        return of_conditions(found, rest);
    }
    // There they are told with the same words, but no place.
    if plugin == "traffic-split" && found.fault.is_none() && rest.last().and_then(name) == Some("vars") {
        let words = message.split_once("]: ").map_or(message, |(_, words)| words);
        let words = words.split_once(" (did you mean ").map_or(words, |(words, _)| words);
        let inner = Diagnostic { message: words.to_owned(), ..found.clone() };
        return format!("failed to check the configuration of plugin {plugin} err: {}", of_conditions(&inner, rest));
    }
    if found.fault.is_none() && rest.is_empty() {
        if message.starts_with("there is no plugin ") {
            return format!("unknown plugin [{plugin}]");
        }
        if message.starts_with("not supported yet: the plugin ") {
            return format!("unknown plugin [{plugin}]: it is not supported yet");
        }
        if message.ends_with(" is not in the setting `plugins`") {
            return format!("unknown plugin [{plugin}]: it is not in the setting `plugins`");
        }
        if message.starts_with("a credential takes authentication plugins only") {
            return "only supports auth type plugins in consumer credential".to_owned();
        }
        if let Some(id) = message.strip_prefix(&format!("the plugin {plugin} is in the global rule "))
            && let Some((id, _)) = id.split_once(" already")
        {
            return format!("plugin '{plugin}' already exists in global rule with id '{id}'");
        }
    }
    if found.fault.is_none() && message.contains(" have the same ") {
        return format!("duplicate key of plugin {plugin} found: {message}");
    }
    format!("failed to check the configuration of plugin {plugin} err: {}", phrase(found, rest))
}

/// Where in the order of APISIX's checks a finding belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The schema of the resource.
    Form,
    /// Rules among its fields.
    Rule,
    /// A plugin.
    Plugin,
}

fn rank(found: &Diagnostic) -> Rank {
    match steps(&found.path).as_slice() {
        [Step::Name(plugins), Step::Name(_), ..] if plugins == "plugins" => Rank::Plugin,
        _ if found.fault.is_some() => Rank::Form,
        _ => Rank::Rule,
    }
}

/// The error that APISIX would find first.
pub(crate) fn worst(found: &[Diagnostic]) -> Option<&Diagnostic> {
    // What follows from another error stands at the resource itself, and does not say what is wrong with it.
    let follows = |found: &Diagnostic| found.path.is_empty() && found.message.starts_with("an invalid global rule is ");
    found.iter().filter(|found| found.is_error()).min_by_key(|found| (follows(found), rank(found)))
}

/// A finding about a resource with the path inside it; `None` for one about something else. A path begins with the
/// resource (`routes/1.uri`) or its place in a list (`routes[0].uri`), of which only one is looked at in that case.
fn inside(found: &Diagnostic, key: &Key) -> Option<Diagnostic> {
    let rest = match found.path.strip_prefix(&key.to_string()) {
        Some(rest) if rest.is_empty() || rest.starts_with(['.', '[']) => rest,
        Some(_) => return None,
        None => {
            let rest = found.path.strip_prefix(key.kind().directory())?.strip_prefix('[')?;
            rest.split_once(']')?.1
        }
    };
    Some(Diagnostic { path: rest.trim_start_matches('.').to_owned(), ..found.clone() })
}

/// A finding with the way to its place, in the words of the JSON Schema library that APISIX uses.
fn phrase(found: &Diagnostic, steps: &[Step]) -> String {
    let Some(fault) = &found.fault else {
        return if found.message.starts_with("expected an IPv4 or IPv6 address, or a range of them ") {
            way(steps) + NONE_REQUIRED
        } else if let ([way_of_checks @ .., _], true) = (steps, found.message.starts_with("passive checks need active"))
        {
            format!(r#"{}{NONE_REQUIRED}: ["active"] or ["active","passive"]"#, way(way_of_checks))
        } else {
            plain(found, steps)
        };
    };
    let mut steps = steps;
    let message = match &**fault {
        Fault::WrongType { expected, found } => {
            // It is written in Lua, which has one type for lists and mappings, and one for null that is none of them.
            let found = match *found {
                "array" | "object" => "table",
                "null" => "userdata",
                other => other,
            };
            format!("wrong type: expected {expected}, got {found}")
        }
        Fault::NotInEnum => "matches none of the enum values".to_owned(),
        Fault::NoAlternative { inside } => {
            steps = steps.get(..steps.len().saturating_sub(*inside)).unwrap_or_default();
            // What is `anyOf` there and what is `oneOf` cannot be told from the forms.
            match steps.last().and_then(name) {
                Some(field) if field == "nodes" || field == "id" || field.ends_with("_id") => NONE_REQUIRED.to_owned(),
                _ => NONE_MATCHES.to_owned(),
            }
        }
        Fault::TooSmall { found, least, exclusive: false } => format!("expected {found} to be at least {least}"),
        Fault::TooSmall { found, least, exclusive: true } => format!("expected {found} to be greater than {least}"),
        Fault::TooLarge { found, most, exclusive: false } => format!("expected {found} to be at most {most}"),
        Fault::TooLarge { found, most, exclusive: true } => format!("expected {found} to be smaller than {most}"),
        Fault::Length { found, bound } if found < bound => {
            format!("string too short, expected at least {bound}, got {found}")
        }
        Fault::Length { found, bound } => format!("string too long, expected at most {bound}, got {found}"),
        Fault::Pattern { pattern, found } => {
            format!("failed to match pattern {} with {}", Value::from(pattern.as_str()), Value::from(found.as_str()))
        }
        Fault::Count { found, bound } if found < bound => format!("expect array to have at least {bound} items"),
        Fault::Count { bound, .. } => format!("expect array to have at most {bound} items"),
        Fault::Repeated { first } => {
            let (last, way) = steps.split_last().unwrap_or((&Step::Index(0), &[]));
            steps = way;
            let later = if let Step::Index(index) = last { *index } else { 0 };
            format!("expected unique items but items {} and {} are equal", first + 1, later + 1)
        }
        Fault::UnknownField => {
            let (last, way) = steps.split_last().unwrap_or((&Step::Index(0), &[]));
            steps = way;
            format!("additional properties forbidden, found {}", name(last).unwrap_or_default())
        }
        Fault::Fields { most, .. } => format!("expect object to have at most {most} properties"),
        // Nodes are either written or discovered.
        Fault::MissingField(field) if field == "nodes" => NONE_MATCHES.to_owned(),
        Fault::MissingField(field) => format!("property \"{field}\" is required"),
    };
    way(steps) + &message
}

/// The way to a place, as it stands before what is wrong there.
fn way(steps: &[Step]) -> String {
    let mut way = String::new();
    for (at, step) in steps.iter().enumerate() {
        let parent = at.checked_sub(1).and_then(|at| name(&steps[at]));
        way.push_str(&match step {
            Step::Name(label) if parent == Some("labels") => format!("failed to validate {label} (matching \".*\"): "),
            Step::Name(field) => format!("property \"{field}\" validation failed: "),
            Step::Index(index) => format!("failed to validate item {}: ", index + 1),
        });
    }
    way
}

fn name(step: &Step) -> Option<&str> {
    match step {
        Step::Name(name) => Some(name),
        Step::Index(_) => None,
    }
}

/// A finding in our words, with no more of its path than these steps.
fn plain(found: &Diagnostic, steps: &[Step]) -> String {
    let mut path = String::new();
    for step in steps {
        match step {
            Step::Name(name) if path.is_empty() => path.push_str(name),
            Step::Name(name) => path.extend([".", name]),
            Step::Index(index) => path.push_str(&format!("[{index}]")),
        }
    }
    Diagnostic { file: String::new(), mark: Mark::NONE, path, ..found.clone() }.to_string()
}

#[cfg(test)]
mod tests {
    use super::{Key, Kind, Mark, Resource, inside, of_item, worst};
    use weir_config::catalog::{PluginCatalog, Scope};
    use weir_config::schema::read;
    use weir_config::{Diagnostic, LoadOptions, Node, load};

    /// Two plugins with schemas.
    struct Catalog;

    #[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its schema is looked at")]
    struct Limit {
        #[schemars(range(min = 1))]
        window: u32,
        count: Option<Count>,
    }

    #[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
    #[serde(untagged)]
    #[allow(dead_code, reason = "only its schema is looked at")]
    enum Count {
        Number(#[schemars(range(min = 1))] u32),
        Text(#[schemars(length(min = 1))] String),
    }

    impl PluginCatalog for Catalog {
        fn names(&self) -> Vec<&str> {
            vec!["limit", "key-auth"]
        }

        fn check(&self, name: &str, _: Scope, conf: &Node) -> Result<(), Vec<Diagnostic>> {
            if name == "limit" { read::<Limit>(conf).map(drop) } else { Ok(()) }
        }
    }

    /// What is told of an item of a section.
    fn told(kind: Kind, item: &str) -> String {
        let section = kind.directory();
        let text = format!(r#"{{"{section}":[{item}]}}"#);
        let options = LoadOptions { plugins: &Catalog, ..LoadOptions::PLAIN };
        let loaded = load("test", text.as_bytes(), &options);
        let key = Key::new(kind, "1");
        let own: Vec<Diagnostic> = loaded.diagnostics.iter().filter_map(|found| inside(found, &key)).collect();
        let value = serde_json::from_str(item).unwrap();
        of_item(worst(&own).unwrap_or_else(|| panic!("nothing is wrong with {item}")), Resource::of(kind), Some(&value))
    }

    #[test]
    fn faults_are_told_in_the_known_words() {
        let routes = [
            (
                r#"{"uri":1,"upstream_id":"1"}"#,
                r#"invalid configuration: property "uri" validation failed: wrong type: expected string, got number"#,
            ),
            (
                r#"{"uri":"/","plugins":{},"foo":1}"#,
                "invalid configuration: additional properties forbidden, found foo",
            ),
            (
                r#"{"uri":"/","plugins":{},"methods":["GET","NO"]}"#,
                r#"invalid configuration: property "methods" validation failed: failed to validate item 2: matches none of the enum values"#,
            ),
            (
                r#"{"uri":"/","plugins":{},"timeout":{"connect":1,"send":1}}"#,
                r#"invalid configuration: property "timeout" validation failed: property "read" is required"#,
            ),
            (
                r#"{"uri":"/","plugins":{},"uris":["/","/"]}"#,
                r#"invalid configuration: property "uris" validation failed: expected unique items but items 1 and 2 are equal"#,
            ),
            (
                r#"{"uri":"/"}"#,
                r#"invalid configuration: object matches none of the required: ["plugins","uri"] or ["upstream","uri"] or ["upstream_id","uri"] or ["service_id","uri"] or ["plugins","uris"] or ["upstream","uris"] or ["upstream_id","uris"] or ["service_id","uris"] or ["script","uri"] or ["script","uris"]"#,
            ),
            (
                r#"{"uri":"/","plugins":{},"desc":7,"upstream":{"nodes":5}}"#,
                r#"invalid configuration: property "desc" validation failed: wrong type: expected string, got number"#,
            ),
            (r#"{"uri":"/","plugins":{},"host":"a","hosts":["b"]}"#, "only one of host or hosts is allowed"),
            (
                r#"{"uri":"/","plugins":{},"remote_addr":"1.1.1.1","remote_addrs":["1.1.1.2"]}"#,
                "only one of remote_addr or remote_addrs is allowed",
            ),
            (r#"{"uri":"/","plugins":{"nope":{}}}"#, "unknown plugin [nope]"),
            (
                r#"{"uri":"/","plugins":{"openid-connect":{}}}"#,
                "unknown plugin [openid-connect]: it is not supported yet",
            ),
            (
                r#"{"uri":"/","plugins":{"limit":{"window":0}}}"#,
                r#"failed to check the configuration of plugin limit err: property "window" validation failed: expected 0 to be at least 1"#,
            ),
            (
                r#"{"uri":"/","plugins":{"limit":{}}}"#,
                r#"failed to check the configuration of plugin limit err: property "window" is required"#,
            ),
            (
                r#"{"uri":"/","plugins":{"limit":{"window":1,"count":true}}}"#,
                r#"failed to check the configuration of plugin limit err: property "count" validation failed: value should match only one schema, but matches none"#,
            ),
            (
                r#"{"uri":"/","plugins":{"limit":{"window":0}},"priority":"x"}"#,
                r#"invalid configuration: property "priority" validation failed: wrong type: expected integer, got string"#,
            ),
            (
                r#"{"plugins":{}}"#,
                "invalid configuration: allOf 1 failed: value should match only one schema, but matches none",
            ),
            (
                r#"{"uri":"/","uris":["/"],"plugins":{}}"#,
                "invalid configuration: allOf 1 failed: value should match only one schema, but matches both schemas 1 and 2",
            ),
            (
                r#"{"uri":"/","plugins":{},"remote_addrs":["x"]}"#,
                r#"invalid configuration: property "remote_addrs" validation failed: failed to validate item 1: object matches none of the required"#,
            ),
            (
                r#"{"uri":"/","upstream":{"nodes":{},"checks":{"passive":{}}}}"#,
                r#"invalid configuration: property "upstream" validation failed: property "checks" validation failed: object matches none of the required: ["active"] or ["active","passive"]"#,
            ),
            (r#"{"uri":"/","plugins":{"limit":7}}"#, "invalid plugin conf 7 for plugin [limit]"),
            (r#"{"uri":"/","plugins":{"limit":"a\"b"}}"#, r#"invalid plugin conf "a\"b" for plugin [limit]"#),
            (
                r#"{"uri":"/","plugins":{"limit":[1]}}"#,
                "failed to check the configuration of plugin limit err: wrong type: expected object, got table",
            ),
            (
                r#"{"uri":"/","plugins":{"limit":{"window":1,"_meta":{"filter":[["arg_a","*=","b"]]}}}}"#,
                "failed to validate the 'vars' expression: invalid operator '*='",
            ),
            (
                r#"{"uri":"/","plugins":{},"vars":[["arg_a","=","b"]]}"#,
                "failed to validate the 'vars' expression: invalid operator '='",
            ),
            (r#"{"uri":"/","plugins":{},"vars":[["OR"]]}"#, "failed to validate the 'vars' expression: rule too short"),
            (
                r#"{"uri":"/","upstream":{"nodes":{},"pass_host":"rewrite"}}"#,
                "`upstream_host` can't be empty when `pass_host` is `rewrite`",
            ),
            (r#"{"uri":"/","upstream":{"nodes":{},"type":"chash"}}"#, "missing key"),
            (
                r#"{"uri":"/","plugins":{},"filter_func":"function(vars) return true end"}"#,
                "invalid configuration: filter_func: not supported yet: Lua filter functions (filter_func)",
            ),
        ];
        for (item, expected) in routes {
            assert_eq!(told(Kind::Routes, item), expected, "{item}");
        }
        let others = [
            (Kind::Secrets, r#"{"id":"zzz/1"}"#, "invalid secret manager: zzz"),
            (Kind::Secrets, r#"{"id":"vault/1"}"#, "invalid configuration: property \"uri\" is required"),
            (Kind::PluginMetadata, r#"{"id":"nope"}"#, "invalid plugin name"),
            (Kind::Ssls, r#"{"sni":"a"}"#, "invalid configuration: then clause did not match"),
            (Kind::Ssls, r#"{"type":"client"}"#, "invalid configuration: else clause did not match"),
            (Kind::Upstreams, r#"{"nodes":{},"type":"chash"}"#, "missing key"),
            (
                Kind::Upstreams,
                r#"{"nodes":{},"type":"chash","key":"x"}"#,
                r#"invalid configuration: failed to match pattern "^((uri|server_name|server_addr|request_uri|remote_port|remote_addr|query_string|host|hostname|mqtt_client_id)|arg_[0-9a-zA-z_-]+)$" with "x""#,
            ),
            (
                Kind::Upstreams,
                r#"{"nodes":{},"type":"chash","hash_on":"header","key":"a b"}"#,
                r#"invalid configuration: failed to match pattern "^[a-zA-Z0-9-_]+$" with "a b""#,
            ),
            (
                Kind::Upstreams,
                r#"{"nodes":{},"type":"chash","key":"mqtt_client_id"}"#,
                "invalid configuration: key: not supported yet: TCP and UDP proxying (mqtt_client_id)",
            ),
            (Kind::Upstreams, r#"{"nodes":{"a:65536":1}}"#, "invalid port 65536"),
            (
                Kind::Upstreams,
                r#"{"nodes":{"::1":1}}"#,
                "invalid configuration: IPv6 address must be enclosed with '[' and ']'",
            ),
            (
                Kind::Upstreams,
                r#"{"nodes":[{"host":"::1","port":80,"weight":1}]}"#,
                "invalid configuration: IPv6 address must be enclosed with '[' and ']'",
            ),
            (
                Kind::Consumers,
                r#"{"username":"a","plugins":{"limit":true}}"#,
                "invalid plugins configuration: invalid plugin conf true for plugin [limit]",
            ),
            (
                Kind::Consumers,
                r#"{"username":"a b"}"#,
                "invalid configuration: property \"username\" validation failed: failed to match pattern",
            ),
            (
                Kind::Consumers,
                r#"{"username":"a","plugins":{"limit":{"window":0}}}"#,
                "invalid plugins configuration: failed to check the configuration of plugin limit err: property \"window\"",
            ),
            (
                Kind::Credentials,
                r#"{"id":"a/credentials/b","plugins":{"limit":{"window":1}}}"#,
                "only supports auth type plugins in consumer credential",
            ),
            (
                Kind::Credentials,
                r#"{"id":"a/credentials/b","plugins":{"key-auth":{},"limit":{}}}"#,
                "invalid configuration: property \"plugins\" validation failed: expect object to have at most 1 properties",
            ),
            (Kind::PluginConfigs, r#"{"id":"1"}"#, "invalid configuration: property \"plugins\" is required"),
        ];
        for (kind, item, expected) in others {
            let found = told(kind, item);
            assert!(found.starts_with(expected), "{item}: {found}");
        }
        let pem = format!("-----BEGIN {}", "x".repeat(128));
        let uneven = format!(r#"{{"sni":"a","cert":"{pem}","key":"{pem}","certs":["{pem}"]}}"#);
        assert_eq!(told(Kind::Ssls, &uneven), "mismatched number of certs and keys");
    }

    #[test]
    fn conditions_are_told_without_their_place_where_the_words_are_known() {
        let told = |message: &str| {
            let found = Diagnostic::error(Mark::NONE, "vars[0]", message).with_hint("did you mean ==?");
            of_item(&found, Resource::of(Kind::Routes), None)
        };
        for message in ["rule should be wrapped inside brackets", "rule too short", "invalid operator 'x'"] {
            assert_eq!(told(message), format!("failed to validate the 'vars' expression: {message}"));
        }
        let own = told("unknown variable 'x'");
        assert_eq!(own, "failed to validate the 'vars' expression: [0]: unknown variable 'x'; did you mean ==?");
    }

    #[test]
    fn findings_about_a_resource_are_told_from_others() {
        let key = Key::new(Kind::Routes, "1");
        let at = |path: &str| inside(&Diagnostic::error(Mark::NONE, path, "x"), &key).map(|found| found.path);
        let cases = [
            ("routes/1.uri", Some("uri")),
            ("routes/1", Some("")),
            ("routes/1[\"a b\"]", Some("[\"a b\"]")),
            ("routes/10.uri", None),
            ("routes[3].plugins.limit", Some("plugins.limit")),
            ("services/1.uri", None),
            ("services[0].uri", None),
        ];
        for (path, expected) in cases {
            assert_eq!(at(path).as_deref(), expected, "{path}");
        }
    }
}
