//! Targets that fail their uptime tests (`HostDown`) and pass them again (`HostUp`). Nodes are checked on a thread of the
//! gateway's own, without requests: handlers run on another one.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use weir_plugin::{BuildCx, NodeChange, NodeListener, NodeListeners};

use super::{Event, Events};
use crate::tyk::apart;

/// The targets of an API.
pub(in crate::tyk) struct Nodes {
    events: Arc<Events>,
    api: Arc<str>,
    /// Scheme and path of the tests.
    scheme: String,
    path: String,
    /// Path and query of the target URL.
    target: String,
    /// The last events of targets: versions of an API are told of the same ones.
    told: Arc<papaya::HashMap<SocketAddr, bool>>,
    /// Those of the process, which are there for as long as somebody listens.
    _listeners: Arc<NodeListeners>,
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nodes").field("api", &self.api).finish_non_exhaustive()
    }
}

impl Nodes {
    /// Listens to what comes of the tests of an upstream, where a handler asks for it.
    pub(in crate::tyk) fn listen(
        events: &Arc<Events>,
        (api, target): (&Arc<str>, String),
        upstream: &Map<String, Value>,
        build: &BuildCx<'_>,
    ) -> Option<Arc<dyn NodeListener>> {
        let active = &upstream.get("checks")?["active"];
        if ![Event::HostDown, Event::HostUp].into_iter().any(|event| events.hears(event)) {
            return None;
        }
        let text = |field: &str| active[field].as_str().unwrap_or_default().to_owned();
        let listeners = NodeListeners::of(build.states);
        let listener: Arc<dyn NodeListener> = Arc::new(Self {
            events: Arc::clone(events),
            api: Arc::clone(api),
            scheme: text("type"),
            path: text("http_path"),
            target,
            told: build.states.get_or_create(&format!("tyk targets {api}"), papaya::HashMap::new),
            _listeners: Arc::clone(&listeners),
        });
        listeners.listen(build.place, &listener);
        Some(listener)
    }

    fn meta(&self, event: Event, change: &NodeChange) -> Value {
        let host = match change.addr {
            _ if !change.host.contains(':') => format!("{}:{}", change.host, change.addr.port()),
            addr => addr.to_string(),
        };
        let scheme = if self.scheme == "https" { "https" } else { "http" };
        json!({
            "Message": event.message(),
            "HostInfo": {
                "CheckURL": format!("{}://{host}{}", self.scheme, self.path),
                "ResponseCode": change.status.unwrap_or(0),
                "IsTCPError": change.status.is_none() && !change.is_up,
                "MetaData": {
                    "target_url": format!("{scheme}://{host}{}", self.target), "api_id": &*self.api, "host_name": host,
                },
            },
        })
    }
}

impl NodeListener for Nodes {
    fn node_changed(&self, change: &NodeChange) {
        let before = self.told.pin().insert(change.addr, change.is_up).copied();
        if before == Some(change.is_up) {
            return;
        }
        let event = if change.is_up { Event::HostUp } else { Event::HostDown };
        if !self.events.hears(event) {
            return;
        }
        let (events, meta) = (Arc::clone(&self.events), self.meta(event, change));
        let told = apart::run(move || {
            events.send(event, &meta, weir_runtime::now_us() / 1000);
            std::future::ready(())
        });
        if let Err(reason) = told {
            tracing::warn!(event = event.name(), api_id = &*self.api, reason, "an event is not told");
        }
    }
}
