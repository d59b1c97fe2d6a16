//! Names of nodes, resolved off the path of a request: each when its time to live is over, none waiting for another.
//! The last addresses of a name stay in use when it cannot be resolved any more.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, hash_map};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use weir_config::NodeHost;
use weir_config::settings::Dns;
use weir_net::Network;
use weir_net::names::Question;

use super::addresses::ResolvedAddr;
use super::endpoint::{Endpoint, Endpoints};
use super::lookup::{Answer, Lookup, Stamp};
use crate::clock;

/// Delay before a failed name is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The shortest time between two lookups of a name, whatever its time to live and `dns.min_ttl`.
const LEAST_WAIT: Duration = Duration::from_millis(100);

/// Most names that are looked up at once; the others wait for their turn.
const MAX_LOOKUPS: usize = 64;

/// Interval at which the hosts file and the system's configuration are checked for changes.
const LOOK_AT_FILES: Duration = Duration::from_secs(2);

/// Multiple of `dns.timeout` after which a lookup that never returned, because its task died, is made again.
const LOST: u32 = 40;

/// Keeps the addresses of named endpoints fresh.
pub struct Resolver {
    endpoints: Arc<Endpoints>,
    dns: Dns,
    lookup: Arc<Lookup>,
    /// Fingerprint of the files that `lookup` was made from.
    stamp: Stamp,
    names: HashMap<Arc<str>, Entry>,
    /// Names by due time (clock microseconds); an entry counts if the name's own `due` is the same.
    queue: BinaryHeap<Reverse<(u64, Arc<str>)>>,
    under_way: JoinSet<(Arc<str>, Result<Answer, String>)>,
    /// Notified when all names have been looked up once.
    waiting: Vec<oneshot::Sender<()>>,
    /// Number of names that have not been looked up yet.
    untried: usize,
    /// Source of queries by plugins for names that are no nodes.
    network: Arc<Network>,
    /// Queries of plugins under way.
    answers: JoinSet<()>,
}

/// State of a name.
#[derive(Debug, Default)]
struct Entry {
    due: u64,
    endpoints: Vec<Weak<Endpoint>>,
    answer: Option<Answer>,
    tried: bool,
    failing: bool,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Resolver {
    /// A resolver with the configured servers, or the system's.
    ///
    /// # Errors
    /// The system's configuration cannot be read.
    pub(crate) fn new(endpoints: Arc<Endpoints>, network: Arc<Network>, dns: &Dns) -> Result<Self, String> {
        let stamp = Stamp::of(dns);
        Ok(Self {
            endpoints,
            lookup: Arc::new(Lookup::new(dns)?),
            dns: dns.clone(),
            stamp,
            names: HashMap::new(),
            queue: BinaryHeap::new(),
            under_way: JoinSet::new(),
            waiting: Vec::new(),
            untried: 0,
            network,
            answers: JoinSet::new(),
        })
    }

    /// Resolves names until all senders of `asked` are gone. A sender has compiled a new configuration, and is notified
    /// when each of its names has been looked up once.
    pub async fn run(mut self, mut asked: mpsc::Receiver<oneshot::Sender<()>>) {
        let mut look = tokio::time::interval(LOOK_AT_FILES);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let network = Arc::clone(&self.network);
        loop {
            self.start_due();
            if self.untried == 0 {
                for done in self.waiting.drain(..) {
                    // The receiver may be gone.
                    let _ = done.send(());
                }
            }
            let next = self.next_due();
            tokio::select! {
                request = asked.recv() => match request {
                    Some(done) => {
                        self.take_names();
                        self.waiting.push(done);
                    }
                    None => return,
                },
                Some(done) = self.under_way.join_next() => match done {
                    Ok((name, found)) => self.take(&name, found),
                    Err(error) => tracing::error!(%error, "a lookup of a name has died; it is made again later"),
                },
                question = network.names().next(), if self.answers.len() < MAX_LOOKUPS => self.answer(question),
                Some(_) = self.answers.join_next() => {}
                _ = look.tick() => self.look_at_files(),
                () = tokio::time::sleep(next) => {}
            }
        }
    }

    /// Looks up a name for a plugin.
    fn answer(&mut self, question: Question) {
        let lookup = Arc::clone(&self.lookup);
        self.answers.spawn(async move {
            let found = lookup.find(question.name(), None).await;
            question.answer(found.map(|answer| answer.found.into_iter().map(|found| found.ip).collect()));
        });
    }

    /// Takes over the new names. Names without an entry are due at once.
    fn take_names(&mut self) {
        for endpoint in self.endpoints.take_fresh_names() {
            let NodeHost::Name(name) = &endpoint.host else { continue };
            let entry = match self.names.entry(name.as_str().into()) {
                hash_map::Entry::Occupied(known) => known.into_mut(),
                hash_map::Entry::Vacant(new) => {
                    self.queue.push(Reverse((0, Arc::clone(new.key()))));
                    self.untried += 1;
                    new.insert(Entry::default())
                }
            };
            if let Some(answer) = &entry.answer
                && !endpoint.is_resolved()
            {
                endpoint.set_addresses(places(answer, &endpoint));
            }
            entry.endpoints.push(Arc::downgrade(&endpoint));
        }
    }

    /// Begins to look up what is due, as far as there is room.
    fn start_due(&mut self) {
        let now = clock::now_us();
        while self.under_way.len() < MAX_LOOKUPS
            && self.queue.peek().is_some_and(|Reverse((due, _))| *due <= now)
            && let Some(Reverse((due, name))) = self.queue.pop()
        {
            let Some(entry) = self.names.get_mut(&name).filter(|entry| entry.due == due) else { continue };
            entry.endpoints.retain(|endpoint| endpoint.strong_count() > 0);
            if entry.endpoints.is_empty() {
                // No endpoint has this name any more.
                self.untried -= usize::from(!entry.tried);
                self.names.remove(&name);
                continue;
            }
            entry.due = now + (self.dns.timeout.duration() * LOST).as_micros() as u64;
            self.queue.push(Reverse((entry.due, Arc::clone(&name))));
            let (lookup, before) = (Arc::clone(&self.lookup), entry.answer.clone());
            self.under_way.spawn(async move {
                let found = lookup.find(&name, before).await;
                (name, found)
            });
        }
    }

    /// Time until the next name is due.
    fn next_due(&self) -> Duration {
        match self.queue.peek() {
            // A due name waits for room, which the end of a lookup makes.
            Some(Reverse((due, _))) if self.under_way.len() < MAX_LOOKUPS => {
                Duration::from_micros(due.saturating_sub(clock::now_us()))
            }
            _ => Duration::from_secs(3600),
        }
    }

    /// Takes what a lookup came to.
    fn take(&mut self, name: &Arc<str>, found: Result<Answer, String>) {
        let Some(entry) = self.names.get_mut(name) else { return };
        if !entry.tried {
            entry.tried = true;
            self.untried -= 1;
        }
        let wait = match found {
            Ok(answer) => {
                if std::mem::take(&mut entry.failing) {
                    tracing::info!(%name, "an upstream node can be resolved again");
                }
                for endpoint in entry.endpoints.iter().filter_map(Weak::upgrade) {
                    endpoint.set_addresses(places(&answer, &endpoint));
                }
                let (min, max) = (self.dns.min_ttl.duration(), self.dns.max_ttl.duration());
                let wait = answer.ttl.unwrap_or(max).clamp(min, max.max(min)).max(LEAST_WAIT);
                entry.answer = Some(answer);
                wait
            }
            Err(error) => {
                if !std::mem::replace(&mut entry.failing, true) {
                    match entry.answer {
                        Some(_) => {
                            tracing::warn!(%name, error, "cannot resolve an upstream node; its last addresses stay in use")
                        }
                        None => tracing::warn!(%name, error, "cannot resolve an upstream node; it has no address"),
                    }
                }
                RETRY
            }
        };
        entry.due = clock::now_us() + wait.as_micros() as u64;
        self.queue.push(Reverse((entry.due, Arc::clone(name))));
    }

    /// Begins anew with every name when the hosts file or the system's configuration has changed.
    fn look_at_files(&mut self) {
        let stamp = Stamp::of(&self.dns);
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        match Lookup::new(&self.dns) {
            Ok(lookup) => {
                tracing::info!("the system's hosts file or DNS configuration has changed and was read again");
                self.lookup = Arc::new(lookup);
                for entry in self.names.values_mut() {
                    entry.due = 0;
                }
                self.queue = self.names.keys().map(|name| Reverse((0, Arc::clone(name)))).collect();
            }
            Err(error) => tracing::warn!(error, "the changed DNS configuration of the system is not taken over"),
        }
    }
}

/// The addresses of an answer for one endpoint.
fn places(answer: &Answer, endpoint: &Endpoint) -> Vec<ResolvedAddr> {
    let place = |found: &super::lookup::Found| ResolvedAddr {
        priority: found.priority,
        addr: SocketAddr::new(found.ip, found.port.unwrap_or(endpoint.port)),
        weight: found.weight,
    };
    answer.found.iter().map(place).collect()
}
