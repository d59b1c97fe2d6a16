//! The threads that send batches, and may block for it.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::queue::Batch;
use super::{ChannelOptions, Destination, Frame, HUB, Shared, lock};
use crate::access_log::{Sink, Target};

/// Most batches on their way at one time. Each channel has one at most.
const THREADS: usize = 8;
/// Open files beyond which those that nobody writes to just now are closed.
const OPEN_FILES: usize = 64;

/// A request with a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// The whole URI.
    pub uri: String,
    /// Fields beside those that frame the body.
    pub fields: Vec<(String, String)>,
    /// Limit for the whole exchange.
    pub timeout: Duration,
    /// True if the certificate of the collector is verified.
    pub verify: bool,
}

/// Collectors of which each takes some of the batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// A request for each collector: a batch that one does not take goes to the next one.
    pub posts: Vec<Post>,
    /// Meaning of their answers.
    pub check: Check,
}

/// A bearer token that a service gives for a signed assertion (RFC 7523 section 2.1).
#[derive(Clone)]
pub struct Grant {
    /// The whole URI of the service.
    pub token_uri: String,
    /// The account, which is the issuer of the assertion.
    pub issuer: String,
    /// Scopes, with spaces between them.
    pub scope: String,
    /// The account's private key in PEM.
    pub private_key: String,
    /// Makes the assertion, at a time in seconds since 1970.
    pub assert: fn(&Self, now: u64) -> Result<String, String>,
}

// The function belongs to the plugin of the destination, and an address of a function says nothing.
impl PartialEq for Grant {
    fn eq(&self, other: &Self) -> bool {
        let parts = |one: &Self| [&one.token_uri, &one.issuer, &one.scope, &one.private_key].map(String::clone);
        parts(self) == parts(other)
    }
}

impl Eq for Grant {}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Grant");
        shown.field("token_uri", &self.token_uri).field("issuer", &self.issuer).field("scope", &self.scope);
        shown.field("private_key", &self.private_key).finish_non_exhaustive()
    }
}

/// Files of a folder, of which the time says which one is appended to.
#[derive(Clone)]
pub struct Files {
    /// The folder, which has to be there.
    pub folder: PathBuf,
    /// The name of the file at a time in seconds since 1970.
    pub name: fn(now: u64) -> String,
    /// The first lines of a file.
    pub header: &'static str,
    /// The permissions of a file that is made, less the umask of the process.
    pub mode: u32,
}

// As of a grant.
impl PartialEq for Files {
    fn eq(&self, other: &Self) -> bool {
        (&self.folder, self.header, self.mode) == (&other.folder, other.header, other.mode)
    }
}

impl Eq for Files {}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// An account that signs requests as they are sent.
#[derive(Clone)]
pub struct Signature {
    /// Id of the account's key.
    pub id: String,
    /// The key.
    pub key: String,
    /// Makes the value of `Authorization`, at a time in seconds since 1970.
    pub sign: fn(&Self, now: u64) -> String,
}

// As of a grant.
impl PartialEq for Signature {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, &self.key) == (&other.id, &other.key)
    }
}

impl Eq for Signature {}

impl std::fmt::Debug for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signature").field("id", &self.id).field("key", &self.key).finish_non_exhaustive()
    }
}

/// Meaning of a collector's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Every status below 400 takes the batch.
    NoError,
    /// 2xx takes the batch.
    Success,
    /// 200 takes the batch, less the records that the answer of Elasticsearch's bulk API names as failed.
    Bulk,
}

/// A server at the other end of a byte stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tcp {
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// TLS on the stream.
    pub tls: Option<Tls>,
    /// Limit for connecting, and for each write.
    pub timeout: Duration,
    /// True if the connection is kept for the next batch; else its end is the end of a batch.
    pub is_kept: bool,
}

/// TLS on a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The name that is asked for and verified; `None`: the host.
    pub server_name: Option<String>,
    /// True if the certificate of the server is verified.
    pub verify: bool,
}

/// A topic of Kafka.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Topic {
    /// Brokers that know the others; all have the same login, if any.
    pub brokers: Vec<Broker>,
    /// The name.
    pub name: String,
    /// Key of messages, which decides on the partition; `None`: a partition by chance.
    pub key: Option<String>,
    /// True if all replicas in sync have to have a message, and not the leader alone.
    pub all_replicas: bool,
    /// TLS to brokers, with certificates that are verified or not.
    pub tls: Option<bool>,
    /// Limit for connecting, and for each answer.
    pub timeout: Duration,
}

/// A broker of Kafka.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Broker {
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// User and password (SASL).
    pub login: Option<Login>,
}

/// User and password for a broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Login {
    /// The exchange.
    pub mechanism: Mechanism,
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

/// A mechanism of SASL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// PLAIN (RFC 4616)
    Plain,
    /// SCRAM-SHA-256 (RFC 7677)
    ScramSha256,
    /// SCRAM-SHA-512
    ScramSha512,
}

/// A topic of RocketMQ.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageTopic {
    /// Hosts and ports of name servers, each of which knows all brokers.
    pub nameservers: Vec<(String, u16)>,
    /// The name.
    pub name: String,
    /// Key of messages, by which they are looked for.
    pub key: Option<String>,
    /// Tag of messages, by which consumers choose among them.
    pub tag: Option<String>,
    /// Access key and secret key.
    pub account: Option<(String, String)>,
    /// True for TLS to name servers and brokers, whose certificates are not verified.
    pub tls: bool,
    /// Limit for connecting, and for each answer.
    pub timeout: Duration,
}

/// A receiver of datagrams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Udp {
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// A list of Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// Name or address of the server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// TLS on the connection.
    pub tls: Option<Tls>,
    /// User; empty: the default user.
    pub username: String,
    /// Password; empty: no login.
    pub password: String,
    /// Number of the database.
    pub database: u32,
    /// Key of the list.
    pub key: String,
    /// Seconds after which a list that nobody reads is gone, counted from its first element; `None`: never.
    pub expires: Option<u64>,
    /// Limit for connecting, and for each answer.
    pub timeout: Duration,
}

/// A collection of MongoDB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Documents {
    /// `mongodb://USER:PASSWORD@HOST:PORT/DATABASE`, with the arguments `authSource` and `tls`.
    pub url: String,
    /// Name of the collection.
    pub collection: String,
}

/// Carries batches to their destinations. Calls block.
pub trait Carrier: Send + Sync {
    /// Sends a batch to a collector and waits for its answer. Returns how many of the batch's records the collector has
    /// refused although it took the batch.
    ///
    /// # Errors
    /// Reason why the batch was not taken.
    fn post(&self, post: &Post, check: Check, batch: &[u8]) -> Result<u64, String>;

    /// Makes a call of gRPC with a batch as its message.
    ///
    /// # Errors
    /// Reason why the batch was not taken.
    fn call(&self, post: &Post, batch: &[u8]) -> Result<(), String>;

    /// Sends a batch to a collector with a token, which is kept for as long as it is good.
    ///
    /// # Errors
    /// Reason why there is no token, or why the batch was not taken.
    fn post_granted(&self, post: &Post, grant: &Grant, batch: &[u8]) -> Result<(), String>;

    /// Writes a batch to a byte stream.
    ///
    /// # Errors
    /// Reason why the batch was not written.
    fn stream(&self, to: &Tcp, batch: &[u8]) -> Result<(), String>;

    /// Sends a batch to a topic as one message.
    ///
    /// # Errors
    /// Reason why the batch was not taken.
    fn produce(&self, to: &Topic, batch: &[u8]) -> Result<(), String>;

    /// Sends a batch to a topic of RocketMQ as one message.
    ///
    /// # Errors
    /// Reason why the batch was not taken.
    fn send_message(&self, to: &MessageTopic, batch: &[u8]) -> Result<(), String>;

    /// Sends datagrams. Returns how many could not be sent, if any could.
    ///
    /// # Errors
    /// Reason why none was sent.
    fn datagrams(&self, to: &Udp, payloads: &mut dyn Iterator<Item = &[u8]>) -> Result<u64, String>;

    /// Appends records to a list, all of them or none.
    ///
    /// # Errors
    /// Reason why they were not appended, or no answer came.
    fn append(&self, to: &List, records: &mut dyn Iterator<Item = &[u8]>) -> Result<(), String>;

    /// Inserts records, which are documents in BSON, into a collection.
    ///
    /// # Errors
    /// Reason why not all of them were inserted, or no answer came.
    fn insert(&self, to: &Documents, records: &mut dyn Iterator<Item = &[u8]>) -> Result<(), String>;
    /// Sends datagrams to the syslog daemon of this machine. Returns how many could not be sent, if any could.
    ///
    /// # Errors
    /// Reason why none was sent.
    fn syslog(&self, payloads: &mut dyn Iterator<Item = &[u8]>) -> Result<u64, String>;
}

/// A batch that was sent, or was not.
pub(super) struct Outcome {
    pub(super) id: u32,
    pub(super) batch: Batch,
    /// The number of its records that were lost on the way, or the reason why it was not sent.
    pub(super) result: Result<u64, String>,
}

/// The threads.
pub(super) struct Deliverers(Arc<Common>);

struct Common {
    carrier: Arc<dyn Carrier>,
    jobs: Mutex<Jobs>,
    wake: Condvar,
    /// Batches that went to one of several collectors.
    turn: AtomicUsize,
    outcomes: Mutex<VecDeque<Outcome>>,
    files: Mutex<HashMap<PathBuf, Arc<Mutex<Sink>>>>,
}

#[derive(Default)]
struct Jobs {
    /// At most one of each channel.
    waiting: VecDeque<(u32, Arc<Shared>, Batch)>,
    threads: usize,
    idle: usize,
}

impl Deliverers {
    pub(super) fn new(carrier: Arc<dyn Carrier>) -> Self {
        Self(Arc::new(Common {
            carrier,
            turn: AtomicUsize::new(0),
            jobs: Mutex::default(),
            wake: Condvar::new(),
            outcomes: Mutex::default(),
            files: Mutex::default(),
        }))
    }

    /// Sends a batch when a thread has time for it.
    pub(super) fn send(&self, id: u32, channel: Arc<Shared>, batch: Batch) {
        let mut jobs = lock(&self.0.jobs);
        jobs.waiting.push_back((id, channel, batch));
        if jobs.idle < jobs.waiting.len() && jobs.threads < THREADS {
            let common = Arc::clone(&self.0);
            let name = format!("weir-report-{}", jobs.threads);
            match thread::Builder::new().name(name).spawn(move || common.run()) {
                Ok(_) => jobs.threads += 1,
                Err(error) => tracing::error!(%error, "a thread for reports cannot be started"),
            }
        }
        drop(jobs);
        self.0.wake.notify_one();
    }

    pub(super) fn take_outcome(&self) -> Option<Outcome> {
        lock(&self.0.outcomes).pop_front()
    }

    /// Has every file opened anew before it is written to.
    pub(super) fn reopen(&self) {
        lock(&self.0.files).clear();
    }
}

impl Common {
    fn run(&self) {
        loop {
            let mut jobs = lock(&self.jobs);
            let (id, channel, batch) = loop {
                if let Some(job) = jobs.waiting.pop_front() {
                    break job;
                }
                jobs.idle += 1;
                jobs = self.wake.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                jobs.idle -= 1;
            };
            drop(jobs);
            let result = self.deliver(&channel.options, &batch.body);
            drop(channel);
            lock(&self.outcomes).push_back(Outcome { id, batch, result });
            HUB.wake();
        }
    }

    fn deliver(&self, options: &ChannelOptions, batch: &[u8]) -> Result<u64, String> {
        match &options.destination {
            Destination::Http(post) => self.carrier.post(post, Check::NoError, batch),
            Destination::Endpoints(Endpoints { posts, check }) => {
                let turn = self.turn.fetch_add(1, Relaxed);
                let post = posts.get(turn % posts.len().max(1)).ok_or("no collector is configured")?;
                self.carrier.post(post, *check, batch)
            }
            Destination::Grpc(post) => self.carrier.call(post, batch).map(|()| 0),
            Destination::Granted(post, grant) => self.carrier.post_granted(post, grant, batch).map(|()| 0),
            Destination::Signed(post, account) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                let mut post = post.clone();
                post.fields.push(("Authorization".to_owned(), (account.sign)(account, now)));
                self.carrier.post(&post, Check::Success, batch)
            }
            Destination::File { path, mode } => self.append(path, *mode, batch),
            Destination::Files(to) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                let path = to.folder.join((to.name)(now));
                match std::fs::metadata(&path).is_ok_and(|file| file.len() > 0) {
                    true => self.append(&path, to.mode, batch),
                    false => self.append(&path, to.mode, &[to.header.as_bytes(), batch].concat()),
                }
            }
            Destination::Tcp(to) => self.carrier.stream(to, batch).map(|()| 0),
            Destination::Kafka(to) => self.carrier.produce(to, batch).map(|()| 0),
            Destination::RocketMq(to) => self.carrier.send_message(to, batch).map(|()| 0),
            Destination::Udp(to) if options.frame == Frame::Lengths => self.carrier.datagrams(to, &mut records(batch)),
            Destination::Udp(to) => self.carrier.datagrams(to, &mut std::iter::once(batch)),
            Destination::List(to) => self.carrier.append(to, &mut records(batch)).map(|()| 0),
            Destination::Documents(to) => self.carrier.insert(to, &mut records(batch)).map(|()| 0),
            Destination::Syslog => self.carrier.syslog(&mut records(batch)),
        }
    }

    /// Appends whole lines to a file; returns how many did not get there.
    fn append(&self, path: &Path, mode: u32, lines: &[u8]) -> Result<u64, String> {
        let mut files = lock(&self.files);
        if files.len() >= OPEN_FILES {
            files.retain(|_, sink| Arc::strong_count(sink) > 1);
        }
        let known = files.get(path).cloned();
        drop(files);
        let sink = match known {
            Some(sink) => sink,
            None => {
                let sink = Sink::open("a file of records", Target::File(path.to_owned()), mode)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                Arc::clone(lock(&self.files).entry(path.to_owned()).or_insert_with(|| Arc::new(Mutex::new(sink))))
            }
        };
        let mut sink = lock(&sink);
        sink.follow().map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(sink.write(lines))
    }
}

/// The records of a batch in [`Frame::Lengths`].
pub(super) fn records(mut batch: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = batch.split_first_chunk::<4>()?;
        let (record, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        batch = rest;
        Some(record)
    })
}
