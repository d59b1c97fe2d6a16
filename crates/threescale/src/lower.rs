//! From services to items of the model: a route for each, with the plugin `service`, and one for all other hosts.

use serde_json::Value;
use weir_config::nodes::{flag, map, text};
use weir_config::{Diagnostic, Entity, Id, Kind, Lowered, Mark, Matching, Node, ResourceKind};
use weir_plugins::threescale::by_way_of_proxy;

use crate::nodes::to_node;
use crate::service::{Environment, Service};
use crate::tls;
use crate::upstream::{Upstream, upstream};

/// Id of the route for hosts that no service has.
pub(crate) const NO_SERVICE: &str = "no-service";

/// Lowers the services.
pub(crate) fn lower(
    services: &[Service],
    oidc: &[Node],
    environment: &Environment,
    mark: Mark,
    found: &mut Vec<Diagnostic>,
) -> Lowered {
    let mut lowered = Lowered::new(mark);
    let mut taken = vec![NO_SERVICE.to_owned()];
    let mut hosts = Vec::new();
    for service in services {
        self::service(service, oidc, environment, (&mut taken, &mut hosts), &mut lowered, found);
    }
    tls::of_environment(environment, mark, &mut lowered);
    let plugins = map(mark, [("no-service", map(mark, []))]);
    let item = map(mark, [("id", text(NO_SERVICE)), ("uri", text("/*")), ("plugins", plugins)]);
    let matching = Matching { paths: vec!["/".to_owned()], ranks: vec![0], hosts: Vec::new() };
    let entity = Entity { kind: "document", id: NO_SERVICE.to_owned(), matching: Some(matching), ..Entity::default() };
    lowered.add(ResourceKind::Routes, item, entity);
    lowered
}

fn service(
    service: &Service,
    oidc: &[Node],
    environment: &Environment,
    (taken, all_hosts): (&mut Vec<String>, &mut Vec<String>),
    lowered: &mut Lowered,
    found: &mut Vec<Diagnostic>,
) {
    let mark = service.node.mark;
    let Some(Upstream { item: upstream, has_nodes }) = upstream(service, found) else { return };
    let hosts = hosts(service, all_hosts, found);
    if hosts.is_empty() {
        return;
    }
    let mut of_route = upstream.clone();
    if upstream.get("scheme").is_none_or(|scheme| scheme != "https") {
        of_route.remove("tls");
    }
    by_way_of_proxy(&mut of_route);
    let upstream = to_node(&Value::Object(upstream), mark);
    let mut conf = service.node.clone();
    conf.insert("upstream", upstream);
    conf.insert("id", text(&service.id));
    conf.insert("verify_provider", flag(environment.verifies.unwrap_or(true)));
    let place = match provider(service, oidc) {
        Some((at, provider)) => {
            conf.remove("oidc");
            conf.insert("oidc", provider.clone());
            format!("oidc[{at}]")
        }
        None => format!("{}.oidc", service.path),
    };
    default_caching(&mut conf, environment);
    let id = id_of(service, taken);
    tls::of_service(service, &hosts, environment, &id, lowered, found);
    let mut item = map(mark, [("id", text(&id)), ("uri", text("/*")), ("plugins", map(mark, [("service", conf)]))]);
    if has_nodes {
        item.insert("upstream", to_node(&Value::Object(of_route), mark));
    }
    item.insert("enable_websocket", flag(true));
    let name = Some(service.text("system_name")).filter(|name| !name.is_empty());
    if let Some(name) = name {
        item.insert("name", text(&name.chars().take(100).collect::<String>()));
    }
    let elsewhere = [
        ("plugins.service.oidc".to_owned(), place),
        ("plugins.service.upstream".to_owned(), format!("{}.proxy.api_backend", service.path)),
        ("plugins.service".to_owned(), service.path.clone()),
        ("upstream".to_owned(), format!("{}.proxy.api_backend", service.path)),
        ("uri".to_owned(), format!("{}.proxy.hosts", service.path)),
    ];
    let entity = Entity {
        kind: "service",
        id: name.map_or_else(|| service.id.clone(), str::to_owned),
        path: service.path.clone(),
        elsewhere: elsewhere.into(),
        matching: Some(Matching { paths: vec!["/".to_owned()], ranks: vec![1], hosts }),
        ..Entity::default()
    };
    lowered.add(ResourceKind::Routes, item, entity);
}

/// The hosts of a service that no service before it has.
fn hosts(service: &Service, taken: &mut Vec<String>, found: &mut Vec<Diagnostic>) -> Vec<String> {
    let Some(list) = service.at("proxy.hosts") else {
        return own(service, vec!["localhost".to_owned()], taken, found);
    };
    let names = list.as_seq().unwrap_or_default().iter().filter_map(Node::as_str).map(str::to_ascii_lowercase);
    let names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        found.push(service.doubt("proxy.hosts", "no host: the service takes no request"));
        return names;
    }
    if let Some(name) = names.iter().find(|name| name.contains('*')) {
        let text = format!("expected names of hosts, found '{name}': hosts are compared as a whole");
        found.push(service.fault("proxy.hosts", text));
        return Vec::new();
    }
    own(service, names, taken, found)
}

fn own(service: &Service, names: Vec<String>, taken: &mut Vec<String>, found: &mut Vec<Diagnostic>) -> Vec<String> {
    let (known, free): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| taken.contains(name));
    if !known.is_empty() {
        let text = format!("another service has {} already, and takes its requests", known.join(", "));
        found.push(service.doubt("proxy.hosts", text));
    }
    taken.extend(free.iter().cloned());
    free
}

/// The provider of a service: the element with its id, or the one at the same position.
fn provider<'o>(service: &Service, oidc: &'o [Node]) -> Option<(usize, &'o Node)> {
    let id_of = |node: &Node| match node.get("service_id").map(|id| &id.kind) {
        Some(Kind::Str(id)) => Some(id.clone()),
        Some(Kind::Int(id)) => Some(id.to_string()),
        _ => None,
    };
    let own = oidc.iter().enumerate().find(|(_, node)| id_of(node).as_deref() == Some(&service.id));
    let at = service.path.strip_prefix("services[").and_then(|rest| rest.strip_suffix(']')?.parse::<usize>().ok());
    let beside = || at.and_then(|at| Some((at, oidc.get(at)?)));
    own.or_else(beside).filter(|(_, node)| node.get("issuer").is_some() && node.get("keys").is_some())
}

/// Adds the caching of the environment to a chain without a policy for it.
fn default_caching(conf: &mut Node, environment: &Environment) {
    let (Some(caching), Some(proxy)) = (&environment.caching, conf.get_mut("proxy")) else { return };
    let mark = proxy.mark;
    let policy = |name: &str, configuration| map(mark, [("name", text(name)), ("configuration", configuration)]);
    let caching = policy("caching", map(mark, [("caching_type", text(caching))]));
    match proxy.get_mut("policy_chain") {
        // Of two policies the later one counts.
        Some(Node { kind: Kind::Seq(chain), .. }) => {
            let has_one = |policy: &Node| {
                let name = policy.get("name").and_then(Node::as_str).unwrap_or_default();
                weir_plugins::threescale::name_of(name) == "caching"
            };
            // Positions of the others have to stay as they are.
            if !chain.iter().any(has_one) {
                chain.push(caching);
            }
        }
        _ => {
            let chain = vec![policy("apicast", map(mark, [])), caching];
            proxy.insert("policy_chain", Node { mark, kind: Kind::Seq(chain) });
        }
    }
}

/// The id of a service in the model: its own where the model takes it and no other has it.
fn id_of(service: &Service, taken: &mut Vec<String>) -> String {
    let base = Id::new(&service.id).map_or_else(|| format!("service-{}", taken.len()), |id| id.as_str().to_owned());
    let free = (1..).map(|n| if n == 1 { base.clone() } else { format!("{base}.{n}") }).find(|id| !taken.contains(id));
    let id = free.unwrap_or(base);
    taken.push(id.clone());
    id
}
