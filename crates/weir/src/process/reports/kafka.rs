//! Producers of Kafka, as far as reports need them: the leader of a partition, and messages for it.
//!
//! The clients that there are bring a runtime or a C library of their own, and most of what they do is batching, which is done
//! here before. Requests are of versions that brokers from 0.11 to 4 have.

mod login;
mod messages;

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_telemetry::reports::{Broker, Tcp, Tls, Topic};

use super::streams::{Stream, Streams};
use messages::{Metadata, Reader};

/// Idle time after which a connection is not used again.
const IDLE: Duration = Duration::from_secs(60);
/// Most connections that are kept.
const KEPT: usize = 64;
/// Most bytes of an answer.
const MOST: usize = 4 << 20;
/// Pause before a topic without a leader is asked for again: it is being made, or its leader has gone.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for a request with a batch, however short the limit of a single write is.
const BATCH: Duration = Duration::from_secs(60);

/// Connections to leaders of partitions. Each thread that sends has one of its own while it does.
#[derive(Default)]
pub(super) struct Producers(Mutex<HashMap<Topic, (Leader, Instant)>>);

/// A connection to the leader of a partition.
struct Leader {
    connection: Connection,
    partition: i32,
}

/// A connection to a broker, after its login.
struct Connection {
    stream: Stream,
    timeout: Duration,
    /// Number of the last request.
    last: i32,
}

/// Reasons why a broker did not do what it was asked for.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// The broker leads the partition no more, or does not yet: a code of Kafka.
    NoLeader(i16),
    /// Anything else.
    Other(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoLeader(code) => format!("no leader for the partition (error {code} of Kafka)"),
            Failure::Other(reason) => reason,
        }
    }
}

impl Producers {
    /// Sends a message to the topic. A broker that is told of as the leader and denies it is about to become it, as with a
    /// topic that is new: it is looked for anew, for as long as one answer may take.
    #[allow(clippy::disallowed_methods, reason = "on a thread that no request waits for")]
    pub(super) fn produce(&self, streams: &Streams, to: &Topic, message: &[u8]) -> Result<(), String> {
        let begin = Instant::now();
        let mut known = self.take(to);
        loop {
            let is_new = known.is_none();
            let mut leader = match known.take() {
                Some(leader) => leader,
                None => Leader::find(streams, to)?,
            };
            match leader.send(to, message) {
                Ok(()) => {
                    self.keep(to, leader);
                    return Ok(());
                }
                // Another one leads now.
                Err(Failure::NoLeader(_)) if !is_new => {}
                Err(Failure::NoLeader(_)) if begin.elapsed() < to.timeout => std::thread::sleep(PAUSE),
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    #[allow(clippy::disallowed_methods, reason = "on a thread that no request waits for")]
    fn take(&self, to: &Topic) -> Option<Leader> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, (_, last)| last.elapsed() < IDLE);
        let (mut leader, _) = kept.remove(to)?;
        drop(kept);
        leader.connection.stream.is_alive().then_some(leader)
    }

    #[allow(clippy::disallowed_methods, reason = "on a thread that no request waits for")]
    fn keep(&self, to: &Topic, leader: Leader) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.insert(to.clone(), (leader, Instant::now()));
        }
    }
}

impl Leader {
    /// The leader of the partition for the topic's key, or of one by chance.
    #[allow(clippy::disallowed_methods, reason = "on a thread that no request waits for")]
    fn find(streams: &Streams, to: &Topic) -> Result<Self, String> {
        let begin = Instant::now();
        let (mut connection, asked) = reach_any(streams, to)?;
        loop {
            let found = connection.metadata(&to.name).and_then(|metadata| metadata.leader(to));
            match found {
                Ok((broker, partition)) => {
                    // The broker that was asked leads it itself, as in any cluster of one.
                    if (broker.host.as_str(), broker.port) != (asked.host.as_str(), asked.port) {
                        connection = Connection::open(streams, to, &broker).map_err(String::from)?;
                    }
                    return Ok(Self { connection, partition });
                }
                Err(Failure::NoLeader(_)) if begin.elapsed() < to.timeout => std::thread::sleep(PAUSE),
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    fn send(&mut self, to: &Topic, message: &[u8]) -> Result<(), Failure> {
        let now = jiff::Timestamp::now().as_millisecond();
        let request = messages::produce(to, self.partition, message, now);
        let answer = self.connection.ask(messages::PRODUCE, &request)?;
        messages::produced(&mut Reader::new(&answer))
    }
}

/// A connection to the first broker of the configuration that takes one, and that broker. They are tried in turn, so that
/// gateways do not all ask the first one.
fn reach_any<'t>(streams: &Streams, to: &'t Topic) -> Result<(Connection, &'t Broker), String> {
    let count = to.brokers.len().max(1);
    let first = messages::chance(count);
    let mut last = String::from("no broker is configured");
    for broker in to.brokers.iter().cycle().skip(first).take(to.brokers.len()) {
        match Connection::open(streams, to, broker) {
            Ok(connection) => return Ok((connection, broker)),
            Err(failure) => last = failure.into(),
        }
    }
    Err(last)
}

impl Connection {
    fn open(streams: &Streams, to: &Topic, broker: &Broker) -> Result<Self, Failure> {
        let at = |error: String| Failure::Other(format!("{}:{}: {error}", broker.host, broker.port));
        let tls = to.tls.map(|verify| Tls { server_name: None, verify });
        let (host, port, timeout) = (broker.host.clone(), broker.port, to.timeout);
        let stream = streams.open(&Tcp { host, port, tls, timeout, is_kept: false });
        let stream = stream.map_err(|error| at(error.to_string()))?;
        let mut connection = Self { stream, timeout: to.timeout, last: 0 };
        // One that is found by others has the login of those.
        let own = to.brokers.iter().find(|known| (&known.host, known.port) == (&broker.host, broker.port));
        let login =
            own.map_or_else(|| to.brokers.iter().find_map(|known| known.login.as_ref()), |own| own.login.as_ref());
        if let Some(login) = login {
            connection.log_in(login).map_err(|failure| at(failure.into()))?;
        }
        Ok(connection)
    }

    fn metadata(&mut self, topic: &str) -> Result<Metadata, Failure> {
        let answer = self.ask(messages::METADATA, &messages::metadata(topic))?;
        Metadata::read(&mut Reader::new(&answer))
    }

    /// Sends a request and reads its answer, without the number.
    fn ask(&mut self, api: (i16, i16), request: &[u8]) -> Result<Vec<u8>, Failure> {
        self.last = self.last.wrapping_add(1);
        self.stream.write(&messages::framed(api, self.last, request), self.timeout.max(BATCH))?;
        let mut length = [0; 4];
        self.stream.read(&mut length, self.timeout)?;
        let length = u32::from_be_bytes(length) as usize;
        if !(4..=MOST).contains(&length) {
            return Err(Failure::Other(format!("an answer of {length} bytes, which is none of Kafka's")));
        }
        let mut answer = vec![0; length];
        self.stream.read(&mut answer, self.timeout)?;
        let rest = answer.split_off(4);
        if answer != self.last.to_be_bytes() {
            return Err(Failure::Other("an answer to another request".to_owned()));
        }
        Ok(rest)
    }
}
