//! Refusals of changes, in the words that clients of APISIX know, or in our own where APISIX has none.

use hyper::StatusCode;
use serde_json::{Map, Value};
use weir_config::node::{Step, steps};
use weir_config::schema::{Fault, NONE_OF_ANY, type_of, way_in_resource};
use weir_config::{Code, Diagnostic, ExprFault, Mark};
use weir_store::{Key, Kind};

use crate::Refused;
use crate::answer::Answer;
use crate::api::Api;
use crate::peer::{Lack, Peer};

/// Refusal of a route without anything to do with its requests.
const ROUTE_ALTERNATIVES: &str = r#"object matches none of the required: ["plugins","uri"] or ["upstream","uri"] or ["upstream_id","uri"] or ["service_id","uri"] or ["plugins","uris"] or ["upstream","uris"] or ["upstream_id","uris"] or ["service_id","uris"] or ["script","uri"] or ["script","uris"]"#;

impl Api {
    /// The answer to a change that was refused; `value` is what should have been stored as `key`.
    pub(crate) async fn refusal(&self, key: &Key, refused: Refused, value: Option<&Map<String, Value>>) -> Answer {
        let found = match refused {
            Refused::Store(error) => return Answer::store(&error),
            Refused::NotAllowed(reason) => return Answer::error(StatusCode::FORBIDDEN, reason),
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
            (Some(found), _) => Answer::bad(of_item(found, key.kind(), value)),
            // Something else would be wrong with this change.
            (None, Some(found)) => Answer::bad(format!("invalid configuration: {}", plain(found, &steps(&found.path)))),
            (None, None) => Answer::bad("invalid configuration"),
        }
    }
}

/// Words for a finding about a resource, whose path is that inside the resource.
fn of_item(found: &Diagnostic, kind: Kind, value: Option<&Map<String, Value>>) -> String {
    let steps = steps(&found.path);
    let names: Vec<&str> = steps.iter().filter_map(name).collect();
    let special = match (kind, names.as_slice()) {
        (Kind::Upstreams, names) | (Kind::Routes | Kind::Services, ["upstream", names @ ..]) => {
            of_upstream(found, names)
        }
        (Kind::Ssls, names) => of_ssl(found, names, value),
        (Kind::Secrets, names) => of_secret(found, names, value),
        (Kind::PluginMetadata, ["id"]) => match Peer::of(&found.code) {
            Peer::NoPlugin(Lack::Unknown) => Some("invalid plugin name".to_owned()),
            Peer::NoPlugin(Lack::Unsupported { plugin }) => {
                Some(format!("invalid plugin name: the plugin {plugin} is known and not supported yet"))
            }
            Peer::NoPlugin(Lack::TurnedOff { plugin }) => {
                Some(format!("invalid plugin name: the plugin {plugin} is not in the setting `plugins`"))
            }
            _ => None,
        },
        _ => None,
    };
    if let Some(message) = special {
        return message;
    }
    match (rank(found), names.as_slice(), Peer::of(&found.code)) {
        (Rank::Plugin, ["plugins", plugin, ..], peer) => {
            let conf = value.and_then(|value| value.get("plugins")?.get(plugin));
            let message = of_plugin(found, plugin, &steps[2..], conf);
            match (kind, peer) {
                (_, Peer::NoAuthentication | Peer::SameCredential) => message,
                // An unknown plugin is reported without the words around it.
                (Kind::Consumers | Kind::Credentials, _) => format!("invalid plugins configuration: {message}"),
                _ => message,
            }
        }
        (Rank::Rule, ["uris"], Peer::OnlyOneOf { .. }) => {
            format!("invalid configuration: allOf 1 failed: {}", Fault::SeveralOfOne { first: 1, second: 2 })
        }
        (Rank::Rule, [_], Peer::OnlyOneOf { one, other }) => format!("only one of {one} or {other} is allowed"),
        (Rank::Rule, _, Peer::NoPath) => format!("invalid configuration: allOf 1 failed: {}", Fault::NoneOfOne),
        (Rank::Rule, _, Peer::NoPurpose) => format!("invalid configuration: {ROUTE_ALTERNATIVES}"),
        (Rank::Rule, ["vars", ..], peer) => of_conditions(found, &peer, &steps[1..]),
        _ => format!("invalid configuration: {}", phrase(found, &steps)),
    }
}

/// Words for a finding about an item of a section.
pub(crate) fn of_listed(kind: Kind, found: &Diagnostic, item: &Value) -> String {
    of_item(found, kind, item.as_object())
}

/// Words for a finding about a resource that is only checked: without those of a change.
pub(crate) fn of_check(kind: Kind, found: &Diagnostic, item: &Value) -> String {
    let message = of_listed(kind, found, item);
    message.strip_prefix("invalid configuration: ").map(str::to_owned).unwrap_or(message)
}

/// Words for a value that is no resource at all.
pub(crate) fn no_object(value: &Value) -> String {
    let fault = Fault::WrongType { expected: "object".to_owned(), found: type_of(value) };
    format!("invalid configuration: {fault}")
}

/// Words for a consumer with an invalid name.
pub(crate) fn no_username(name: &str) -> String {
    let fault = Fault::Pattern { pattern: r"^[a-zA-Z0-9_\-]+$".to_owned(), found: name.to_owned() };
    format!("invalid configuration: {}", fault.text_in_resource(&steps("username")))
}

/// APISIX's words for a finding about an upstream beyond its schema. The names lead to the field inside the upstream.
fn of_upstream(found: &Diagnostic, names: &[&str]) -> Option<String> {
    match (Peer::of(&found.code), names) {
        (Peer::NoHashKey, ["type"]) => Some("missing key".to_owned()),
        // Its schema depends on what is hashed, and is not that of a field.
        (Peer::HashKey(fault), ["key"]) => Some(format!("invalid configuration: {fault}")),
        (Peer::NoUpstreamHost, ["pass_host"]) => {
            Some("`upstream_host` can't be empty when `pass_host` is `rewrite`".to_owned())
        }
        (Peer::BareIpv6, ["nodes", ..]) => {
            Some("invalid configuration: IPv6 address must be enclosed with '[' and ']'".to_owned())
        }
        (Peer::Port, ["nodes", node]) => {
            let port = node.rsplit_once(':')?.1.parse::<u64>().ok()?;
            Some(format!("invalid port {port}"))
        }
        _ => None,
    }
}

/// APISIX's words for a finding about a certificate, other than those for its fields.
fn of_ssl(found: &Diagnostic, names: &[&str], value: Option<&Map<String, Value>>) -> Option<String> {
    let lacks = match (Peer::of(&found.code), names) {
        (Peer::Schema(Fault::MissingField { name }), []) => matches!(name.as_str(), "cert" | "key"),
        (Peer::OnlyOneOf { .. }, ["snis"]) | (Peer::NoNames, []) => true,
        (Peer::UnevenKeys, _) => return Some("mismatched number of certs and keys".to_owned()),
        _ => false,
    };
    lacks.then(|| {
        // The fields that a certificate needs depend on its type.
        let is_client = value.and_then(|value| value.get("type")?.as_str()) == Some("client");
        let clause = if is_client { "else" } else { "then" };
        format!("invalid configuration: {clause} clause did not match")
    })
}

/// APISIX's words for a finding about a secret manager, whose schema is that of its kind.
fn of_secret(found: &Diagnostic, names: &[&str], value: Option<&Map<String, Value>>) -> Option<String> {
    match (Peer::of(&found.code), names) {
        (Peer::NoManager, ["id"]) => {
            let (manager, _) = value?.get("id")?.as_str()?.split_once('/')?;
            Some(format!("invalid secret manager: {manager}"))
        }
        (Peer::ManagerNeeds { field }, []) => {
            let name = field.to_owned();
            Some(format!("invalid configuration: {}", Fault::MissingField { name }))
        }
        _ => None,
    }
}

/// Words for a finding about conditions: alone where APISIX says the same, else with the place inside them.
fn of_conditions(found: &Diagnostic, peer: &Peer<'_>, steps: &[Step]) -> String {
    let message = match peer {
        Peer::Condition(ExprFault::Operator(name), _) => format!("invalid operator '{name}'"),
        Peer::Condition(ExprFault::TooShort, _) => "rule too short".to_owned(),
        Peer::Condition(ExprFault::NotAnArray, _) => "rule should be wrapped inside brackets".to_owned(),
        _ => plain(found, steps),
    };
    format!("failed to validate the 'vars' expression: {message}")
}

fn of_plugin(found: &Diagnostic, plugin: &str, rest: &[Step], conf: Option<&Value>) -> String {
    if let Some(conf) = conf.filter(|conf| !conf.is_object() && !conf.is_array()) {
        return format!("invalid plugin conf {conf} for plugin [{plugin}]");
    }
    let failed = |why: String| format!("failed to check the configuration of plugin {plugin} err: {why}");
    match (Peer::of(&found.code), rest) {
        (Peer::Schema(fault), _) => failed(fault.text_in_resource(rest)),
        (peer, [Step::Name(meta), Step::Name(filter), rest @ ..]) if meta == "_meta" && filter == "filter" => {
            of_conditions(found, &peer, rest)
        }
        // The same words are used there, without the place.
        (peer @ Peer::Condition(_, reason), _) => {
            let code = Box::new(Code::Unreadable { reason: reason.to_owned() });
            failed(of_conditions(&Diagnostic { code, ..found.clone() }, &peer, rest))
        }
        (Peer::NoPlugin(Lack::Unknown), []) => format!("unknown plugin [{plugin}]"),
        (Peer::NoPlugin(Lack::Unsupported { .. }), []) => format!("unknown plugin [{plugin}]: it is not supported yet"),
        (Peer::NoPlugin(Lack::TurnedOff { .. }), []) => {
            format!("unknown plugin [{plugin}]: it is not in the setting `plugins`")
        }
        (Peer::NoAuthentication, []) => "only supports auth type plugins in consumer credential".to_owned(),
        (Peer::InOtherGlobalRule { rule }, []) => {
            format!("plugin '{plugin}' already exists in global rule with id '{rule}'")
        }
        (Peer::SameCredential, _) => format!("duplicate key of plugin {plugin} found: {}", found.code),
        _ => failed(phrase(found, rest)),
    }
}

/// Place of a finding in the order of APISIX's checks.
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
        _ if matches!(Peer::of(&found.code), Peer::Schema(_) | Peer::HashKey(_)) => Rank::Form,
        _ => Rank::Rule,
    }
}

/// The error that APISIX would find first.
pub(crate) fn worst(found: &[Diagnostic]) -> Option<&Diagnostic> {
    // A consequence of another error is reported at the resource itself, and does not name the fault.
    let follows = |found: &Diagnostic| matches!(Peer::of(&found.code), Peer::Consequence);
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
    match (Peer::of(&found.code), steps) {
        (Peer::Schema(fault) | Peer::HashKey(fault), _) => fault.text_in_resource(steps),
        (Peer::NoAddressRange, _) => way_in_resource(steps) + NONE_OF_ANY,
        (Peer::PassiveAlone, [checks @ .., _]) => {
            format!(r#"{}{NONE_OF_ANY}: ["active"] or ["active","passive"]"#, way_in_resource(checks))
        }
        _ => plain(found, steps),
    }
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
    use super::{Key, Kind, Mark, inside, of_item, worst};
    use weir_config::catalog::{Checked, PluginCatalog, Scope};
    use weir_config::schema::read;
    use weir_config::{Code, Diagnostic, ExprFault, LoadOptions, Node, load};

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

        fn is_auth(&self, name: &str) -> bool {
            name == "key-auth"
        }

        fn check(&self, name: &str, _: Scope, conf: &Node) -> Checked {
            let found = if name == "limit" { read::<Limit>(conf).err().unwrap_or_default() } else { Vec::new() };
            Checked { found, compiled: None }
        }
    }

    /// Words for an item of a section.
    fn told(kind: Kind, item: &str) -> String {
        let section = kind.directory();
        let text = format!(r#"{{"{section}":[{item}]}}"#);
        let options = LoadOptions { plugins: &Catalog, ..LoadOptions::PLAIN };
        let loaded = load("test", text.as_bytes(), &options);
        let key = Key::new(kind, "1");
        let own: Vec<Diagnostic> = loaded.diagnostics.iter().filter_map(|found| inside(found, &key)).collect();
        let value = serde_json::from_str(item).unwrap();
        of_item(worst(&own).unwrap_or_else(|| panic!("nothing is wrong with {item}")), kind, Some(&value))
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
        let told = |code: Code| {
            let found = Diagnostic::error(Mark::NONE, "vars[0]", code).with_hint("did you mean ==?");
            of_item(&found, Kind::Routes, None)
        };
        for (fault, message) in [
            (ExprFault::NotAnArray, "rule should be wrapped inside brackets"),
            (ExprFault::TooShort, "rule too short"),
            (ExprFault::Operator("x".to_owned()), "invalid operator 'x'"),
        ] {
            // Whatever the text for people says.
            let code = Code::Condition { fault, reason: "reworded".to_owned() };
            assert_eq!(told(code), format!("failed to validate the 'vars' expression: {message}"));
        }
        let own = told(Code::Condition { fault: ExprFault::Other, reason: "unknown variable 'x'".to_owned() });
        assert_eq!(own, "failed to validate the 'vars' expression: [0]: unknown variable 'x'; did you mean ==?");
    }

    #[test]
    fn findings_about_a_resource_are_told_from_others() {
        let key = Key::new(Kind::Routes, "1");
        let at =
            |path: &str| inside(&Diagnostic::error(Mark::NONE, path, Code::UnknownField), &key).map(|found| found.path);
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
