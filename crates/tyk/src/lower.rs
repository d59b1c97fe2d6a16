//! From API definitions to items of the model.
//!
//! | Tyk | model |
//! |---|---|
//! | API definition | route with the listen path as its path, an upstream, and the plugins `api` and `paths` |
//! | policies | configuration of the plugin `gateway`, which keeps them for sessions |
//! | `tyk.conf` | fields of all of them |

mod access;
mod analytics;
mod apart;
mod graphql;
mod loops;
mod middleware;
mod target;
mod tls;
mod uptime;
mod versions;

pub(crate) use weir_config::nodes::{flag, list, map, number, text};
use weir_config::{Diagnostic, Entity, Id, Kind, Lowered, Mark, Matching, Node, ResourceKind};

use crate::conf::Conf;
use crate::definition::{Definition, drop_nulls};
use crate::rule::rule;

/// Id of the route that takes what no API takes.
pub(crate) const NO_API: &str = "no-api";
/// Id of the global rule that makes answers Tyk's.
pub(crate) const ANSWERS: &str = "answers";
/// Id of the route of the gateway API.
pub(crate) const GATEWAY: &str = "gateway";
/// Id of the route for everything else at the port of the gateway API alone.
pub(crate) const CONTROL: &str = "gateway-port";
/// Id of the route of the pages of health, where the gateway API has a port of its own.
pub(crate) const HEALTH: &str = "health";

/// Rank of the gateway's own routes: above any listen path.
const OWN: u64 = 1 << 40;
/// Rank that an API with a domain gains.
const WITH_DOMAIN: u64 = 1 << 32;

/// Texts of scripts, templates and certificates by their paths as they are written.
pub(crate) type Scripts = std::collections::BTreeMap<String, String>;

/// Lowers the definitions.
pub(crate) fn lower(
    apis: &[Definition],
    (conf, scripts): (&Conf, &Scripts),
    policies: &[Node],
    mark: Mark,
    found: &mut Vec<Diagnostic>,
) -> Lowered {
    let mut lowered = Lowered::new(mark);
    let loops = loops::Loops::of(apis, found);
    let mut taken = Taken { ids: [NO_API, GATEWAY, CONTROL, HEALTH].map(str::to_owned).to_vec(), ..Taken::default() };
    let referred = apart::referred(apis);
    for api in apis {
        let has_versions = api.flag("version_definition.enabled");
        if api.flag("internal") && !has_versions {
            let is_referred = [api.text("api_id"), api.text("name")].iter().any(|name| referred.contains(name));
            if loops.lead_to(api) {
                self::api(api, None, (conf, scripts, &loops), &mut taken, &mut lowered, found);
            } else if !is_referred {
                let text = "the API is no version of another one, and no loop leads to it: nobody can call it";
                found.push(api.doubt("internal", text));
            }
            continue;
        }
        if !taken.takes(api, conf, found) {
            continue;
        }
        if !has_versions {
            self::api(api, None, (conf, scripts, &loops), &mut taken, &mut lowered, found);
            continue;
        }
        for version in apart::versions(api, apis, found) {
            self::api(&version.api, Some((api, &version)), (conf, scripts, &loops), &mut taken, &mut lowered, found);
        }
    }
    tls::certificates(conf.tls.as_ref(), apis, scripts, mark, &mut lowered, found);
    own_routes((conf, scripts), policies, mark, &mut lowered, found);
    let mut answers = map(mark, []);
    answers.insert("hide_generator_header", flag(conf.hide_generator_header));
    answers.insert("http_server_options_skip_url_cleaning", flag(conf.skips_url_cleaning));
    let item = map(mark, [("id", text(ANSWERS)), ("plugins", map(mark, [("answers", answers)]))]);
    lowered.add(ResourceKind::GlobalRules, item, document(ANSWERS, None));
    lowered
}

/// Ids and listen paths that are taken, for those that stand in several definitions.
#[derive(Default)]
struct Taken {
    ids: Vec<String>,
    places: Vec<(String, String)>,
    versions: apart::Numbers,
}

impl Taken {
    /// Takes the place of an API; false if another one has it.
    fn takes(&mut self, api: &Definition, conf: &Conf, found: &mut Vec<Diagnostic>) -> bool {
        if domain_of(api).is_some() && !conf.enable_custom_domains {
            let text = "without effect: enable_custom_domains of tyk.conf is not on, so that the API takes every host";
            found.push(api.doubt("domain", text));
        }
        let domain = domain_of(api).filter(|_| conf.enable_custom_domains);
        let place = (domain.unwrap_or_default().to_owned(), api.text("proxy.listen_path").to_owned());
        if self.places.contains(&place) {
            let text = "another API has this listen path already: this one is left out, as in Tyk";
            found.push(api.doubt("proxy.listen_path", text));
            return false;
        }
        self.places.push(place);
        true
    }
}

/// The domain that an API is written for.
fn domain_of(api: &Definition) -> Option<&str> {
    Some(api.text("domain")).filter(|domain| !domain.is_empty() && !api.flag("domain_disabled"))
}

fn document(id: &str, matching: Option<Matching>) -> Entity {
    Entity { kind: "document", id: id.to_owned(), path: String::new(), matching, ..Entity::default() }
}

/// Adds the route of an API: its own, or that of a version of a base API.
fn api(
    api: &Definition,
    version: Option<(&Definition, &apart::Version)>,
    (conf, scripts, loops): (&Conf, &Scripts, &loops::Loops),
    taken: &mut Taken,
    lowered: &mut Lowered,
    found: &mut Vec<Diagnostic>,
) {
    let mark = api.node.mark;
    let listen = api.text("proxy.listen_path");
    let domain = domain_of(api).filter(|_| conf.enable_custom_domains);
    let base = version.map_or(api, |(base, _)| base);
    let Some(upstream) = target::upstream(api, (conf, scripts), found) else { return };
    let Some(versions) = versions::Versions::of(api, scripts, found) else { return };
    let id = match version {
        Some((base, _)) => taken.versions.id(base.text("api_id")),
        None => id_of(api, taken, found),
    };
    // Rights of keys name the API as it is written.
    let own = Some(api.text("api_id")).filter(|own| !own.is_empty()).unwrap_or(&id);
    let mut guard =
        map(mark, [("api_id", text(own)), ("name", text(api.text("name"))), ("org_id", text(api.text("org_id")))]);
    guard.insert("listen_path", text(listen));
    guard.insert("expires", number(versions::expiry(api, found)));
    let version_names = versions.names();
    guard.insert("versions", versions.guard);
    guard.insert("tells_rates", flag(conf.tells_rates));
    for (field, switch) in [("allowed_ips", "enable_ip_whitelisting"), ("blacklisted_ips", "enable_ip_blacklisting")] {
        if api.flag(switch) && !api.flag("ip_access_control_disabled") {
            guard.insert(field, api.at(field).cloned().unwrap_or_else(|| list(mark, Vec::new())));
        }
    }
    if api.number("global_rate_limit.rate") > 0.0 && !api.flag("global_rate_limit.disabled") {
        let limit = api.at("global_rate_limit").cloned().unwrap_or_else(|| map(mark, []));
        guard.insert("global_rate_limit", limit);
    }
    if api.number("session_lifetime") > 0.0 && conf.storage.is_none() {
        found.push(api.doubt("session_lifetime", "no effect without a Redis in storage: keys live until they expire"));
    }
    if let Some(monitor) = &conf.monitor {
        guard.insert("monitor", middleware::monitor(monitor, scripts));
    }
    if let Some(clients) = tls::clients(api, scripts, found) {
        guard.insert("client_certificates", clients);
    }
    if conf.enforces_organisations {
        guard.insert("organisation", access::organisation(mark, conf));
    }
    if let Some(access) = access::access(api, own, (conf, scripts), found) {
        guard.insert("access", access);
    }
    let mut chain = map(mark, [("api_id", text(own)), ("listen_path", text(listen))]);
    chain.insert("strip_listen_path", flag(api.flag("proxy.strip_listen_path")));
    chain.insert("target", text(&target::base(api)));
    chain.insert("target_api", text(target::loop_of(api).unwrap_or_default()));
    chain.insert("loops", loops.ids(api.text("api_id"), mark));
    chain.insert("enable_context_vars", flag(api.flag("enable_context_vars")));
    chain.insert("versions", versions.chain);
    let mut own_upstream = upstream.clone();
    if own_upstream.get("nodes").is_none() {
        own_upstream.insert("nodes", map(mark, []));
    }
    chain.insert("upstream", own_upstream);
    let mut plugins = map(mark, [("api", guard), ("paths", chain)]);
    middleware::add(api, own, (conf, scripts), &mut plugins, found);
    middleware::add_events(api, own, (conf, scripts), &mut plugins, found);
    if let Some(made) = middleware::virtuals(api, own, (conf, scripts), &versions.virtuals, found) {
        plugins.insert("virtual", made);
    }
    if let Some(documents) = api.at("oas.validation").cloned() {
        plugins.insert("oas_validation", map(mark, [("documents", documents)]));
    }
    if let Some(graphql) = graphql::graphql(api, own, found) {
        plugins.insert("graphql", graphql);
    }
    if api.flag("cache_options.enable_cache") {
        plugins.insert("cache", access::cache(api, own, versions.caches));
    }
    if api.flag("CORS.enable") {
        plugins.insert("cors", access::cors(api));
    }
    if let Some(records) = conf.analytics.as_ref().filter(|_| !api.flag("do_not_track")) {
        plugins.insert("analytics", analytics::analytics(api, own, (version_names, versions.records), records));
    }
    let mut item = map(mark, [("id", text(&id)), ("uri", text("/*")), ("plugins", plugins)]);
    item.insert("upstream", upstream);
    item.insert("enable_websocket", flag(true));
    if let Some(vars) = version.and_then(|(_, version)| version.vars.clone()) {
        item.insert("vars", vars);
    }
    if !api.text("name").is_empty() {
        item.insert("name", text(&api.text("name").chars().take(100).collect::<String>()));
    }
    let segment = version.and_then(|(_, version)| version.segment.as_deref());
    let path = match (segment, target::is_plain(listen)) {
        (None, true) => listen.to_owned(),
        (None, false) => format!("~{}", target::pattern(listen)),
        (Some(segment), _) => format!("~{}/{}(?:/|$)", beginning_of(listen), target::escaped(segment)),
    };
    // A version that the path names lies behind the listen path.
    let length = listen.len() + segment.map_or(0, |segment| segment.len() + 2);
    let rank = length as u64 + if domain.is_some() { WITH_DOMAIN } else { 0 };
    // The path of a loop stands behind the name of the base.
    let place = weir_plugins::tyk::loop_path(base.text("api_id"));
    let looped = match segment {
        None => place,
        Some(segment) => format!("~{}{}(?:/|$)", target::escaped(&place), target::escaped(segment)),
    };
    let matching =
        Matching { paths: vec![path], ranks: vec![rank], hosts: domain.into_iter().map(str::to_owned).collect() };
    let elsewhere = [
        ("plugins.api.listen_path", "proxy.listen_path"),
        ("plugins.api.versions.list", "version_data.versions"),
        ("plugins.api.access.ways", "auth"),
        ("plugins.api.access.storage", ""),
        ("plugins.api.events.handlers", "event_handlers.events"),
        ("plugins.api.scripts", "event_handlers.events"),
        ("plugins.paths.events.handlers", "event_handlers.events"),
        ("plugins.paths.scripts", "event_handlers.events"),
        ("plugins.paths.versions", "version_data.versions"),
        ("plugins.graphql.request_headers", "graphql.proxy.request_headers"),
        ("plugins.graphql.schema", "graphql.schema"),
        ("plugins.cors", "CORS"),
        ("plugins.analytics.tag_headers", "tag_headers"),
        ("plugins.analytics", ""),
        ("plugins.cache", "cache_options"),
        ("plugins.virtual", "version_data.versions"),
        ("plugins.pre", "custom_middleware.pre"),
        ("plugins.post", "custom_middleware.post"),
        ("plugins.response", "custom_middleware.response"),
        ("plugins.api", ""),
        ("plugins.paths", ""),
        ("upstream.tls.client", "upstream_certificates"),
        ("upstream", "proxy"),
    ];
    let entity = Entity {
        kind: "API",
        id: match (api.text("name"), version) {
            ("", _) => id.clone(),
            (name, Some((base, version))) => {
                let version = version.name.as_deref().unwrap_or("none");
                format!("{name} (version {version} of {})", base.text("name"))
            }
            (name, None) => name.to_owned(),
        },
        path: api.file.clone(),
        elsewhere: elsewhere.iter().map(|(lowered, written)| ((*lowered).to_owned(), api.place(written))).collect(),
        fields: vec![("uri", "proxy.listen_path")],
        matching: Some(matching),
        ..Entity::default()
    };
    if loops.lead_to(base) {
        let mut item = item.clone();
        item.insert("id", text(&format!("{id}.loop")));
        let matching = Matching { paths: vec![looped], ranks: vec![rank], hosts: Vec::new() };
        lowered.add(ResourceKind::Routes, item, Entity { matching: Some(matching), ..entity.clone() });
    }
    if api.flag("internal") && version.is_none() {
        return;
    }
    // Paths of the gateway's own are the base's.
    let is_base = version.is_none_or(|(_, version)| version.name.is_none());
    if is_base && api.flag("enable_batch_request_support") {
        batch(api, (domain, rank), taken, lowered, found);
    }
    if is_base && api.flag("use_oauth2") && !api.flag("use_keyless") {
        oauth(api, own, conf, (domain, rank), taken, lowered);
    }
    lowered.add(ResourceKind::Routes, item, entity);
}

/// The regular expression of a listen path without the slash at its end.
fn beginning_of(listen: &str) -> String {
    match target::is_plain(listen) {
        true => target::escaped(listen.trim_end_matches('/')),
        false => target::pattern(listen).trim_end_matches('/').to_owned(),
    }
}

/// Adds a route for paths of the gateway's own behind the listen path of an API with this rank: their pattern, which is
/// `length` letters long at least, and the plugins there. `field` is what has asked for it.
fn add_own(
    api: &Definition,
    (field, name): (&str, &str),
    (pattern, length): (&str, u64),
    plugins: Node,
    (domain, rank): (Option<&str>, u64),
    taken: &mut Taken,
    lowered: &mut Lowered,
) {
    let mark = api.node.mark;
    let listen = api.text("proxy.listen_path");
    let id = format!("{name}.{}", taken.ids.len());
    taken.ids.push(id.clone());
    let item = map(mark, [("id", text(&id)), ("uri", text("/*")), ("plugins", plugins)]);
    let matching = Matching {
        paths: vec![format!("~{}/{pattern}$", beginning_of(listen))],
        ranks: vec![rank + length + 1],
        hosts: domain.into_iter().map(str::to_owned).collect(),
    };
    let entity = Entity {
        kind: "API",
        id: format!("{} ({name})", api.text("name")),
        path: api.file.clone(),
        elsewhere: vec![("plugins".to_owned(), api.place(field))],
        matching: Some(matching),
        ..Entity::default()
    };
    lowered.add(ResourceKind::Routes, item, entity);
}

/// Adds the route for the batches of an API.
fn batch(
    api: &Definition,
    at: (Option<&str>, u64),
    taken: &mut Taken,
    lowered: &mut Lowered,
    found: &mut Vec<Diagnostic>,
) {
    const FIELD: &str = "enable_batch_request_support";
    const PATH: &str = "tyk/batch/";
    let listen = api.text("proxy.listen_path");
    if !target::is_plain(listen) {
        let text = "without effect: the listen path has parameters, so that nobody can tell where its batches go";
        found.push(api.doubt(FIELD, text));
        return;
    }
    let plugins = map(api.node.mark, [("batch", map(api.node.mark, [("listen_path", text(listen))]))]);
    add_own(api, (FIELD, "batches"), (PATH, PATH.len() as u64), plugins, at, taken, lowered);
}

/// Adds the route for the endpoints of an API's OAuth server.
fn oauth(api: &Definition, own: &str, conf: &Conf, at: (Option<&str>, u64), taken: &mut Taken, lowered: &mut Lowered) {
    const PATHS: &str = "(?:oauth/(?:authorize/?|token/?|revoke|revoke_all)|tyk/oauth/authorize-client/?)";
    let mark = api.node.mark;
    let mut plugins = map(mark, [("oauth", access::oauth(api, own, conf))]);
    if api.flag("CORS.enable") {
        plugins.insert("cors", access::cors(api));
    }
    add_own(
        api,
        ("use_oauth2", "OAuth"),
        (PATHS, "tyk/oauth/authorize-client/".len() as u64),
        plugins,
        at,
        taken,
        lowered,
    );
}

/// The id of an API in the model: its own where the model takes it and no other has it.
fn id_of(api: &Definition, taken: &mut Taken, found: &mut Vec<Diagnostic>) -> String {
    let given = api.text("api_id");
    let base = Id::new(given).map_or_else(|| format!("api-{}", taken.ids.len() + 1), |id| id.as_str().to_owned());
    let is_own = [NO_API, GATEWAY, CONTROL, HEALTH].contains(&&*base);
    if taken.ids.contains(&base) && !is_own {
        let text = "another definition has this id: keys with a right to it may call both";
        found.push(api.doubt("api_id", text));
    }
    let id =
        (1..).map(|n| if n == 1 { base.clone() } else { format!("{base}.{n}") }).find(|id| !taken.ids.contains(id));
    let id = id.unwrap_or(base);
    taken.ids.push(id.clone());
    id
}

/// Adds the route for what no API takes, and those of the gateway API.
fn own_routes(
    (conf, scripts): (&Conf, &Scripts),
    policies: &[Node],
    mark: Mark,
    lowered: &mut Lowered,
    found: &mut Vec<Diagnostic>,
) {
    let mut gateway = map(mark, [("hello", text(&conf.health_endpoint)), ("policies", merged(policies, mark, found))]);
    add_storage(&mut gateway, conf);
    if !conf.events.is_empty() {
        gateway.insert("events", middleware::key_events(conf, scripts, mark));
    }
    let hello = format!("~/{}$", target::escaped(&conf.health_endpoint));
    let health = vec![hello, "~/ready$".to_owned()];
    let mut all = health.clone();
    if !conf.secret.is_empty() {
        all.push("/tyk/".to_owned());
    }
    let everything = || vec!["/".to_owned()];
    let none = || map(mark, []);
    let mut routes = vec![(NO_API, "no-api", none(), everything(), 0, false)];
    match conf.control_port {
        0 if conf.control_host.is_empty() => routes.push((GATEWAY, "gateway", gateway, all, OWN, false)),
        0 => {
            routes.push((HEALTH, "gateway", gateway.clone(), health, OWN, false));
            routes.push((GATEWAY, "gateway", gateway, all, OWN + 1, false));
        }
        _ => {
            // At the port of the gateway API there is nothing else.
            routes.push((CONTROL, "no-api", none(), everything(), OWN + 1, true));
            routes.push((HEALTH, "gateway", gateway.clone(), health, OWN, false));
            routes.push((GATEWAY, "gateway", gateway, all, OWN + 2, true));
        }
    }
    for (id, plugin, plugin_conf, paths, rank, is_control) in routes {
        let plugins = map(mark, [(plugin, plugin_conf)]);
        let mut item = map(mark, [("id", text(id)), ("uri", text("/*")), ("plugins", plugins)]);
        if is_control {
            let port = text(&conf.control_port.to_string());
            item.insert("vars", list(mark, vec![list(mark, vec![text("server_port"), text("=="), port])]));
        }
        let host = Some(&conf.control_host).filter(|host| id == GATEWAY && !host.is_empty());
        let hosts = host.into_iter().cloned().collect();
        let matching = Matching { ranks: vec![rank; paths.len()], paths, hosts };
        lowered.add(ResourceKind::Routes, item, document(id, Some(matching)));
    }
}

/// Adds the Redis of sessions to the settings of a plugin.
fn add_storage(made: &mut Node, conf: &Conf) {
    if let Some(storage) = &conf.storage {
        made.insert("storage", Node::from(storage));
    }
}

/// All policies by their ids: files with one each, or with a map of them, or with a list.
fn merged(policies: &[Node], mark: Mark, found: &mut Vec<Diagnostic>) -> Node {
    let mut all = map(mark, []);
    for file in policies {
        let mut file = file.clone();
        drop_nulls(&mut file);
        let id_of = |policy: &Node| {
            ["id", "_id"].into_iter().find_map(|name| policy.get(name).and_then(Node::as_str)).map(str::to_owned)
        };
        let is_policy = |node: &Node| node.get("access_rights").is_some() || node.get("quota_max").is_some();
        let given: Vec<(Option<String>, Node)> = match &file.kind {
            _ if is_policy(&file) => vec![(id_of(&file), file.clone())],
            Kind::Seq(items) => items.iter().map(|policy| (id_of(policy), policy.clone())).collect(),
            Kind::Map(entries) => {
                entries.iter().map(|(key, policy)| (Some(key.text.to_string()), policy.clone())).collect()
            }
            _ => Vec::new(),
        };
        for (id, policy) in given {
            match id {
                Some(id) => all.insert(&id, policy),
                None => found.push(Diagnostic::error(policy.mark, "policies", rule("a policy without an id"))),
            }
        }
    }
    all
}
