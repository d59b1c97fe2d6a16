//! The control API of this one gateway: the configuration in force, and the health of its upstreams. Paths and bodies are
//! those of APISIX.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hyper::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{RwLock, Semaphore};
use tokio::task::spawn_blocking;
use weir_admin::{Configuration, Hosts, Schemas};
use weir_config::load::in_force;
use weir_config::node::Node;
use weir_config::settings::Discovery;
use weir_proxy::{DataPlane, HealthChecks};
use weir_store::{Item, Key, Kind};

use crate::discovery::pages as pages_of_registries;
use crate::servers::health_pages::{self, error, json as json_page};
use crate::servers::pages::{Command, Leaving, Page, PageRequest, Server, text, with_type};
use crate::servers::server_info::ServerInfo;
use crate::source::rules::Rules;
use crate::source::secrets;
use crate::stored::live::Live;

/// The data sources of the pages.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) schemas: Arc<Schemas>,
    /// The live configuration.
    pub(crate) configuration: Arc<dyn Configuration>,
    /// The resources of a store.
    pub(crate) live: Option<Live>,
    pub(crate) rules: Arc<Rules>,
    pub(crate) data_plane: Arc<RwLock<DataPlane>>,
    pub(crate) checks: Arc<HealthChecks>,
    pub(crate) info: ServerInfo,
    /// Registries of services.
    pub(crate) discovery: Discovery,
    /// Host names under which the API may be reached.
    pub(crate) hosts: Hosts,
}

/// Default address of the API for resources that do not come from a file.
pub(crate) const CONTROL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// Maximum number of pages that are built, or are long and being written, at one time.
const DUMPS: usize = 4;

const GC: &str = "/v1/gc";
const RELOAD_PLUGINS: &str = "/v1/plugins/reload";
const ACCEPT: &str = "/v1/store/accept";
const COMMANDS: &[Command] = &[(Method::POST, GC), (Method::PUT, RELOAD_PLUGINS), (Method::POST, ACCEPT)];

/// Kinds of resources on the pages: the path of all, the path of one, the noun for one, its section.
const KINDS: [(&str, &str, &str, Kind); 4] = [
    ("/v1/routes", "/v1/route/", "route", Kind::Routes),
    ("/v1/services", "/v1/service/", "service", Kind::Services),
    ("/v1/upstreams", "/v1/upstream/", "upstream", Kind::Upstreams),
    ("/v1/plugin_metadatas", "/v1/plugin_metadata/", "plugin metadata", Kind::PluginMetadata),
];

/// Serves the pages.
pub(crate) async fn run(server: Server, leaving: Leaving, control: Arc<Control>) {
    // A dump of all routes takes as much memory as the configuration, so only a few are built and written at a time.
    let turn = Arc::new(Semaphore::new(DUMPS));
    let page = move |request: PageRequest| {
        let (control, turn) = (Arc::clone(&control), Arc::clone(&turn));
        async move {
            let turn = turn.acquire_owned().await.ok()?;
            let page = control.page(&request).await?;
            Some(page.map(|page| page.holding(turn)))
        }
    };
    server.serve(leaving, COMMANDS, page).await;
}

impl Control {
    async fn page(&self, request: &PageRequest) -> Option<Response<Page>> {
        if let Some(reason) = self.hosts.refusal(&request.uri, &request.fields, request.local) {
            return Some(error(StatusCode::FORBIDDEN, &reason));
        }
        let path = request.path.as_str();
        match path {
            GC if request.method == Method::POST => return Some(self.clean_up().await),
            ACCEPT if request.method == Method::POST => return Some(self.accept().await),
            RELOAD_PLUGINS if request.method == Method::PUT => {
                // All plugins are part of the program, so there is nothing to reload.
                return Some(text(StatusCode::OK, "done"));
            }
            "/v1/server_info" => return Some(json_page(StatusCode::OK, &self.info.page().await)),
            "/v1/schema" => return Some(json_page(StatusCode::OK, &self.schemas.everything())),
            _ => {}
        }
        for (all, one, name, kind) in KINDS {
            if path.trim_end_matches('/') == all {
                return Some(
                    self.answer(kind, None, |found| match found.len() {
                        // An empty table, as Lua serializes it.
                        0 if kind == Kind::PluginMetadata => json_page(StatusCode::OK, &json!({})),
                        _ => json_page(StatusCode::OK, &found),
                    })
                    .await,
                );
            }
            if let Some(id) = path.strip_prefix(one).filter(|id| !id.is_empty()) {
                return Some(
                    self.answer(kind, Some(id), |mut found| match found.pop() {
                        Some(only) => json_page(StatusCode::OK, &only),
                        None => error(StatusCode::NOT_FOUND, &format!("{name}[{id}] not found")),
                    })
                    .await,
                );
            }
        }
        if let Some(path) = path.strip_prefix("/v1/discovery/") {
            return pages_of_registries::page(path, &self.discovery, self.rules.compiler.services());
        }
        health_pages::page(path, request.html, &self.checks, self.rules.key_prefix())
    }

    async fn answer(
        &self,
        kind: Kind,
        id: Option<&str>,
        page: impl FnOnce(Vec<Value>) -> Response<Page>,
    ) -> Response<Page> {
        match self.shown(kind, id).await {
            Ok(found) => page(found),
            Err(reason) => error(StatusCode::SERVICE_UNAVAILABLE, &reason),
        }
    }

    /// The resources in force of a kind, or the one with an id.
    async fn shown(&self, kind: Kind, id: Option<&str>) -> Result<Vec<Value>, String> {
        let store = self.configuration.store();
        let found = match id {
            Some(id) => store.get(&Key::new(kind, id)).await.map(|item| item.into_iter().collect()),
            None => store.list(Some(kind)).await.map(|listing| listing.items),
        };
        let items: Vec<Item> = found.map_err(|error| error.to_string())?;
        let (schemas, prefix) = (Arc::clone(&self.schemas), self.rules.key_prefix());
        let work = spawn_blocking(move || items.iter().filter_map(|item| show(&schemas, prefix, item)).collect());
        work.await.map_err(|panicked| panicked.to_string())
    }

    /// Accepts the state of etcd, although it lacks resources that are in force.
    async fn accept(&self) -> Response<Page> {
        let accepted = match &self.live {
            Some(live) => live.accept().await,
            None => None,
        };
        let accepted =
            accepted.map(|accepted| json!({ "revision": accepted.revision, "resources": accepted.resources }));
        json_page(StatusCode::OK, &json!({ "accepted": accepted }))
    }

    /// Frees configurations that no request uses any more, now rather than within a second.
    async fn clean_up(&self) -> Response<Page> {
        let (data_plane, rules) = (Arc::clone(&self.data_plane), Arc::clone(&self.rules));
        let work = spawn_blocking(move || {
            let unused = data_plane.blocking_write().retire();
            drop(unused);
            rules.compiler.sweep();
        });
        match work.await {
            Ok(()) => with_type(StatusCode::OK, "text/plain", Page::Whole(None)),
            Err(panicked) => error(StatusCode::INTERNAL_SERVER_ERROR, &panicked.to_string()),
        }
    }
}

/// A resource in force, in APISIX's envelope. `None` for an invalid resource, which is not in force.
fn show(schemas: &Schemas, prefix: &str, item: &Item) -> Option<Value> {
    let (kind, id, modified) = (item.key.kind(), item.key.id(), item.modified);
    let mut written: Value = serde_json::from_str(&item.value).ok()?;
    secrets::masked(kind, &mut written);
    let fields = written.as_object_mut()?;
    fields.insert("id".into(), id.into());
    if kind == Kind::PluginMetadata {
        return Some(written);
    }
    let key = format!("{prefix}{}", item.key);
    let mut value = in_force(kind, &Node::from(&written))?;
    keep_written(&mut value, &written, DEFAULTS);
    if let (Some(upstream), Some(written)) = (value.get_mut("upstream"), written.get("upstream")) {
        keep_written(upstream, written, UPSTREAM_DEFAULTS);
    }
    if kind == Kind::Upstreams {
        keep_written(&mut value, &written, UPSTREAM_DEFAULTS);
    }
    schemas.complete_plugins(&mut value);
    let upstream = if kind == Kind::Upstreams { Some(&mut value) } else { value.get_mut("upstream") };
    let mut has_domain = false;
    if let Some(upstream) = upstream {
        let nodes = upstream["nodes"].clone();
        has_domain = nodes.as_array().into_iter().flatten().any(is_named);
        upstream["original_nodes"] = nodes.clone();
        upstream["nodes_ref"] = nodes;
        upstream["resource_key"] = key.as_str().into();
        upstream["resource_id"] = id.into();
        upstream["resource_version"] = modified.into();
    }
    Some(json!({
        "key": key,
        "value": value,
        "createdIndex": item.created,
        "modifiedIndex": modified,
        "has_domain": has_domain,
    }))
}

/// Fields of all resources, and of upstreams, that APISIX's schemas fill in with defaults. The defaults of other fields
/// are not shown.
const DEFAULTS: &[&str] = &["id", "priority", "status", "upstream", "type", "hash_on", "scheme", "pass_host", "nodes"];
const UPSTREAM_DEFAULTS: &[&str] = &["id", "type", "hash_on", "scheme", "pass_host", "nodes"];

fn keep_written(value: &mut Value, written: &Value, defaults: &[&str]) {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| written.get(name).is_some() || defaults.contains(&name.as_str()));
    }
}

/// True if the host of a node is a name to be resolved.
fn is_named(node: &Value) -> bool {
    let host = node["host"].as_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_err() && !host.starts_with("unix:")
}
