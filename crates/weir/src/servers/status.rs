//! `/status` and `/status/ready`, for whoever decides whether this gateway gets traffic, and the health of upstream
//! nodes. APISIX's paths and bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::{Response, StatusCode};
use tokio::sync::RwLock;
use weir_proxy::{DataPlane, HealthChecks};

use crate::servers::health_pages;
use crate::servers::pages::{Asked, Leaving, Page, Server, text};

/// Whether the gateway is finishing what it has and takes nothing more.
pub(crate) type Draining = Arc<AtomicBool>;

/// Serves the pages. `/status` is answered 200 as long as the process works; `/status/ready` only while every
/// worker has a configuration and none is draining, and while there is anything to serve.
pub(crate) async fn run(
    server: Server,
    leaving: Leaving,
    data_plane: Arc<RwLock<DataPlane>>,
    draining: Draining,
    vacant: Arc<AtomicBool>,
    checks: Arc<HealthChecks>,
    prefix: &'static str,
) {
    let page = move |asked: Asked| {
        let (data_plane, draining, checks) = (Arc::clone(&data_plane), Arc::clone(&draining), Arc::clone(&checks));
        let vacant = Arc::clone(&vacant);
        async move {
            match asked.path.as_str() {
                "/status" => Some(ok()),
                "/status/ready" if draining.load(Ordering::Relaxed) => Some(not_ready("draining")),
                "/status/ready" if vacant.load(Ordering::Relaxed) => Some(not_ready("etcd holds no resource")),
                "/status/ready" => Some(match data_plane.read().await.ready() {
                    Ok(()) => ok(),
                    Err(worker) => not_ready(&format!("worker id: {worker} has not received configuration")),
                }),
                other => health_pages::page(other, asked.html, &checks, prefix),
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
