//! Sockets of UDP on the worker's reactor, which receive and send many datagrams a system call.

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::task::{Context, Poll, ready};
use std::{array, iter};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc::{in_pktinfo, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg, setsockopt,
    sockopt,
};
use socket2::{Domain, Protocol, SockRef, Socket as RawSocket, Type};
use weir_runtime::Source;

/// Most datagrams of one system call.
pub const BATCH: usize = 32;
/// Full batches that a task receives in a row. Then other tasks of the worker have their turn, however many datagrams
/// arrive.
const TURN: u32 = 4;
/// Room for one datagram: none is longer.
const LONGEST: usize = 64 << 10;

/// A socket of UDP: one that is bound, for many peers, or one that is connected to one.
#[derive(Debug)]
pub struct Datagrams {
    source: Source,
    /// Destination of datagrams that arrive without one.
    local: SocketAddr,
    /// Full batches received in a row.
    batches: Cell<u32>,
}

/// Room for the datagrams that one socket receives at once, or several that are connected.
///
/// The pages of the memory are only there once a datagram was as long.
pub struct Inbox {
    headers: MultiHeaders<SockaddrStorage>,
    bytes: Box<[u8]>,
    arrived: Vec<Arrived>,
}

/// Source and destination of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Sender; `None` on a socket that is connected.
    pub peer: Option<SocketAddr>,
    /// The address of this host that it was sent to.
    pub local: SocketAddr,
    len: usize,
}

/// Datagrams that wait to be sent together.
pub struct Outbox {
    plain: MultiHeaders<SockaddrStorage>,
    from_v4: MultiHeaders<SockaddrStorage>,
    from_v6: MultiHeaders<SockaddrStorage>,
    bytes: Vec<u8>,
    waiting: Vec<Waiting>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiting {
    peer: SocketAddr,
    /// The address to send from, where the socket is bound to all of them.
    from: Option<IpAddr>,
    end: usize,
}

/// Result of sending datagrams together.
#[derive(Debug, Default)]
pub struct Sent {
    /// Datagrams that the system did not take, and that are lost.
    pub lost: usize,
    /// Error of the last of these.
    pub error: Option<io::Error>,
}

impl Sent {
    fn add(&mut self, lost: usize, error: Errno) {
        self.lost += lost;
        self.error = Some(error.into());
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("arrived", &self.arrived).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// Asks the kernel for the destination of each datagram, on a socket that is bound to all addresses.
///
/// # Errors
/// Those of the system.
pub fn tell_local(socket: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv4() {
        setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    }
    Ok(())
}

impl Datagrams {
    /// Registers a non-blocking socket that is bound.
    ///
    /// # Errors
    /// The socket has no address, or the worker's reactor cannot watch the socket.
    pub fn bound(socket: OwnedFd) -> io::Result<Self> {
        let local = SockRef::from(&socket).local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { source: Source::new(socket)?, local, batches: Cell::new(0) })
    }

    /// A socket of its own for what is exchanged with one peer.
    ///
    /// # Errors
    /// There is no way to the address, or no descriptor or port is left.
    pub fn connect(peer: SocketAddr) -> io::Result<Self> {
        let kind = Type::DGRAM.nonblocking().cloexec();
        let socket = RawSocket::new(Domain::for_address(peer), kind, Some(Protocol::UDP))?;
        socket.connect(&peer.into())?;
        Self::bound(socket.into())
    }

    fn raw(&self) -> RawFd {
        self.source.as_fd().as_raw_fd()
    }

    /// Receives what has arrived, at least one datagram and at most [`BATCH`]: see [`Inbox::datagrams`]. After several full
    /// batches the task is woken again instead, so that a flood of datagrams does not keep its worker.
    ///
    /// # Errors
    /// Those of the socket; of a connected one also that its peer was not reached.
    pub fn poll_receive(&self, cx: &mut Context<'_>, inbox: &mut Inbox) -> Poll<io::Result<()>> {
        if self.batches.get() >= TURN {
            self.batches.set(0);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            ready!(self.source.poll_readable(cx));
            match inbox.receive(self.raw(), self.local) {
                Ok(count) => {
                    if count < BATCH {
                        self.source.clear_readable();
                        self.batches.set(0);
                    } else {
                        self.batches.set(self.batches.get() + 1);
                    }
                    return Poll::Ready(Ok(()));
                }
                // After an error, which a send has met, the reactor would report this socket again and again.
                Err(Errno::EAGAIN) if self.source.is_read_closed() => {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
                }
                Err(Errno::EAGAIN) => self.source.clear_readable(),
                Err(Errno::EINTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Sends datagrams to the peer that the socket is connected to. What the system has no room for is lost, as
    /// datagrams may be.
    pub fn send<'a>(&self, outbox: &mut Outbox, datagrams: impl Iterator<Item = &'a [u8]>) -> Sent {
        let mut sent = Sent::default();
        let mut datagrams = datagrams.peekable();
        while datagrams.peek().is_some() {
            let mut count = 0;
            let batch: [[IoSlice<'_>; 1]; BATCH] = array::from_fn(|_| {
                let next = datagrams.next();
                count += usize::from(next.is_some());
                [IoSlice::new(next.unwrap_or_default())]
            });
            let batch = batch.get(..count).unwrap_or_default();
            send_all(self.raw(), &mut outbox.plain, batch, &[None; BATCH], &[], &mut sent);
        }
        sent
    }

    /// Sends what waits in the outbox, and empties it.
    pub fn flush(&self, outbox: &mut Outbox) -> Sent {
        let mut sent = Sent::default();
        let Outbox { plain, from_v4, from_v6, bytes, waiting } = outbox;
        let mut begin = 0;
        for run in waiting.chunk_by(|a, b| a.from == b.from) {
            let from = run.first().and_then(|first| first.from);
            for part in run.chunks(BATCH) {
                let mut parts = part.iter().map(|one| {
                    let datagram = bytes.get(begin..one.end).unwrap_or_default();
                    begin = one.end;
                    datagram
                });
                let batch: [[IoSlice<'_>; 1]; BATCH] =
                    array::from_fn(|_| [IoSlice::new(parts.next().unwrap_or_default())]);
                let batch = batch.get(..part.len()).unwrap_or_default();
                let mut peers = part.iter().map(|one| SockaddrStorage::from(one.peer));
                let peers: [Option<SockaddrStorage>; BATCH] = array::from_fn(|_| peers.next());
                match (from, self.local.is_ipv4()) {
                    (None, _) => send_all(self.raw(), plain, batch, &peers, &[], &mut sent),
                    (Some(IpAddr::V4(from)), true) => {
                        let from = source_v4(from);
                        let from = [ControlMessage::Ipv4PacketInfo(&from)];
                        send_all(self.raw(), from_v4, batch, &peers, &from, &mut sent);
                    }
                    (Some(from), _) => {
                        let from = source_v6(from);
                        let from = [ControlMessage::Ipv6PacketInfo(&from)];
                        send_all(self.raw(), from_v6, batch, &peers, &from, &mut sent);
                    }
                }
            }
        }
        waiting.clear();
        bytes.clear();
        sent
    }
}

/// Sends a batch; what is refused is passed over.
fn send_all(
    socket: RawFd,
    headers: &mut MultiHeaders<SockaddrStorage>,
    batch: &[[IoSlice<'_>; 1]],
    peers: &[Option<SockaddrStorage>],
    from: &[ControlMessage<'_>],
    sent: &mut Sent,
) {
    let mut done = 0;
    while let (Some(rest @ [_, ..]), Some(peers)) = (batch.get(done..), peers.get(done..)) {
        match sendmmsg(socket, headers, rest, peers, from, MsgFlags::MSG_NOSIGNAL) {
            Ok(results) => done += results.count().max(1),
            Err(Errno::EINTR) => {}
            Err(error @ (Errno::EAGAIN | Errno::ENOBUFS)) => return sent.add(rest.len(), error),
            Err(error) => {
                sent.add(1, error);
                done += 1;
            }
        }
    }
}

fn source_v4(from: Ipv4Addr) -> in_pktinfo {
    let from = nix::libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) };
    in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: from, ipi_addr: nix::libc::in_addr { s_addr: 0 } }
}

fn source_v6(from: IpAddr) -> in6_pktinfo {
    let from = match from {
        IpAddr::V4(from) => from.to_ipv6_mapped(),
        IpAddr::V6(from) => from,
    };
    in6_pktinfo { ipi6_addr: nix::libc::in6_addr { s6_addr: from.octets() }, ipi6_ifindex: 0 }
}

impl Default for Inbox {
    fn default() -> Self {
        // The larger one of both kinds.
        let told = Some(cmsg_space!(in6_pktinfo));
        Self {
            headers: MultiHeaders::preallocate(BATCH, told),
            bytes: vec![0; BATCH * LONGEST].into(),
            arrived: Vec::with_capacity(BATCH),
        }
    }
}

impl Inbox {
    fn receive(&mut self, socket: RawFd, bound: SocketAddr) -> Result<usize, Errno> {
        self.arrived.clear();
        let mut rooms = self.bytes.chunks_mut(LONGEST);
        let mut rooms: [[IoSliceMut<'_>; 1]; BATCH] =
            array::from_fn(|_| [IoSliceMut::new(rooms.next().unwrap_or_default())]);
        let received = recvmmsg(socket, &mut self.headers, &mut rooms, MsgFlags::MSG_DONTWAIT, None)?;
        for message in received {
            let mut local = bound;
            for told in message.cmsgs().into_iter().flatten() {
                match told {
                    ControlMessageOwned::Ipv4PacketInfo(told) => {
                        local.set_ip(Ipv4Addr::from(told.ipi_addr.s_addr.to_ne_bytes()).into());
                    }
                    ControlMessageOwned::Ipv6PacketInfo(told) => {
                        local.set_ip(Ipv6Addr::from(told.ipi6_addr.s6_addr).into());
                    }
                    _ => {}
                }
            }
            let peer = message.address.as_ref().and_then(address);
            self.arrived.push(Arrived { peer, local, len: message.bytes });
        }
        Ok(self.arrived.len())
    }

    /// Datagrams of the last batch.
    pub fn datagrams(&self) -> impl Iterator<Item = (Arrived, &[u8])> {
        let rooms = self.bytes.chunks(LONGEST);
        iter::zip(&self.arrived, rooms).map(|(arrived, room)| (*arrived, room.get(..arrived.len).unwrap_or_default()))
    }
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
        (Some(v4), _) => Some(SocketAddrV4::from(*v4).into()),
        (_, Some(v6)) => Some(SocketAddrV6::from(*v6).into()),
        _ => None,
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            plain: MultiHeaders::preallocate(BATCH, None),
            // Each has as much room as its source takes, and not a byte more: the kernel reads all of it.
            from_v4: MultiHeaders::preallocate(BATCH, Some(cmsg_space!(in_pktinfo))),
            from_v6: MultiHeaders::preallocate(BATCH, Some(cmsg_space!(in6_pktinfo))),
            bytes: Vec::new(),
            waiting: Vec::new(),
        }
    }
}

impl Outbox {
    /// Adds a datagram for [`Datagrams::flush`], sent from the address of this host that its peer has sent to, where the
    /// socket is bound to all of them.
    pub fn put(&mut self, peer: SocketAddr, from: Option<IpAddr>, datagram: &[u8]) {
        self.bytes.extend_from_slice(datagram);
        self.waiting.push(Waiting { peer, from, end: self.bytes.len() });
    }

    /// Number of datagrams that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// True when none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::UdpSocket;
    use std::task::Poll;

    use super::{BATCH, Datagrams, Inbox, TURN};

    #[test]
    fn a_flood_leaves_other_tasks_their_turn() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_nonblocking(true).expect("a non-blocking socket");
        let address = socket.local_addr().expect("an address");
        let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let all = BATCH * (TURN as usize + 1);
        for _ in 0..all {
            sender.send_to(b"x", address).expect("send");
        }
        let turns = weir_runtime::block_on(async move {
            let socket = Datagrams::bound(socket.into()).expect("a socket of the worker");
            let (mut inbox, mut turns, mut received) = (Inbox::default(), Vec::new(), 0);
            while received < all {
                let before = received;
                poll_fn(|cx| {
                    while socket.poll_receive(cx, &mut inbox).map(|got| got.expect("datagrams")).is_ready() {
                        received += inbox.datagrams().count();
                    }
                    if received == before { Poll::Pending } else { Poll::Ready(()) }
                })
                .await;
                turns.push(received - before);
            }
            turns
        });
        assert_eq!(turns.expect("a runtime"), [BATCH * TURN as usize, BATCH]);
    }
}
