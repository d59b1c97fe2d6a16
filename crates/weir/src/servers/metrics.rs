//! The Prometheus page.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::Semaphore;
use weir_telemetry::metrics::Metrics;

use crate::servers::pages::{Asked, Leaving, Page, Server, text, with_type};

/// The path that is always there, beside `metrics.path`: scrapers look for it when not told otherwise.
const USUAL_PATH: &str = "/metrics";

/// Scrapes under way at one time; each holds a sum of all series. More wait.
const SCRAPES: usize = 4;

/// Serves the page at `path` and at `/metrics`.
pub(crate) async fn run(server: Server, leaving: Leaving, metrics: Arc<Metrics>, path: String) {
    let path: Arc<str> = path.into();
    let free = Arc::new(Semaphore::new(SCRAPES));
    let page = move |Asked { path: asked, .. }: Asked| {
        let (metrics, path, free) = (Arc::clone(&metrics), Arc::clone(&path), Arc::clone(&free));
        async move {
            if *asked != *path && asked != USUAL_PATH {
                return None;
            }
            let permit = free.acquire_owned().await.ok()?;
            // Adding up tens of thousands of series takes milliseconds, which signals and reloads shall not wait for.
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
