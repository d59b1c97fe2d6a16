//! GraphQL APIs, whose requests are checked and go on to the upstream.

use weir_config::{Diagnostic, Kind, Node};

use super::{flag, map, text};
use crate::definition::{Definition, is_on};

/// Ways of execution that are refused, with the reason.
const REFUSED: [(&str, &str); 3] = [
    ("executionEngine", "schemas whose fields have sources of their own (Universal Data Graph) are not supported"),
    ("supergraph", "schemas of several APIs in one (schema stitching, federation) are not supported"),
    ("subgraph", "parts of a supergraph (schema stitching, federation) are not supported"),
];

/// The plugin of a GraphQL API; `None` for any other.
pub(super) fn graphql(api: &Definition, id: &str, found: &mut Vec<Diagnostic>) -> Option<Node> {
    if !api.flag("graphql.enabled") {
        return None;
    }
    match api.text("graphql.execution_mode") {
        "proxyOnly" | "" => {}
        other => {
            let known = REFUSED.iter().find(|(mode, _)| *mode == other);
            let unknown = format!("expected proxyOnly, found '{other}'");
            found.push(api.fault("graphql.execution_mode", known.map_or(unknown, |(_, reason)| (*reason).to_owned())));
            return None;
        }
    }
    for (path, reason) in [
        ("graphql.proxy.request_headers_rewrite", "headers are set by request_headers and transform_headers alone"),
        ("graphql.proxy.subscription_type", "subscriptions are not supported: requests for WebSockets are refused"),
    ] {
        if api.at(path).is_some_and(is_on) {
            let finding = if path.ends_with("rewrite") { api.fault(path, reason) } else { api.doubt(path, reason) };
            found.push(finding);
        }
    }
    if api.flag("graphql.playground.enabled") {
        found.push(api.doubt("graphql.playground", "there is no playground: use a client of GraphQL"));
    }
    let mut made = map(api.node.mark, [("api_id", text(id)), ("schema", text(api.text("graphql.schema")))]);
    made.insert("disable_introspection", flag(api.flag("graphql.introspection.disabled")));
    if let Some(headers) =
        api.at("graphql.proxy.request_headers").filter(|headers| matches!(headers.kind, Kind::Map(_)))
    {
        made.insert("request_headers", headers.clone());
    }
    Some(made)
}
