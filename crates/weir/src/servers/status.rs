//! `/status` and `/status/ready`, for load balancers and orchestrators, and the health of upstream nodes. Paths and bodies
//! are those of APISIX.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::{Response, StatusCode};
use tokio::sync::RwLock;
use weir_proxy::{DataPlane, HealthChecks};

use crate::servers::health_pages;
use crate::servers::pages::{Leaving, Page, PageRequest, Server, text};

/// True while the gateway finishes its requests in flight and accepts no more.
pub(crate) type Draining = Arc<AtomicBool>;

/// Serves the pages. `/status` is answered 200 as long as the process works; `/status/ready` only while every worker has
/// a configuration, the gateway is not draining, and there is a configuration to serve that does not refuse every request.
pub(crate) async fn run(
    server: Server,
    leaving: Leaving,
    data_plane: Arc<RwLock<DataPlane>>,
    draining: Draining,
    vacant: Arc<AtomicBool>,
    checks: Arc<HealthChecks>,
    prefix: &'static str,
) {
    let page = move |request: PageRequest| {
        let (data_plane, draining, checks) = (Arc::clone(&data_plane), Arc::clone(&draining), Arc::clone(&checks));
        let vacant = Arc::clone(&vacant);
        async move {
            match request.path.as_str() {
                "/status" => Some(ok()),
                "/status/ready" if draining.load(Ordering::Relaxed) => Some(not_ready("draining")),
                "/status/ready" if vacant.load(Ordering::Relaxed) => Some(not_ready("etcd holds no resource")),
                "/status/ready" => {
                    let plane = data_plane.read().await;
                    Some(match plane.ready() {
                        Ok(()) if plane.refuses_all() => not_ready("an invalid resource may guard any request"),
                        Ok(()) => ok(),
                        Err(worker) => not_ready(&format!("worker id: {worker} has not received configuration")),
                    })
                }
                other => health_pages::page(other, request.html, &checks, prefix),
            }
        }
    };
    server.serve(leaving, &[], page).await;
}

fn ok() -> Response<Page> {
    text(StatusCode::OK, r#"{"status":"ok"}"#)
}

fn not_ready(reason: &str) -> Response<Page> {
    text(StatusCode::SERVICE_UNAVAILABLE, format!(r#"{{"status":"error","error":"{reason}"}}"#))
}
