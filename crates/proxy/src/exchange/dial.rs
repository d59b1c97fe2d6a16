//! Connections to nodes of an upstream for plugins that speak protocols of their own over them.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_plugin::{CalloutError, Failure, Side, Try};

use super::Runner;
use super::forward::Attempt;
use super::subrequest::{self, Asker, Kind, Slot};
use crate::snapshot::Local;
use crate::upstream::outgoing::Outgoing;
use crate::upstream::stream::NodeStream;
use crate::upstream::{Timeouts, aside};
use crate::worker::Worker;

/// A connection to a node. It counts as a callout until it is dropped.
struct Dialled {
    stream: NodeStream,
    _slot: Slot,
}

/// Connects to the node whose turn it is, or to others while none takes the connection.
pub(super) async fn dial(
    worker: &Rc<Worker>,
    local: &Rc<Local>,
    upstream: u32,
    timeout: Duration,
) -> Result<impl AsyncRead + AsyncWrite + Unpin + use<>, CalloutError> {
    let slot = Slot::take(worker, Kind::Callout).ok_or(CalloutError::Busy)?;
    let upstream = local.snapshot.upstreams.get(upstream);
    let upstream = upstream.ok_or(CalloutError::Failed("a connection to an upstream that is not there"))?;
    // Whoever waits drops the future when the client has gone.
    let runner = Runner::new(Asker::new(std::future::pending()), Rc::clone(worker));
    let Timeouts { connect, send, read } = upstream.timeouts;
    let timeouts = Timeouts { connect: connect.min(timeout.as_millis() as u64), send, read };
    let mut x = worker.take_exchange();
    subrequest::begin(&mut x, worker);
    let give_up = worker.timers.now().saturating_add(upstream.retry_ms);
    let mut failure = Failure { side: Side::Gateway, ..Failure::upstream(503, "upstream has no node") };
    let mut stream = None;
    while let Some(turn) = upstream.pick(&mut x, worker.timers.now()) {
        let Some(node) = upstream.nodes.get(usize::from(turn)) else { break };
        x.upstream.tried.push(turn);
        x.upstream.tries.push(Try { addr: None, status: 0, begin: x.times.now, connected: 0, head: 0, end: 0 });
        let attempt = Attempt { local: &worker.bare, upstream, node, timeouts, outgoing: Outgoing::Subrequest };
        let Some(choice) = node.choose(worker.timers.now()) else {
            failure = Failure::upstream(502, "node name has no address");
            break;
        };
        match runner.connect(&mut x, &attempt, choice).await {
            Ok((connected, _)) => {
                aside::watch::clear(worker, &node.endpoint);
                stream = Some(connected);
                break;
            }
            Err(error) => {
                failure = error.failure;
                if error.unreachable && upstream.nodes.len() > 1 {
                    aside::watch::set(worker, &node.endpoint, failure.reason, timeouts.connect);
                }
                let spent = x.upstream.tried.len() > upstream.retries as usize || worker.timers.now() >= give_up;
                if !error.retryable || spent {
                    break;
                }
            }
        }
    }
    worker.put_exchange(x);
    match stream {
        Some(stream) => Ok(Dialled { stream, _slot: slot }),
        None if failure.status == 504 => Err(CalloutError::TimedOut),
        None => Err(CalloutError::Failed(failure.reason)),
    }
}

impl AsyncRead for Dialled {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Dialled {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
