//! `/status` and `/status/ready`, for load balancers and orchestrators, and the health of upstream nodes. Paths and bodies
//! are those of APISIX.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::RwLock;
use weir_proxy::{DataPlane, HealthChecks};

use crate::process::serving::InvalidItems;
use crate::servers::health_pages;
use crate::servers::pages::{Leaving, Page, PageRequest, Server, text};

/// Maximum number of invalid items that a page names.
const NAMED: usize = 100;

/// True while the gateway finishes its requests in flight and accepts no more.
pub(crate) type Draining = Arc<AtomicBool>;

/// The state that the pages show.
#[derive(Debug)]
pub(crate) struct Status {
    pub(crate) data_plane: Arc<RwLock<DataPlane>>,
    pub(crate) draining: Draining,
    /// True while no configuration has been in force yet.
    pub(crate) vacant: Arc<AtomicBool>,
    pub(crate) invalid: InvalidItems,
    pub(crate) checks: Arc<HealthChecks>,
    /// Prefix of the keys of resources on the health pages.
    pub(crate) prefix: &'static str,
}

/// Serves the pages. `/status` is answered 200 as long as the process works; `/status/ready` only while every worker has
/// a configuration, the gateway is not draining, and there is a configuration to serve that does not refuse every request.
pub(crate) async fn run(server: Server, leaving: Leaving, status: Arc<Status>) {
    let page = move |request: PageRequest| {
        let status = Arc::clone(&status);
        async move { status.page(&request).await }
    };
    server.serve(leaving, &[], page).await;
}

impl Status {
    async fn page(&self, request: &PageRequest) -> Option<Response<Page>> {
        match request.path.as_str() {
            "/status" => Some(self.working()),
            "/status/ready" => Some(self.ready().await),
            other => health_pages::page(other, request.html, &self.checks, self.prefix),
        }
    }

    /// The page of a process that works. It names the invalid items of the configuration in force, if there are any.
    fn working(&self) -> Response<Page> {
        let mut body = json!({ "status": "ok" });
        self.name_invalid(&mut body);
        text(StatusCode::OK, body.to_string())
    }

    async fn ready(&self) -> Response<Page> {
        let reason = if self.draining.load(Ordering::Relaxed) {
            "draining".to_owned()
        } else if self.vacant.load(Ordering::Relaxed) {
            "etcd holds no resource".to_owned()
        } else {
            let plane = self.data_plane.read().await;
            match plane.ready() {
                Ok(()) if plane.refuses_all() => "an invalid resource may guard any request".to_owned(),
                Ok(()) => return text(StatusCode::OK, json!({ "status": "ok" }).to_string()),
                Err(worker) => format!("worker id: {worker} has not received configuration"),
            }
        };
        let mut body = json!({ "status": "error", "error": reason });
        self.name_invalid(&mut body);
        text(StatusCode::SERVICE_UNAVAILABLE, body.to_string())
    }

    fn name_invalid(&self, body: &mut Value) {
        let names = self.invalid.first(NAMED);
        if !names.is_empty() {
            body["invalid"] = names.into();
        }
    }
}
