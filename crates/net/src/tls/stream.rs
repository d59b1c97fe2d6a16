//! TLS on a socket, with rustls' unbuffered connections: an idle connection holds only its keys.
//!
//! Buffers belong to the thread. A read takes one, decrypts the bytes that have arrived and returns it; a connection
//! keeps only the beginning of an incomplete record, and plaintext that did not fit into its reader's buffer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buffers::{Held, NO_ROOM};
use crate::sys::Socket;

/// Size of a buffer in bytes: the bytes that one system call reads, or the records that one call sends.
const BUFFER: usize = 68 << 10;
/// Maximum plaintext in bytes encrypted for one call: four records of the largest size.
const MOST: usize = 64 << 10;
/// Number of buffers that a thread keeps.
const KEPT: usize = 16;
/// Length of the longest record (RFC 8446 section 5.2, RFC 5246 section 6.2.3), including its header.
const RECORD: usize = (16 << 10) + 2048 + 5;
/// Maximum number of bytes dropped after a failed handshake.
const MOST_REFUSED: usize = 64 << 10;
/// Maximum number of bytes kept of incomplete records or handshake messages.
const MOST_PENDING: usize = 68 << 10;

/// One end of a TLS session.
pub trait Session: Unpin {
    /// rustls' data type of this end.
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

/// A socket with TLS.
///
/// A write that returns `Pending` has accepted its bytes: the caller must repeat it with the same bytes, as every
/// caller does that waits for its completion.
pub struct TlsStream<C: Session> {
    socket: Socket,
    session: Box<C>,
    /// Beginning of a record or message that is not complete yet.
    pending: Vec<u8>,
    /// Plaintext that did not fit into the reader's buffer, from `plain_at`.
    plain: Vec<u8>,
    plain_at: usize,
    /// Records that are not sent yet.
    outgoing: Vec<u8>,
    /// Part of the buffer budget used by `outgoing`, if that is longer than a record.
    held: Held,
    /// Bytes of plaintext in `outgoing` that have not been reported to their writer as sent.
    accepted: usize,
    /// True if the peer has announced that it sends no more.
    ended: bool,
    /// True if nothing more is encrypted: after an error, or after the close was queued.
    failed: bool,
}

impl<C: Session> std::fmt::Debug for TlsStream<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Result of processing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The handshake needs more bytes from the peer.
    Handshaking,
    /// Everything that has arrived is processed.
    Ready,
}

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Takes a buffer of the thread; it is fully initialised.
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
    /// Creates a stream with a session that has not started, on a socket from which `received` was already read.
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

    /// The underlying socket.
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The session, for example for the peer's certificates.
    #[must_use]
    pub fn session(&self) -> &C {
        &self.session
    }

    /// Ready if there is something to read.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.plain.is_empty() || self.ended || self.failed {
            Poll::Ready(())
        } else {
            self.socket.poll_readable(cx)
        }
    }

    /// True if nothing has arrived.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.plain.is_empty() && self.pending.is_empty() && !self.ended && !self.failed && self.socket.is_quiet()
    }

    /// Takes one step of the handshake: processes the received bytes without waiting. Returns true if the handshake
    /// is complete and this side's messages are in `outgoing` or were handed to the socket.
    pub fn advance(&mut self) -> io::Result<bool> {
        let mut received = std::mem::take(&mut self.pending);
        let (used, progress) = self.process(&mut received, None);
        received.drain(..used.min(received.len()));
        self.pending = received;
        Ok(progress? == Progress::Ready)
    }

    /// Sends pending records, then waits for more bytes from the peer and stores them unprocessed.
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

    /// Sends the records in `outgoing`.
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

    /// Ends our side after a failed handshake and drops what the peer sends until it ends its own: a client of TLS 1.3 may
    /// send its request before it reads the alert, and closing with unread bytes would reset the connection and could
    /// destroy the alert. The caller limits the time; at most [`MOST_REFUSED`] bytes are dropped.
    pub async fn refuse(&mut self) {
        if poll_fn(|cx| Pin::new(&mut self.socket).poll_shutdown(cx)).await.is_err() {
            return;
        }
        let mut dropped = 0;
        while dropped < MOST_REFUSED {
            self.pending.clear();
            if poll_fn(|cx| self.poll_receive(cx)).await.is_err() {
                return;
            }
            dropped += self.pending.len();
        }
    }

    /// Processes records from the front of `received`; returns the number of bytes processed. Plaintext goes to the
    /// reader as far as it fits, the rest is kept.
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
                    // Records to be sent are in `outgoing`, and go out before anything else.
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

    /// Appends the session's alert after an error, behind earlier records.
    fn collect_alert(&mut self, rest: &mut [u8]) {
        self.failed = true;
        while let Ok(ConnectionState::EncodeTlsData(mut data)) = self.session.process(rest).state {
            if encode(&mut data, &mut self.outgoing).is_err() {
                return;
            }
        }
    }

    /// Stops sending without a close alert, so that the peer takes the received data for truncated.
    pub fn abort(&mut self) {
        self.failed = true;
    }

    /// Queues the alert that announces the end of sending (RFC 8446 section 6.1).
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

    /// Encrypts some of `bytes` into `buffer`; returns the plaintext bytes consumed and the bytes written.
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
                // For example the answer to a key update, which goes out first.
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

    /// Encrypts and sends; bytes that the socket does not accept stay in `outgoing`.
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
    /// Sends the close alert to the peer if that is possible without waiting.
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
            // Only an incomplete record is kept, which is shorter than the buffer.
            let Some(front) = buffer.get_mut(..kept) else {
                break Poll::Ready(Err(io::Error::other("TLS record too large")));
            };
            front.copy_from_slice(&this.pending);
            // Reads no more than the reader's room plus one record that may be incomplete; plaintext that does not
            // fit is kept.
            let most = (reader.remaining() + RECORD).min(BUFFER);
            let mut room = ReadBuf::new(buffer.get_mut(kept..most).unwrap_or_default());
            match Pin::new(&mut this.socket).poll_read(cx, &mut room) {
                Poll::Ready(Ok(())) => {}
                other => break other,
            }
            let n = room.filled().len();
            if n == 0 {
                // RFC 8446 section 6.1: without close_notify the data may be truncated.
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
            // Tries to send pending records now; unsent ones go out before the next write.
            let sent = if this.outgoing.is_empty() || this.accepted > 0 { Poll::Pending } else { this.poll_send(cx) };
            // A peer that takes nothing more may have sent something before.
            if reader.filled().len() > before {
                break Poll::Ready(Ok(()));
            }
            if let Poll::Ready(Err(error)) = sent {
                break Poll::Ready(Err(error));
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
