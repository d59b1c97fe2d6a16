//! The APIs that plugins offer, for routes with `public-api`.

use std::fs;
use std::sync::{Arc, OnceLock};

use serde_json::json;
use tokio::sync::{Semaphore, oneshot};
use weir_config::Settings;
use weir_config::settings::{Endpoint, PluginNames};
use weir_plugin::{Api, ApiCx, Flow, Invalid, Io, LocalFuture, Plugin, RequestCx};
use weir_plugin::{Held, NO_ROOM};
use weir_telemetry::metrics::Metrics;
use weir_wire::method::Method;

use crate::auth::wolf_rbac::api::WolfApi;
use crate::requests::batch_requests::BatchApi;

/// Does work on a thread that may block.
pub type Offload = Box<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

/// Pages of metrics that are written at one time. More wait.
const SCRAPES: usize = 4;

/// The APIs. Their data arrive when the gateway starts; rules are compiled before.
#[derive(Clone, Default)]
pub struct Apis(Arc<OnceLock<Running>>);

struct Running {
    metrics: Arc<Metrics>,
    offload: Offload,
    scrapes: Arc<Semaphore>,
    /// Of this process: another one has another.
    id: String,
}

impl std::fmt::Debug for Apis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Apis").field("started", &self.0.get().is_some()).finish()
    }
}

impl Apis {
    /// Those that the settings have.
    #[must_use]
    pub fn list(&self, settings: &Settings) -> Vec<Arc<dyn Api>> {
        let wanted = |name: &str| settings.plugins.iter().any(|known| known == PluginNames::ALL || known == name);
        let mut apis: Vec<Arc<dyn Api>> = vec![Arc::new(StatusApi(self.clone())), Arc::new(BatchApi)];
        apis.extend(WolfApi::ALL.map(|api| Arc::new(api) as Arc<dyn Api>));
        // As in APISIX: whoever has a port of their own for metrics does not show them to clients.
        if settings.listen.metrics == Endpoint::Off {
            apis.push(Arc::new(MetricsApi { apis: self.clone(), path: settings.metrics.path.clone() }));
        }
        apis.retain(|api| wanted(api.plugin()));
        apis
    }

    /// The gateway starts. `offload` takes work that no worker may wait for.
    pub fn start(&self, metrics: &Arc<Metrics>, offload: Offload) {
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default().trim().to_owned();
        let scrapes = Arc::new(Semaphore::new(SCRAPES));
        let running = Running { metrics: Arc::clone(metrics), offload, scrapes, id };
        // The APIs start once.
        let _ = self.0.set(running);
    }
}

const NOT_STARTED: &str = "the gateway has not started yet";

/// `node-status`: connections and requests in numbers.
#[derive(Debug, Clone)]
struct StatusApi(Apis);

impl Api for StatusApi {
    fn plugin(&self) -> &'static str {
        "node-status"
    }

    fn method(&self) -> Method {
        Method::Get
    }

    fn path(&self) -> &str {
        "/apisix/status"
    }

    fn open(&self, _: &ApiCx<'_>) -> Result<Arc<dyn Plugin>, Invalid> {
        Ok(Arc::new(self.clone()))
    }
}

impl Plugin for StatusApi {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(running) = self.0.0.get() else { return cx.fail(503, NOT_STARTED) };
        let clients = running.metrics.clients();
        let text = |number: u64| number.to_string();
        let body = json!({ "id": running.id, "status": {
            "active": text(clients.active), "accepted": text(clients.accepted), "handled": text(clients.handled),
            "total": text(clients.requests), "reading": text(clients.reading), "writing": text(clients.writing),
            "waiting": text(clients.waiting),
        } });
        let answer = cx.reply(200).field("Content-Type", b"text/plain; charset=utf-8");
        answer.body(body.to_string().as_bytes()).done()
    }
}

/// `prometheus`: the page of metrics.
#[derive(Debug, Clone)]
struct MetricsApi {
    apis: Apis,
    path: String,
}

impl Api for MetricsApi {
    fn plugin(&self) -> &'static str {
        "prometheus"
    }

    fn method(&self) -> Method {
        Method::Get
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn open(&self, _: &ApiCx<'_>) -> Result<Arc<dyn Plugin>, Invalid> {
        Ok(Arc::new(self.clone()))
    }
}

impl Plugin for MetricsApi {
    fn access(&self, _: &mut RequestCx<'_>) -> Flow {
        Flow::Suspend
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, _: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let Some(running) = self.apis.0.get() else { return cx.fail(503, NOT_STARTED) };
            let Ok(permit) = Arc::clone(&running.scrapes).acquire_owned().await else {
                return cx.fail(503, NOT_STARTED);
            };
            let (sender, page) = oneshot::channel();
            let metrics = Arc::clone(&running.metrics);
            // Adding up tens of thousands of series takes milliseconds, which no request of this worker shall wait for.
            (running.offload)(Box::new(move || {
                // Whoever has asked may have gone; then nobody takes it.
                let _ = sender.send(page_of(&metrics));
                drop(permit);
            }));
            match page.await {
                Ok(Some(page)) => {
                    cx.reply(200).field("Content-Type", b"text/plain; version=0.0.4").whole_body(page).done()
                }
                Ok(None) => Flow::Abort(NO_ROOM),
                Err(_) => cx.fail(503, "the gateway stops"),
            }
        })
    }
}

/// The whole page; `None`: the budget for buffers has no room for it.
fn page_of(metrics: &Arc<Metrics>) -> Option<Vec<u8>> {
    let mut scrape = metrics.scrape();
    let (mut page, mut held) = (String::new(), Held::default());
    loop {
        if !held.grow_to(page.capacity()) {
            return None;
        }
        if !scrape.write_chunk(&mut page) {
            return Some(page.into_bytes());
        }
    }
}
