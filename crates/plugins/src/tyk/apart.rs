//! A thread for work that no request waits for: events of nodes, and questions of the dashboard for keys in Redis. Workers have
//! requests to serve, and other threads no runtime for connections of plugins.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;

use tokio::sync::mpsc;

/// Work that waits for the thread; more is refused.
const MOST_WAITING: usize = 256;

type Job = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

static QUEUE: OnceLock<Option<mpsc::Sender<Job>>> = OnceLock::new();

/// Starts work on the thread, beside what is under way there.
///
/// # Errors
/// Too much waits, or there is no such thread.
pub(super) fn run<F>(work: impl FnOnce() -> F + Send + 'static) -> Result<(), &'static str>
where
    F: Future<Output = ()> + 'static,
{
    let queue = QUEUE.get_or_init(start).as_ref().ok_or("there is no thread for it")?;
    queue.try_send(Box::new(move || Box::pin(work()))).map_err(|_| "too much waits for the thread")
}

fn start() -> Option<mpsc::Sender<Job>> {
    let (queue, mut jobs) = mpsc::channel::<Job>(MOST_WAITING);
    let serve = move || {
        let ended = weir_runtime::block_on(async {
            while let Some(job) = jobs.recv().await {
                weir_runtime::spawn(job());
            }
        });
        if let Err(error) = ended {
            tracing::error!(%error, "the thread for events and for the dashboard has ended");
        }
    };
    let started = std::thread::Builder::new().name("weir-tyk".to_owned()).spawn(serve);
    started.inspect_err(|error| tracing::error!(%error, "no thread for events and for the dashboard")).ok()?;
    Some(queue)
}
