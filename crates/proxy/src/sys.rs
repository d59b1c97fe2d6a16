//! Sockets of the data plane: TCP and Unix sockets on tokio's reactor, read and written with the bare system calls.
//!
//! tokio's own stream goes through libc, whose cancellation points cost a tenth of our user time, and asks the kernel
//! once more after a short read unless it is used in one certain way. Here a read that does not fill its buffer, or a
//! write that is cut short, ends the readiness: the next event comes from the reactor without a system call.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, SendFlags, Shutdown};
use socket2::{Domain, Protocol, SockAddr, Socket as RawSocket, Type};
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: AsyncFd<OwnedFd>,
    /// Whether the last write did not go through: until the reactor says otherwise there is no use in another one.
    clogged: bool,
    /// Whether it has been read since the reactor was last waited for. The first read after that is free; others count
    /// against what a task may do before others have their turn, so that a flood does not keep a worker to itself.
    read: AtomicBool,
}

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: AsyncFd<OwnedFd>,
}

/// A connection that was accepted; no worker's reactor knows of it yet.
#[derive(Debug)]
pub(crate) struct Accepted {
    fd: OwnedFd,
    /// `None` on a Unix socket.
    pub(crate) peer: Option<SocketAddr>,
}

impl Socket {
    fn tcp(fd: OwnedFd) -> io::Result<Self> {
        // Without it a small message may wait for an acknowledgement; failing to set it costs only that.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&fd, true);
        Self::register(fd)
    }

    fn register(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` names the same open descriptor until it is dropped.
        Ok(Self { fd: unsafe { AsyncFd::register(fd)? }, clogged: false, read: AtomicBool::new(false) })
    }

    /// Begins to connect to an address; [`Socket::poll_connected`] tells when it is.
    ///
    /// # Errors
    /// Also those that are known at once, such as that there is no way to the address.
    pub(crate) fn begin_connect(addr: SocketAddr) -> io::Result<Self> {
        let socket =
            RawSocket::new(Domain::for_address(addr), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        match socket.connect(&addr.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Self::tcp(socket.into())
    }

    /// Ready when the socket is connected, or cannot be.
    pub(crate) fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _ready = ready!(self.fd.poll_write_ready(cx))?;
        Poll::Ready(rustix::net::sockopt::socket_error(&self.fd)?.map_err(io::Error::from))
    }

    /// Connects to a Unix socket, which is done at once or not at all: a listener whose queue is full refuses.
    pub(crate) fn connect_unix(path: &str) -> io::Result<Self> {
        let socket = RawSocket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Self::register(socket.into())
    }

    /// Takes over what a listener has accepted.
    pub(crate) fn accepted(accepted: Accepted) -> io::Result<Self> {
        if accepted.peer.is_some() { Self::tcp(accepted.fd) } else { Self::register(accepted.fd) }
    }

    /// Ready when there may be something to read.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.read.load(Relaxed) && self.fd.try_io(Interest::READABLE, |_| Ok(())).is_ok() {
            return Poll::Ready(());
        }
        // An error of the reactor shows when the socket is read.
        self.poll_read_ready(cx).map(drop)
    }

    /// Waits until the reactor tells that there is something to read.
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<AsyncFdReadyGuard<'_, OwnedFd>>> {
        let ready = self.fd.poll_read_ready(cx);
        if ready.is_pending() {
            self.read.store(false, Relaxed);
        }
        ready
    }

    /// The first read after the reactor was waited for; `None`: it was not the first, or there is nothing.
    fn read_first(&self, room: &mut [u8]) -> Option<rustix::io::Result<usize>> {
        if self.read.load(Relaxed) {
            return None;
        }
        let mut result = None;
        let _ = self.fd.try_io(Interest::READABLE, |fd| {
            let wanted = room.len();
            match rustix::net::recv(fd, room, RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => return Ok(()),
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Ok((n, _)) => {
                    result = Some(Ok(n));
                    if n == 0 || n == wanted {
                        return Ok(());
                    }
                }
                Err(error) => {
                    result = Some(Err(error));
                    return Ok(());
                }
            }
            // This ends the readiness.
            Err(io::ErrorKind::WouldBlock.into())
        });
        self.read.store(result.is_some(), Relaxed);
        result
    }

    /// Ready when the peer has reset the connection. That it has ended its own side is not enough: it may still read.
    ///
    /// Not to be called while a write is pending; that one will see it.
    pub(crate) fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        // A reset makes the socket readable as well, so that is what is waited for.
        if ready!(self.poll_read_ready(cx)).is_err() {
            return Poll::Ready(());
        }
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match self.fd.poll_write_ready(&mut cx) {
            Poll::Ready(Ok(guard)) if !guard.ready().is_write_closed() => Poll::Pending,
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Shows what has arrived, without taking it, to `look`, and again when there is more, until that says something. It
    /// is told as well whether there will be no more.
    pub(crate) fn poll_peek<T>(
        &self,
        cx: &mut Context<'_>,
        room: &mut [u8],
        mut look: impl FnMut(&[u8], bool) -> Option<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            match rustix::net::recv(&self.fd, &mut *room, RecvFlags::PEEK) {
                Ok((n, _)) => {
                    let ended = n == 0 || guard.ready().is_read_closed();
                    match look(room.get(..n).unwrap_or_default(), ended) {
                        Some(said) => return Poll::Ready(Ok(said)),
                        None if ended => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                        None => guard.clear_ready(),
                    }
                }
                Err(rustix::io::Errno::WOULDBLOCK) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Takes bytes that were shown: as many as there is room for.
    pub(crate) fn take_peeked(&self, mut room: &mut [u8]) -> io::Result<()> {
        while !room.is_empty() {
            match rustix::net::recv(&self.fd, &mut *room, RecvFlags::empty()) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((n, _)) => room = room.get_mut(n..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether nothing has arrived: neither bytes nor the end. Usually this costs no system call, because the reactor
    /// would have seen anything.
    pub(crate) fn is_quiet(&self) -> bool {
        // Readiness may be left over from a read that filled its buffer.
        let peek = |fd: &OwnedFd| Ok(rustix::net::recv(fd, &mut [0u8; 1][..], RecvFlags::PEEK).map(drop)?);
        let peeked: io::Result<()> = self.fd.try_io(Interest::READABLE, peek);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(read) = self.read_first(buf.initialize_unfilled()) {
            buf.advance(read?);
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut guard = ready!(self.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            let wanted = room.len();
            match rustix::net::recv(&self.fd, room, RecvFlags::empty()) {
                Ok((n, _)) => {
                    if n > 0 && n < wanted {
                        guard.clear_ready();
                    }
                    buf.advance(n);
                    return Poll::Ready(Ok(()));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { fd, clogged, .. } = &mut *self;
        loop {
            // A socket nearly always has room, so the reactor is asked only about one that had none.
            let guard = if *clogged { Some(ready!(fd.poll_write_ready(cx))?) } else { None };
            let sent = match rustix::net::send(&*fd, bytes, SendFlags::NOSIGNAL) {
                Ok(n) => Some(n),
                Err(rustix::io::Errno::WOULDBLOCK) => None,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            *clogged = sent.is_none_or(|n| n < bytes.len());
            if let (Some(mut guard), true) = (guard, *clogged && sent != Some(0)) {
                guard.clear_ready();
            }
            if let Some(n) = sent {
                return Poll::Ready(Ok(n));
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&self.fd, Shutdown::Write).map_err(io::Error::from))
    }
}

impl Listener {
    /// Takes over a listener that does not block.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` names the same open descriptor until it is dropped.
        Ok(Self { fd: unsafe { AsyncFd::register(fd)? } })
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        poll_fn(|cx| {
            loop {
                let mut guard = ready!(self.fd.poll_read_ready(cx))?;
                match self.accept_now() {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                    accepted => return Poll::Ready(accepted),
                }
            }
        })
        .await
    }

    /// A connection that waits in the queue; [`io::ErrorKind::WouldBlock`] when none does.
    pub(crate) fn accept_now(&self) -> io::Result<Accepted> {
        loop {
            let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
            match rustix::net::acceptfrom_with(&self.fd, flags) {
                Ok((fd, peer)) => {
                    // A Unix client has a path, a name or nothing: none of it says who it is.
                    return Ok(Accepted { fd, peer: peer.and_then(|peer| SocketAddr::try_from(peer).ok()) });
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Accepted {
    /// One that was accepted elsewhere.
    #[cfg(test)]
    pub(crate) fn new(fd: OwnedFd, peer: Option<SocketAddr>) -> Self {
        Self { fd, peer }
    }

    /// The local address; an error for a Unix socket.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        SocketAddr::try_from(rustix::net::getsockname(&self.fd)?).map_err(io::Error::from)
    }
}
