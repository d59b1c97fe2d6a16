//! TLS on a socket, with rustls' engine that owns no buffers: what an idle connection holds is its keys.
//!
//! Buffers are the thread's. A read takes one, decrypts what has arrived and gives it back; a connection keeps no more
//! than the beginning of a record whose end is still on its way, and plaintext that its reader had no room for.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buffers::{Held, NO_ROOM};
use crate::sys::Socket;

/// Room of a buffer: what one system call reads, or the records that one call sends.
const BUFFER: usize = 68 << 10;
/// Most plaintext encrypted for one call: four records of the largest size.
const MOST: usize = 64 << 10;
/// Buffers a thread keeps.
const KEPT: usize = 16;
/// The longest record (RFC 8446 section 5.2, RFC 5246 section 6.2.3), with its header.
const RECORD: usize = (16 << 10) + 2048 + 5;
/// Most bytes that are kept of records, or of handshake messages, whose end has not arrived.
const MOST_PENDING: usize = 68 << 10;

/// One end of a session.
pub trait Session: Unpin {
    /// Data of the end, in rustls' terms.
    type Data;

    /// Processes records from the front of `incoming`.
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Session for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

impl Session for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

/// A socket with TLS on it.
///
/// A write that is `Pending` has taken its bytes: it has to be repeated with the same ones, as everybody does who
/// waits for it to be done.
pub struct TlsStream<C: Session> {
    socket: Socket,
    session: Box<C>,
    /// The beginning of what cannot be processed yet.
    pending: Vec<u8>,
    /// Plaintext the reader had no room for, from `plain_at`.
    plain: Vec<u8>,
    plain_at: usize,
    /// Records that are not sent yet.
    outgoing: Vec<u8>,
    /// The part of the budget for buffers that `outgoing` has, where it is longer than a record.
    held: Held,
    /// Bytes of plaintext in `outgoing` that their writer does not know to be sent.
    accepted: usize,
    /// The peer has said that it sends no more.
    ended: bool,
    /// Nothing more is encrypted: after an error, or the end that the peer was told.
    failed: bool,
}

impl<C: Session> std::fmt::Debug for TlsStream<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// What processing came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The handshake needs more from the peer.
    Handshaking,
    /// Everything that has arrived is processed.
    Ready,
}

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer of the thread, all of it initialised.
fn take_buffer() -> Vec<u8> {
    BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; BUFFER])
}

fn put_buffer(buffer: Vec<u8>) {
    BUFFERS.with_borrow_mut(|kept| {
        if kept.len() < KEPT && buffer.len() == BUFFER {
            kept.push(buffer);
        }
    });
}

impl<C: Session> TlsStream<C> {
    /// A session that has not begun, on a socket from which `received` was read already.
    #[must_use]
    pub fn new(socket: Socket, session: C, received: Vec<u8>) -> Self {
        Self {
            socket,
            session: Box::new(session),
            pending: received,
            plain: Vec::new(),
            plain_at: 0,
            outgoing: Vec::new(),
            held: Held::default(),
            accepted: 0,
            ended: false,
            failed: false,
        }
    }

    /// The socket below.
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The session, such as for the certificates of the peer.
    #[must_use]
    pub fn session(&self) -> &C {
        &self.session
    }

    /// Ready when there is something to read.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.plain.is_empty() || self.ended || self.failed {
            Poll::Ready(())
        } else {
            self.socket.poll_readable(cx)
        }
    }

    /// Whether nothing has arrived.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.plain.is_empty() && self.pending.is_empty() && !self.ended && !self.failed && self.socket.is_quiet()
    }

    /// One step of the handshake: processes what has been received, without waiting. True when the handshake is done
    /// and all of this side's has been handed to the socket or lies in `outgoing`.
    pub fn advance(&mut self) -> io::Result<bool> {
        let mut received = std::mem::take(&mut self.pending);
        let (used, progress) = self.process(&mut received, None);
        received.drain(..used.min(received.len()));
        self.pending = received;
        Ok(progress? == Progress::Ready)
    }

    /// Sends what is to be sent, then waits for more from the peer and takes it in, unprocessed.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        let mut buffer = take_buffer();
        let mut room = ReadBuf::new(&mut buffer);
        let read = Pin::new(&mut self.socket).poll_read(cx, &mut room);
        let n = room.filled().len();
        let taken = match read {
            Poll::Ready(Ok(())) if n == 0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Poll::Ready(Ok(())) if self.pending.len() + n > MOST_PENDING => {
                Poll::Ready(Err(io::Error::other("handshake message too large")))
            }
            Poll::Ready(Ok(())) => {
                self.pending.extend_from_slice(buffer.get(..n).unwrap_or_default());
                Poll::Ready(Ok(()))
            }
            other => other,
        };
        put_buffer(buffer);
        taken
    }

    /// Sends what lies in `outgoing`.
    pub fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sent = 0;
        while sent < self.outgoing.len() {
            match Pin::new(&mut self.socket).poll_write(cx, self.outgoing.get(sent..).unwrap_or_default()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => sent += n,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.outgoing.drain(..sent);
                    return Poll::Pending;
                }
            }
        }
        self.outgoing = Vec::new();
        self.held.shrink_to(0);
        Poll::Ready(Ok(()))
    }

    /// Processes records from the front of `received`; gives how many bytes of it are done with. Plaintext goes to the
    /// reader as far as it has room, the rest is kept.
    fn process(&mut self, received: &mut [u8], mut reader: Option<&mut ReadBuf<'_>>) -> (usize, io::Result<Progress>) {
        let mut used = 0;
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.session.process(received.get_mut(used..).unwrap_or_default());
            let progress = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                    match traffic.next_record() {
                        Some(Ok(record)) => {
                            discard += record.discard;
                            let room = reader.as_ref().map_or(0, |reader| reader.remaining());
                            let now = if self.plain.is_empty() { room.min(record.payload.len()) } else { 0 };
                            let (now, later) = record.payload.split_at(now);
                            if let Some(reader) = &mut reader {
                                reader.put_slice(now);
                            }
                            self.plain.extend_from_slice(later);
                        }
                        Some(Err(error)) => break Err(io::Error::other(error)),
                        None => break Ok(None),
                    }
                },
                Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, &mut self.outgoing).map(|()| None),
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    // What has to be sent lies in `outgoing` and goes before anything else.
                    data.done();
                    Ok(None)
                }
                Ok(ConnectionState::WriteTraffic(_)) => Ok(Some(Progress::Ready)),
                Ok(ConnectionState::BlockedHandshake) => Ok(Some(Progress::Handshaking)),
                Ok(ConnectionState::PeerClosed) => {
                    self.ended = true;
                    Ok(None)
                }
                Ok(ConnectionState::Closed) => {
                    self.ended = true;
                    Ok(Some(Progress::Ready))
                }
                Ok(_) => Err(io::Error::other("unexpected state of TLS")),
                Err(error) => {
                    let error = io::Error::other(error);
                    used += discard;
                    self.collect_alert(received.get_mut(used..).unwrap_or_default());
                    return (used, Err(error));
                }
            };
            used += discard;
            match progress {
                Ok(None) => {}
                Ok(Some(progress)) => return (used, Ok(progress)),
                Err(error) => return (used, Err(error)),
            }
        }
    }

    /// After an error the session has an alert to send, behind what it had to send before.
    fn collect_alert(&mut self, rest: &mut [u8]) {
        self.failed = true;
        while let Ok(ConnectionState::EncodeTlsData(mut data)) = self.session.process(rest).state {
            if encode(&mut data, &mut self.outgoing).is_err() {
                return;
            }
        }
    }

    /// No more is sent, and the peer is not told that this is the end: what it got so far is not whole.
    pub fn abort(&mut self) {
        self.failed = true;
    }

    /// Puts the alert that says that no more will be sent behind what is to be sent (RFC 8446 section 6.1).
    fn queue_close(&mut self) {
        if std::mem::replace(&mut self.failed, true) {
            return;
        }
        let mut pending = std::mem::take(&mut self.pending);
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = self.session.process(&mut pending).state {
            let mut alert = [0; 64];
            if let Ok(n) = traffic.queue_close_notify(&mut alert) {
                self.outgoing.extend_from_slice(alert.get(..n).unwrap_or_default());
            }
        }
    }

    /// Encrypts some of `bytes` into `buffer`: how many, and into how many.
    fn encrypt(&mut self, bytes: &[u8], buffer: &mut [u8]) -> io::Result<(usize, usize)> {
        let taken = bytes.get(..bytes.len().min(MOST)).unwrap_or_default();
        let mut written = 0;
        loop {
            let mut pending = std::mem::take(&mut self.pending);
            let UnbufferedStatus { discard, state } = self.session.process(&mut pending);
            let done = match state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    let room = buffer.get_mut(written..).unwrap_or_default();
                    match traffic.encrypt(taken, room) {
                        Ok(n) => Some(Ok((taken.len(), written + n))),
                        Err(EncryptError::InsufficientSize(_)) => {
                            Some(Err(io::Error::other("no room to encrypt into")))
                        }
                        Err(EncryptError::EncryptExhausted) => Some(Err(io::Error::other("traffic keys exhausted"))),
                    }
                }
                // Such as the answer to an update of the keys: it goes out first.
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    match data.encode(buffer.get_mut(written..).unwrap_or_default()) {
                        Ok(n) => {
                            written += n;
                            None
                        }
                        Err(error) => Some(Err(io::Error::other(error))),
                    }
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.ended = true;
                    None
                }
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        self.plain.extend_from_slice(record.payload);
                    }
                    None
                }
                Ok(_) => Some(Err(io::ErrorKind::NotConnected.into())),
                Err(error) => {
                    self.failed = true;
                    Some(Err(io::Error::other(error)))
                }
            };
            pending.drain(..discard.min(pending.len()));
            self.pending = pending;
            if let Some(done) = done {
                return done;
            }
        }
    }

    /// Encrypts and sends; what the socket does not take stays in `outgoing`.
    fn poll_encrypted(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut buffer = take_buffer();
        let encrypted = self.encrypt(bytes, &mut buffer);
        let result = encrypted.map(|(taken, len)| {
            let mut sent = 0;
            while sent < len {
                match Pin::new(&mut self.socket).poll_write(cx, buffer.get(sent..len).unwrap_or_default()) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(n)) => sent += n,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        let unsent = buffer.get(sent..len).unwrap_or_default();
                        if unsent.len() > RECORD && !self.held.grow_to(unsent.len()) {
                            self.failed = true;
                            return Poll::Ready(Err(io::Error::other(NO_ROOM)));
                        }
                        self.outgoing.extend_from_slice(unsent);
                        self.accepted = taken;
                        return Poll::Pending;
                    }
                }
            }
            Poll::Ready(Ok(taken))
        });
        put_buffer(buffer);
        result.unwrap_or_else(|error| Poll::Ready(Err(error)))
    }

    /// Takes plaintext that was kept.
    fn take_plain(&mut self, reader: &mut ReadBuf<'_>) {
        let kept = self.plain.get(self.plain_at..).unwrap_or_default();
        let now = kept.len().min(reader.remaining());
        reader.put_slice(kept.get(..now).unwrap_or_default());
        self.plain_at += now;
        if self.plain_at == self.plain.len() {
            self.plain = Vec::new();
            self.plain_at = 0;
        }
    }
}

fn encode<Data>(data: &mut rustls::unbuffered::EncodeTlsData<'_, Data>, outgoing: &mut Vec<u8>) -> io::Result<()> {
    let from = outgoing.len();
    match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(needed)) => {
            outgoing.resize(from + needed.required_size, 0);
            data.encode(outgoing.get_mut(from..).unwrap_or_default()).map(drop).map_err(io::Error::other)
        }
        Ok(_) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    }
}

impl<C: Session> Drop for TlsStream<C> {
    /// Tells the peer, if it can be told at once.
    fn drop(&mut self) {
        if self.outgoing.is_empty() && !std::thread::panicking() {
            self.queue_close();
            if !self.outgoing.is_empty() {
                let mut cx = Context::from_waker(std::task::Waker::noop());
                let _ = self.poll_send(&mut cx);
            }
        }
    }
}

impl<C: Session> AsyncRead for TlsStream<C> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, reader: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.plain.is_empty() {
            this.take_plain(reader);
            return Poll::Ready(Ok(()));
        }
        if reader.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let before = reader.filled().len();
        let mut buffer = take_buffer();
        let result = loop {
            if this.ended {
                break Poll::Ready(Ok(()));
            }
            let kept = this.pending.len();
            // Only a record that is not whole is kept, and that is shorter than the buffer.
            let Some(front) = buffer.get_mut(..kept) else {
                break Poll::Ready(Err(io::Error::other("TLS record too large")));
            };
            front.copy_from_slice(&this.pending);
            // No more than the reader has room for, and one record that may be cut: what it does not take is kept.
            let most = (reader.remaining() + RECORD).min(BUFFER);
            let mut room = ReadBuf::new(buffer.get_mut(kept..most).unwrap_or_default());
            match Pin::new(&mut this.socket).poll_read(cx, &mut room) {
                Poll::Ready(Ok(())) => {}
                other => break other,
            }
            let n = room.filled().len();
            if n == 0 {
                // RFC 8446 section 6.1: without close_notify the data may have been cut.
                break Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            let len = kept + n;
            let (used, progress) = this.process(buffer.get_mut(..len).unwrap_or_default(), Some(reader));
            this.pending.clear();
            let rest = buffer.get(used..len).unwrap_or_default();
            if rest.is_empty() {
                this.pending = Vec::new();
            } else {
                this.pending.extend_from_slice(rest);
            }
            if let Err(error) = progress {
                let _ = this.poll_send(cx);
                break Poll::Ready(Err(error));
            }
            if !this.outgoing.is_empty() && this.accepted == 0 {
                // What the peer is owed is tried now; what does not go goes before the next write.
                if let Poll::Ready(Err(error)) = this.poll_send(cx) {
                    break Poll::Ready(Err(error));
                }
            }
            if reader.filled().len() > before {
                break Poll::Ready(Ok(()));
            }
        };
        put_buffer(buffer);
        result
    }
}

impl<C: Session> AsyncWrite for TlsStream<C> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if !this.outgoing.is_empty() {
            ready!(this.poll_send(cx))?;
        }
        match std::mem::take(&mut this.accepted) {
            0 => this.poll_encrypted(cx, bytes),
            accepted => Poll::Ready(Ok(accepted)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_send(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        this.queue_close();
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}
