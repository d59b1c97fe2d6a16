//! A stream over TCP.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use tokio::io::ReadBuf;
use weir_net::sys::Socket;
use weir_plugin::host::Exchange;
use weir_plugin::{Client, Failure, Side};
use weir_telemetry::metrics::ClientError;

use super::hello;
use super::relay::Way;
use super::session::{Carrier, Session};
use super::table::Transport;
use crate::downstream::Presence;
use crate::downstream::h1::ClientStream;
use crate::downstream::tls::{self, NoSession};
use crate::exchange::{Attempt, AttemptError, Runner};
use crate::tls::server::Offer;
use crate::upstream::Upstream;
use crate::upstream::endpoint::Choice;
use crate::upstream::stream::NodeStream;
use crate::worker::Worker;

/// Most bytes of the beginning of a stream that are held for a plugin, and of one read of it.
const MOST_FIRST: usize = 64 << 10;
const FIRST_READ: usize = 4 << 10;

fn refused(reason: &'static str) -> Failure {
    Failure { status: 400, side: Side::Client, reason }
}

/// The client of a stream.
struct Peer<S>(S);

impl<S: ClientStream> Presence for Peer<S> {
    fn poll_reset(&self, cx: &mut std::task::Context<'_>) -> Poll<()> {
        self.0.poll_reset(cx)
    }
}

/// Serves a connection of a listener for streams.
pub(crate) async fn serve(socket: Socket, client: Client, worker: Rc<Worker>) {
    let Some(local) = worker.current() else { return };
    if !client.https {
        let asks = local.snapshot.streams.asks_for_name(&client);
        let sni = if asks { hello::peek(&socket, &worker).await } else { None };
        return Session::new(Peer(socket), client, sni, local, worker).run().await;
    }
    let failed = |reason: &dyn std::fmt::Display| {
        worker.recorder.client_error(ClientError::TlsHandshake);
        tracing::info!(client = %client.addr_text, error = %reason, "TLS handshake failed");
    };
    // In a box that is gone once the connection stands.
    let stream = match Box::pin(tls::accept(socket, &worker, Offer::Nothing)).await {
        Ok(stream) => stream,
        Err(NoSession::PlainHttp(..)) => return failed(&"the client does not speak TLS"),
        Err(NoSession::Failed(error)) => return failed(&weir_net::tls::words::of_io(&error)),
    };
    let facts = stream.facts();
    if !local.snapshot.tls.admits_stream(facts.sni.as_deref(), facts.verified) {
        return failed(&"the client has shown no certificate");
    }
    Session::new(Peer(stream), client, facts.sni, local, worker).run().await;
}

impl<S: ClientStream> Carrier for Peer<S> {
    type Node = NodeStream;

    const TRANSPORT: Transport = Transport::Tcp;

    async fn connect(
        runner: &Runner<Self>,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        choice: Choice,
    ) -> Result<NodeStream, AttemptError> {
        runner.connect(x, attempt, choice).await.map(|(stream, _)| stream)
    }

    /// The time for all of it is that for handshakes.
    async fn read_first(session: &mut Session<Self>) -> Result<(), Failure> {
        let Session { runner, x, .. } = session;
        let Some(stream) = &mut x.stream else { return Err(Failure::internal("no stream")) };
        if stream.first.is_empty() {
            runner.timer.set_idle(runner.worker.options.handshake_ms);
        }
        let from = stream.first.len();
        if from >= MOST_FIRST {
            return Err(refused("the beginning of the stream is too long"));
        }
        let Runner { down, timer, .. } = runner;
        let read = poll_fn(|cx| {
            // On the stack, so that a client that says nothing holds no memory.
            let mut room = [0; FIRST_READ];
            let mut buf = ReadBuf::new(&mut room);
            match Pin::new(&mut down.0).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) => {
                    stream.first.extend_from_slice(buf.filled());
                    Poll::Ready(true)
                }
                Poll::Ready(Err(_)) => Poll::Ready(true),
                Poll::Pending => timer.poll_expired(cx).map(|()| false),
            }
        });
        match read.await {
            false => Err(Failure { status: 408, ..refused("the client says nothing") }),
            true if stream.first.len() == from => Err(refused("the client has gone")),
            true => Ok(()),
        }
    }

    /// Moves bytes both ways until both sides have ended, one has failed, or nothing has moved for too long.
    async fn relay(session: &mut Session<Self>, upstream: &Upstream, mut node: NodeStream) -> Result<(), Failure> {
        let Session { runner, x, .. } = session;
        let first = x.stream.as_mut().map(|stream| std::mem::take(&mut stream.first)).unwrap_or_default();
        let (mut up, mut down) = (Way::beginning_with(first), Way::default());
        let idle_ms = upstream.idle_ms(runner.worker.options.stream_idle_ms);
        let (client, timer) = (&mut runner.down.0, &runner.timer);
        timer.set(idle_ms);
        poll_fn(|cx| {
            let before = up.moved + down.moved;
            let ended = up.poll(cx, client, &mut node).is_ready();
            let both = down.poll(cx, &mut node, client).is_ready() && ended;
            if both || up.broken || down.broken {
                return Poll::Ready(());
            }
            if up.moved + down.moved > before {
                timer.set(idle_ms);
            }
            timer.poll_expired(cx)
        })
        .await;
        (x.received, x.sent) = (up.moved, down.moved);
        Ok(())
    }
}
