//! The client's side of a connection of the gateway to itself.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::ready;

use tokio::io::ReadBuf;
use weir_plugin::Duplex;
use weir_plugin::Held;
use weir_wire::buffer::Buffer;
use weir_wire::chunked::{Decoder, Event};
use weir_wire::head::{Framing, Http1, Limits, ResponseHead};
use weir_wire::method::Method;
use weir_wire::status;

/// A connection, which serves one request after the other.
pub(crate) struct Connection {
    stream: Box<dyn Duplex>,
    buffer: Buffer,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) reason: String,
    pub(crate) fields: Vec<(String, String)>,
    /// `None`: it has none. An error says why the response is missing.
    pub(crate) body: Option<Result<Vec<u8>, &'static str>>,
}

/// Reasons for having no answer.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The budget for buffers has no room for it.
    NoRoom,
    Broken(&'static str),
}

const TOO_LARGE: &str = "the answers of a batch have at most 16 MiB";

impl Connection {
    pub(crate) fn new(stream: Box<dyn Duplex>) -> Self {
        Self { stream, buffer: Buffer::new(4 << 10) }
    }

    /// Sends a request and receives its answer, whose body may have so many bytes. Gives the connection back where another
    /// request may follow.
    pub(crate) async fn ask(
        mut self,
        message: &[u8],
        method: Method,
        most: usize,
    ) -> Result<(Answer, Option<Self>), Fault> {
        let mut rest = message;
        let sent = poll_fn(|cx| {
            while !rest.is_empty() {
                let written = ready!(Pin::new(&mut *self.stream).poll_write(cx, rest));
                match written {
                    Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                    // The gateway may have answered and closed before it has taken the whole request.
                    Err(_) => break,
                }
            }
            std::task::Poll::Ready(())
        });
        sent.await;
        let (head, http) = self.head(method).await?;
        let bytes = self.buffer.bytes();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut answer = Answer {
            status: head.status,
            reason: status::reason(head.status).to_owned(),
            fields: head.fields.iter(bytes).map(|(name, value)| (text(name), text(value))).collect(),
            body: None,
        };
        self.buffer.consume(http.len);
        let mut is_whole = true;
        if http.framing != Framing::None {
            let mut held = Held::default();
            let body = self.body(http.framing, most, &mut held).await?;
            is_whole = body.is_ok();
            answer.body = Some(body);
        }
        let may_follow = is_whole && http.keep_alive;
        Ok((answer, may_follow.then_some(self)))
    }

    /// Reads a final head.
    async fn head(&mut self, method: Method) -> Result<(ResponseHead, Http1), Fault> {
        let limits = Limits { head: 1 << 20, fields: 1000, target: 0 };
        let mut head = ResponseHead::default();
        loop {
            match head.parse(self.buffer.bytes(), &limits, method) {
                Ok(Some(http)) if head.status < 200 => self.buffer.consume(http.len),
                Ok(Some(http)) => return Ok((head, http)),
                Ok(None) => {
                    if self.receive().await? == 0 {
                        return Err(Fault::Broken("no answer"));
                    }
                }
                Err(reject) => return Err(Fault::Broken(reject.reason)),
            }
        }
    }

    async fn body(
        &mut self,
        framing: Framing,
        most: usize,
        held: &mut Held,
    ) -> Result<Result<Vec<u8>, &'static str>, Fault> {
        let mut body = Vec::new();
        let mut decoder = Decoder::default();
        loop {
            let mut position = 0;
            let is_complete = match framing {
                Framing::Chunked => loop {
                    match decoder.next(self.buffer.bytes(), &mut position) {
                        Ok(Event::Data(span)) => body.extend_from_slice(span.of(self.buffer.bytes())),
                        Ok(Event::Trailer(_)) => {}
                        Ok(Event::NeedMore) => break false,
                        Ok(Event::End) => break true,
                        Err(reject) => return Ok(Err(reject.reason)),
                    }
                },
                Framing::Length(length) => {
                    let left = usize::try_from(length).unwrap_or(usize::MAX).saturating_sub(body.len());
                    position = left.min(self.buffer.len());
                    body.extend_from_slice(self.buffer.bytes().get(..position).unwrap_or_default());
                    position == left
                }
                _ => {
                    position = self.buffer.len();
                    body.extend_from_slice(self.buffer.bytes());
                    false
                }
            };
            self.buffer.consume(position);
            if body.len() > most {
                return Ok(Err(TOO_LARGE));
            }
            if !held.grow_to(body.capacity()) {
                return Err(Fault::NoRoom);
            }
            if is_complete {
                return Ok(Ok(body));
            }
            if self.receive().await? == 0 {
                return Ok(if framing == Framing::UntilClose { Ok(body) } else { Err("the answer broke off") });
            }
        }
    }

    /// Receives more; 0: there is no more.
    async fn receive(&mut self) -> Result<usize, Fault> {
        if self.buffer.spare().is_empty() {
            let room = (2 * self.buffer.capacity()).max(4 << 10);
            self.buffer.grow(room);
        }
        let Self { stream, buffer } = self;
        let read = poll_fn(|cx| {
            let mut room = ReadBuf::new(buffer.spare());
            let read = ready!(Pin::new(&mut **stream).poll_read(cx, &mut room));
            std::task::Poll::Ready(read.map(|()| room.filled().len()))
        });
        let read = read.await.map_err(|_| Fault::Broken("no answer"))?;
        self.buffer.advance(read);
        Ok(read)
    }
}
