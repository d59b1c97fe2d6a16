//! Producers of RocketMQ, as far as reports need them: the broker of a topic, and messages for it.
//!
//! The clients that there are speak to the proxies of version 5 alone, or bring a runtime of their own. Brokers from 4 to 5
//! understand these requests.

mod messages;

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_telemetry::reports::{MessageTopic, Tcp, Tls};

use super::streams::{Stream, Streams};
use messages::{Queue, Reply};

/// Idle time after which a connection is not used again: brokers close one after two minutes.
const IDLE: Duration = Duration::from_secs(60);
/// Most connections that are kept.
const KEPT: usize = 64;
/// Most bytes of an answer.
const MOST: usize = 4 << 20;
/// Time for a request with a batch, however short the limit of a single write is.
const BATCH: Duration = Duration::from_secs(60);

/// Connections to brokers. Each thread that sends has one of its own while it does.
#[derive(Default)]
pub(super) struct Senders(Mutex<HashMap<MessageTopic, (Sender, Instant)>>);

/// A connection to a broker of a topic.
struct Sender {
    connection: Connection,
    queue: Queue,
}

/// A connection to a name server or a broker.
struct Connection {
    stream: Stream,
    timeout: Duration,
    /// Number of the last request.
    last: i32,
}

impl Senders {
    /// Sends a message to the topic.
    pub(super) fn send(&self, streams: &Streams, to: &MessageTopic, message: &[u8]) -> Result<(), String> {
        let mut sender = match self.take(to) {
            Some(sender) => sender,
            None => Sender::find(streams, to)?,
        };
        sender.send(to, message)?;
        self.keep(to, sender);
        Ok(())
    }

    #[allow(clippy::disallowed_methods, reason = "on a thread that no request waits for")]
    fn take(&self, to: &MessageTopic) -> Option<Sender> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, (_, last)| last.elapsed() < IDLE);
        let (mut sender, _) = kept.remove(to)?;
        drop(kept);
        sender.connection.stream.is_alive().then_some(sender)
    }

    #[allow(clippy::disallowed_methods, reason = "on a thread that no request waits for")]
    fn keep(&self, to: &MessageTopic, sender: Sender) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.insert(to.clone(), (sender, Instant::now()));
        }
    }
}

impl Sender {
    /// A broker of the topic. One that does not exist yet is made by a broker that has the topic for that, if it may.
    fn find(streams: &Streams, to: &MessageTopic) -> Result<Self, String> {
        let mut names = reach_any(streams, to)?;
        let reply = names.ask(messages::GET_ROUTE, &messages::route(to, &to.name), b"")?;
        let queue = if reply.code == messages::NO_TOPIC {
            let reply = names.ask(messages::GET_ROUTE, &messages::route(to, messages::FOR_NEW_TOPICS), b"")?;
            if reply.code != messages::SUCCESS {
                return Err(format!("there is no topic {}, and brokers make none of themselves", to.name));
            }
            reply.queue(true)?
        } else {
            reply.checked()?.queue(false)?
        };
        let connection = Connection::open(streams, to, &queue.host, queue.port)?;
        Ok(Self { connection, queue })
    }

    fn send(&mut self, to: &MessageTopic, message: &[u8]) -> Result<(), String> {
        let now = jiff::Timestamp::now().as_millisecond();
        let fields = messages::message(to, &self.queue, message, now);
        self.connection.ask(messages::SEND_MESSAGE, &fields, message)?.taken()
    }
}

/// A connection to the first name server of the configuration that takes one. They are tried in turn, so that gateways do not
/// all ask the first one.
fn reach_any(streams: &Streams, to: &MessageTopic) -> Result<Connection, String> {
    let first = fastrand::usize(..to.nameservers.len().max(1));
    let mut last = String::from("no name server is configured");
    for (host, port) in to.nameservers.iter().cycle().skip(first).take(to.nameservers.len()) {
        match Connection::open(streams, to, host, *port) {
            Ok(connection) => return Ok(connection),
            Err(reason) => last = reason,
        }
    }
    Err(last)
}

impl Connection {
    fn open(streams: &Streams, to: &MessageTopic, host: &str, port: u16) -> Result<Self, String> {
        let tls = to.tls.then_some(Tls { server_name: None, verify: false });
        let stream = streams.open(&Tcp { host: host.to_owned(), port, tls, timeout: to.timeout, is_kept: false });
        let stream = stream.map_err(|error| format!("{host}:{port}: {error}"))?;
        Ok(Self { stream, timeout: to.timeout, last: 0 })
    }

    /// Sends a request and reads its answer.
    fn ask(&mut self, code: i32, fields: &messages::Fields, body: &[u8]) -> Result<Reply, String> {
        let failed = |error: io::Error| error.to_string();
        self.last = self.last.wrapping_add(1);
        self.stream.write(&messages::framed(code, self.last, fields, body), self.timeout.max(BATCH)).map_err(failed)?;
        loop {
            let mut length = [0; 4];
            self.stream.read(&mut length, self.timeout).map_err(failed)?;
            let length = u32::from_be_bytes(length) as usize;
            if !(4..=MOST).contains(&length) {
                return Err(format!("an answer of {length} bytes, which is none of RocketMQ's"));
            }
            let mut answer = vec![0; length];
            self.stream.read(&mut answer, self.timeout).map_err(failed)?;
            let reply = Reply::read(&answer).ok_or("an answer that is none of RocketMQ's")?;
            // A broker may ask something of its own, which needs no answer.
            if reply.is_answer_to(self.last) {
                return Ok(reply);
            }
        }
    }
}
