//! Opening a connection to a node. Of a name with several addresses, the next one is tried when one fails or takes its
//! time, and the first to connect wins (RFC 8305).

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use weir_config::{NodeHost, ProxyHeader};
use weir_net::datagrams::Datagrams;
use weir_net::sys::Socket;
use weir_net::tls;
use weir_net::tls::client::Setup;
use weir_net::tls::stream::TlsStream;
use weir_plugin::host::Exchange;
use weir_plugin::{Client, Failure, NodeAddress, Side};
use weir_telemetry::metrics::{Label, UpstreamState};
use weir_wire::proxy_protocol;

use super::Runner;
use super::body::client_gone;
use super::forward::{Attempt, AttemptError};
use crate::downstream::Presence;
use crate::relay;
use crate::timer::Timer;
use crate::upstream::addresses::Addresses;
use crate::upstream::connection::NodeConnection;
use crate::upstream::endpoint::Choice;
use crate::upstream::h2::{self, OpenFailure, Taken};
use crate::upstream::stream::{NodeStream, NodeTls};
use crate::upstream::{Node, Protocol, h1};

/// Time that an address has before the next one is tried beside it, in milliseconds (RFC 8305 section 5).
const HEAD_START_MS: u64 = 250;

impl<D: Presence> Runner<D> {
    /// Opens a connection to the address whose turn it is, or to another one of the same name.
    pub(super) async fn open(
        &self,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        choice: Option<Choice>,
    ) -> Result<NodeConnection, AttemptError> {
        let Some(choice) = choice else {
            return Err(AttemptError::failed(Failure::upstream(502, "node name has no address")));
        };
        if attempt.protocol(x) != Protocol::Http1 {
            // Rare, and so apart from the memory of every request.
            return Box::pin(self.open_shared(x, attempt, choice)).await;
        }
        let (stream, (addr, label)) = self.connect(x, attempt, choice).await?;
        Ok(NodeConnection::Http1(Box::new(h1::Connection::new(stream, addr, label))))
    }

    /// Opens a connection over HTTP/2, or takes a place on one that another request opens. A node that chooses HTTP/1.1 gets
    /// connections over that.
    async fn open_shared(
        &self,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        choice: Choice,
    ) -> Result<NodeConnection, AttemptError> {
        let Attempt { upstream, node, .. } = *attempt;
        let sessions = &self.worker.pools.sessions;
        self.timer.set(attempt.timeouts.connect);
        loop {
            let host = node.endpoint.tls.is_some().then(|| upstream.host_for(x, node));
            let opened = match sessions.take_or_open(&node.endpoint, choice.addr, host, self.timer.now()) {
                Taken::Stream(stream) => return Ok(NodeConnection::Http2(stream)),
                Taken::Opening(opening) => {
                    self.wait_for(&opening).await?;
                    continue;
                }
                Taken::Open(opened) => Some(opened),
                Taken::Http1 => None,
            };
            let (stream, (addr, label)) = match self.connect(x, attempt, choice).await {
                Ok(connected) => connected,
                Err(error) => {
                    // A failure of this client alone is of no use to others.
                    if let Some(opened) = opened.filter(|_| error.failure.side != Side::Client) {
                        opened.fail(OpenFailure { failure: error.failure, unreachable: error.unreachable });
                    }
                    return Err(error);
                }
            };
            if upstream.protocol == Protocol::Negotiated && !stream.has_chosen_http2() {
                sessions.note_http1(&node.endpoint, self.timer.now());
                return Ok(NodeConnection::Http1(Box::new(h1::Connection::new(stream, addr, label))));
            }
            let session = h2::Session::begin(stream, (addr, label), upstream.keepalive, &self.worker);
            return Ok(NodeConnection::Http2(sessions.put(&node.endpoint, session, upstream.keepalive.size)));
        }
    }

    /// Waits until another request has opened a connection.
    async fn wait_for(&self, opening: &h2::Opening) -> Result<(), AttemptError> {
        poll_fn(|cx| match opening.poll_over(cx) {
            Poll::Ready(over) => Poll::Ready(over.map_err(|OpenFailure { failure, unreachable }| match unreachable {
                true => AttemptError::unconnected(failure),
                false => AttemptError::failed(failure),
            })),
            Poll::Pending if self.down.poll_reset(cx).is_ready() => {
                Poll::Ready(Err(AttemptError::failed(client_gone())))
            }
            Poll::Pending => {
                let late = || AttemptError::unconnected(Failure::upstream(504, "connect timed out"));
                self.timer.poll_expired(cx).map(|()| Err(late()))
            }
        })
        .await
    }

    /// Connects to an address of a node, with whatever comes before the first byte of a request.
    pub(crate) async fn connect(
        &self,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        choice: Choice,
    ) -> Result<(NodeStream, (SocketAddr, Label)), AttemptError> {
        let (config, timeout) = (attempt.node, attempt.timeouts.connect);
        // An address that refuses is recorded like one that answers.
        tell_node(x, config.endpoint.address(choice.addr), &self.worker);
        let (stream, addr) = match &config.endpoint.host {
            NodeHost::Unix(path) => {
                let connected = self.connect_unix(path, timeout);
                let connected = connected.inspect_err(|failure| config.observe_failure(choice.addr, failure));
                (connected.map_err(AttemptError::unconnected)?, choice.addr)
            }
            NodeHost::Ip(_) | NodeHost::Name(_) => {
                self.connect_tcp(config, choice, timeout).await.map_err(AttemptError::unconnected)?
            }
        };
        let address = config.endpoint.address(addr);
        let node = self.worker.recorder.labels().intern(&label(&address));
        tell_node(x, address, &self.worker);
        self.worker.recorder.upstream_opened(UpstreamState::Active);
        match self.set_up(x, attempt, stream).await {
            Ok(stream) => Ok((stream, (addr, node))),
            Err(failure) => {
                config.observe_failure(addr, &failure);
                self.worker.recorder.upstream_closed(UpstreamState::Active);
                Err(AttemptError::failed(failure))
            }
        }
    }

    /// A socket for datagrams between a client and an address of a node; whether it is reached shows later.
    pub(crate) fn connect_datagrams(
        &self,
        x: &mut Exchange,
        attempt: &Attempt<'_>,
        choice: Choice,
    ) -> Result<Datagrams, AttemptError> {
        tell_node(x, attempt.node.endpoint.address(choice.addr), &self.worker);
        let socket = Datagrams::connect(choice.addr).map_err(|error| {
            let failure = connect_failure(&error);
            attempt.node.observe_failure(choice.addr, &failure);
            AttemptError::unconnected(failure)
        })?;
        self.worker.recorder.upstream_opened(UpstreamState::Active);
        Ok(socket)
    }

    /// The failure of a node for an error of such a socket.
    pub(crate) fn datagrams_failure(error: &io::Error) -> Failure {
        connect_failure(error)
    }

    /// Sets up what comes before the first request: a PROXY header, and ahead of the request's bytes TLS.
    async fn set_up(&self, x: &Exchange, attempt: &Attempt<'_>, mut socket: Socket) -> Result<NodeStream, Failure> {
        if let Some(version) = attempt.upstream.proxy_protocol {
            self.introduce(version, &x.client, &mut socket).await?;
        }
        if let Some(question) = &attempt.node.endpoint.tunnel {
            Box::pin(self.ask_proxy(attempt.node, question, &mut socket)).await?;
        }
        match &attempt.node.endpoint.tls {
            None => Ok(NodeStream::Plain(socket)),
            Some(setup) => Box::pin(self.handshake(x, attempt, setup, socket)).await,
        }
    }

    /// Sends the header with the client's address to a node, within the rest of the time to connect.
    async fn introduce(&self, version: ProxyHeader, client: &Client, socket: &mut Socket) -> Result<(), Failure> {
        let source = SocketAddr::new(client.addr, client.port);
        // Nothing is known of a client on a Unix socket.
        let known =
            (!client.addr.is_unspecified()).then_some(proxy_protocol::Addresses { source, destination: client.local });
        let mut header = Vec::with_capacity(128);
        match version {
            ProxyHeader::V1 => proxy_protocol::write_line(&mut header, known),
            ProxyHeader::V2 => proxy_protocol::write_binary(&mut header, known),
        }
        self.send_ahead(&header, socket).await
    }

    /// Sends what comes before the first request.
    pub(super) async fn send_ahead(&self, bytes: &[u8], socket: &mut Socket) -> Result<(), Failure> {
        let mut written = 0;
        poll_fn(|cx| {
            while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
                match relay::poll_write(cx, socket, rest) {
                    Poll::Ready(Ok(n)) => written += n,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(connect_failure(&error))),
                    Poll::Pending => return self.timer.poll_expired(cx).map(|()| Err(late())),
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// A Unix socket takes a connection at once or not at all.
    fn connect_unix(&self, path: &str, timeout: u64) -> Result<Socket, Failure> {
        self.timer.set(timeout);
        Socket::connect_unix(path).map_err(|error| connect_failure(&error))
    }

    async fn connect_tcp(&self, config: &Node, choice: Choice, timeout: u64) -> Result<(Socket, SocketAddr), Failure> {
        let timer = &self.timer;
        let mut race = Race {
            node: config,
            addresses: choice.position.and_then(|_| config.endpoint.addresses()),
            first: Some(choice),
            tried: Vec::new(),
            running: Vec::new(),
            next_at: 0,
            give_up: timer.now().saturating_add(timeout).min(timer.bound()),
            failure: Failure::upstream(504, "connect timed out"),
        };
        let winner = poll_fn(|cx| match race.poll(cx, timer) {
            Poll::Pending if self.down.poll_reset(cx).is_ready() => Poll::Ready(Err(client_gone())),
            polled => polled,
        });
        let winner = winner.await?;
        // The next steps have the rest of the time, and not that of a head start.
        timer.set_at(race.give_up);
        Ok(winner)
    }

    /// Sets TLS up on a connection, within what is left of the time to connect. The name asked for is the Host the node
    /// is sent.
    async fn handshake(
        &self,
        x: &Exchange,
        attempt: &Attempt<'_>,
        setup: &Setup,
        socket: Socket,
    ) -> Result<NodeStream, Failure> {
        let host = attempt.upstream.host_for(x, attempt.node);
        let session = match attempt.upstream.protocol {
            Protocol::Negotiated if attempt.protocol(x) == Protocol::Http1 => setup.session_over_http1(host),
            _ => setup.session(host),
        };
        let session = session.map_err(|reason| Failure::upstream(502, reason))?;
        let mut stream = TlsStream::new(socket, session, Vec::new());
        let (timer, handshakes) = (&self.timer, &self.worker.handshakes);
        let shaken = {
            let mut shakes = pin!(timer.within(tls::handshake(&mut stream, handshakes)));
            poll_fn(|cx| match shakes.as_mut().poll(cx) {
                Poll::Pending if self.down.poll_reset(cx).is_ready() => Poll::Ready(Err(client_gone())),
                polled => polled.map(Ok),
            })
            .await?
        };
        match shaken {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                let error = tls::words::of_io(&error);
                tracing::warn!(node = %attempt.node.endpoint.host, error, "TLS handshake with a node failed");
                return Err(Failure::upstream(502, "TLS handshake failed"));
            }
            None => return Err(Failure::upstream(504, "TLS handshake timed out")),
        }
        Ok(NodeStream::Tls(Box::new(NodeTls { stream, host: host.into() })))
    }
}

/// The failure of a node that has not become ready within the time to connect.
pub(super) fn late() -> Failure {
    Failure::upstream(504, "connect timed out")
}

/// Notes whom a try is about.
fn tell_node(x: &mut Exchange, address: NodeAddress, worker: &crate::worker::Worker) {
    let Some(attempt) = x.upstream.tries.last_mut() else { return };
    if attempt.addr.as_ref() != Some(&address) {
        x.upstream.node = Some(worker.recorder.labels().intern(&label(&address)));
        attempt.addr = Some(address);
    }
}

/// The address as metrics show it.
fn label(address: &NodeAddress) -> String {
    match address {
        NodeAddress::Tcp(addr) => addr.ip().to_string(),
        NodeAddress::Unix(_) => address.to_string(),
    }
}

/// Connections being opened, of which the first to stand is taken and the others are dropped.
struct Race<'n> {
    node: &'n Node,
    /// All addresses, where there are several.
    addresses: Option<Arc<Addresses>>,
    /// The one to begin with, until it has begun.
    first: Option<Choice>,
    /// Positions of the addresses that were tried.
    tried: Vec<usize>,
    running: Vec<Racer>,
    /// Time at which the next address is tried.
    next_at: u64,
    give_up: u64,
    /// Failure of the last one that failed.
    failure: Failure,
}

struct Racer {
    socket: Socket,
    addr: SocketAddr,
    position: Option<usize>,
}

impl Race<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, timer: &Timer) -> Poll<Result<(Socket, SocketAddr), Failure>> {
        loop {
            let now = timer.now();
            if let Some(winner) = self.poll_running(cx, now) {
                // Those that had a head start and did not make it would cost the next request as much.
                for slow in &self.running {
                    self.set_aside(slow.position.filter(|at| self.started_before(*at, winner.position)), now);
                }
                return Poll::Ready(Ok((winner.socket, winner.addr)));
            }
            if self.running.is_empty() || now >= self.next_at {
                match self.next(now) {
                    Some(choice) => self.start(choice, now),
                    None if self.running.is_empty() => return Poll::Ready(Err(self.failure)),
                    None => self.next_at = u64::MAX,
                }
                continue;
            }
            timer.set_at(self.next_at.min(self.give_up));
            if timer.poll_expired(cx).is_pending() {
                return Poll::Pending;
            }
            if timer.now() >= self.give_up {
                let failure = Failure::upstream(504, "connect timed out");
                for slow in &self.running {
                    self.set_aside(slow.position, now);
                    self.node.observe_failure(slow.addr, &failure);
                }
                return Poll::Ready(Err(failure));
            }
        }
    }

    /// The first that stands; those that failed are dropped.
    fn poll_running(&mut self, cx: &mut Context<'_>, now: u64) -> Option<Racer> {
        let mut at = 0;
        while let Some(runner) = self.running.get(at) {
            match runner.socket.poll_connected(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Ok(())) => return Some(self.running.swap_remove(at)),
                Poll::Ready(Err(error)) => {
                    let failed = self.running.swap_remove(at);
                    self.failed(failed.addr, failed.position, &error, now);
                }
            }
        }
        None
    }

    fn next(&mut self, now: u64) -> Option<Choice> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let addresses = self.addresses.as_ref()?;
        let position = addresses.next_after(&self.tried, now, |addr| self.node.takes(addr))?;
        Some(Choice { addr: addresses.at(position)?, position: Some(position) })
    }

    fn start(&mut self, choice: Choice, now: u64) {
        self.tried.extend(choice.position);
        self.next_at = if self.addresses.is_some() { now + HEAD_START_MS } else { u64::MAX };
        match Socket::begin_connect(choice.addr) {
            Ok(socket) => self.running.push(Racer { socket, addr: choice.addr, position: choice.position }),
            Err(error) => self.failed(choice.addr, choice.position, &error, now),
        }
    }

    fn failed(&mut self, addr: SocketAddr, position: Option<usize>, error: &io::Error, now: u64) {
        self.failure = connect_failure(error);
        self.node.observe_failure(addr, &self.failure);
        // A lack of resources on this side says nothing about an address.
        if self.failure.side == Side::Upstream {
            self.set_aside(position, now);
        }
        self.next_at = now;
    }

    fn set_aside(&self, position: Option<usize>, now: u64) {
        if let (Some(addresses), Some(position)) = (&self.addresses, position) {
            addresses.set_aside(position, now);
        }
    }

    fn started_before(&self, position: usize, other: Option<usize>) -> bool {
        let order = |position| self.tried.iter().position(|tried| *tried == position);
        other.is_some_and(|other| order(position) < order(other))
    }
}

pub(super) fn connect_failure(error: &io::Error) -> Failure {
    let reason = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset",
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "node unreachable",
        io::ErrorKind::TimedOut => "connect timed out",
        // Of a Unix socket.
        io::ErrorKind::NotFound => "socket of the node is not there",
        io::ErrorKind::PermissionDenied => "no permission for the socket of the node",
        io::ErrorKind::WouldBlock => "listen queue of the node is full",
        // EMFILE, ENFILE, ENOBUFS, EADDRNOTAVAIL: this side has run out of something.
        _ => return Failure { side: Side::Gateway, ..Failure::upstream(502, "cannot open a connection") },
    };
    Failure::upstream(502, reason)
}
