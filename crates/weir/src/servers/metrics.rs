//! The Prometheus page.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::Semaphore;
use weir_telemetry::metrics::Metrics;

use crate::servers::pages::{Leaving, Page, PageRequest, Server, text, with_type};

/// Path that is always served, beside `metrics.path`, because it is the default of scrapers.
const USUAL_PATH: &str = "/metrics";

/// Maximum number of concurrent scrapes, because each holds a sum of all series. Further ones wait.
const SCRAPES: usize = 4;

/// Serves the page at `path` and at `/metrics`.
pub(crate) async fn run(server: Server, leaving: Leaving, metrics: Arc<Metrics>, path: String) {
    let path: Arc<str> = path.into();
    let free = Arc::new(Semaphore::new(SCRAPES));
    let page = move |PageRequest { path: asked, .. }: PageRequest| {
        let (metrics, path, free) = (Arc::clone(&metrics), Arc::clone(&path), Arc::clone(&free));
        async move {
            if *asked != *path && asked != USUAL_PATH {
                return None;
            }
            let permit = free.acquire_owned().await.ok()?;
            // Adding up tens of thousands of series takes milliseconds, which must not delay signals and reloads.
            let Ok(mut scrape) = tokio::task::spawn_blocking(move || metrics.scrape()).await else {
                return Some(text(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error\n"));
            };
            let pieces = move || {
                let _held = &permit;
                let mut piece = String::new();
                scrape.write_chunk(&mut piece).then(|| Bytes::from(piece))
            };
            let page = Page::Pieces(Box::new(pieces));
            Some(with_type(StatusCode::OK, "text/plain; version=0.0.4", page))
        }
    };
    server.serve(leaving, &[], page).await;
}
