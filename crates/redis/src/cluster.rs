//! Slots of a cluster: the server of each key.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crc::{CRC_16_XMODEM, Crc};
use redis::Value;
use tokio::sync::{Semaphore, oneshot};
use weir_runtime::now_us;

use crate::error::Error;
use crate::link::{Link, Role};
use crate::script::write_words;
use crate::settings::{Server, Settings};

/// Slots of a cluster.
const SLOTS: u16 = 16384;
/// Most servers that a cluster may have.
const MOST_SERVERS: usize = 1000;
/// Microseconds from one look at the slots to the next.
const PAUSE: u64 = 200_000;

static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The slot of a key: of the part between the first braces, where there is something between them.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        let close = rest.iter().position(|byte| *byte == b'}').filter(|close| *close > 0)?;
        rest.get(..close)
    });
    CRC.checksum(tag.unwrap_or(key)) % SLOTS
}

/// A cluster as it was seen last.
pub(crate) struct Cluster {
    settings: Arc<Settings>,
    /// Those of the configuration.
    seeds: Box<[Server]>,
    links: RefCell<Vec<Rc<Link>>>,
    /// The ranges of slots, in their order.
    ranges: RefCell<Vec<Range>>,
    /// One look at a time.
    turn: Semaphore,
    /// Time and outcome of the last look at the cluster.
    looked: Cell<Option<u64>>,
    failed: RefCell<Option<Error>>,
    /// True while the slots are looked at again beside the commands.
    is_looking: Cell<bool>,
}

/// Slots that one server has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    server: Server,
}

impl Cluster {
    pub(crate) fn new(seeds: &[Server], settings: &Arc<Settings>) -> Self {
        Self {
            settings: Arc::clone(settings),
            seeds: seeds.into(),
            links: RefCell::default(),
            ranges: RefCell::default(),
            turn: Semaphore::new(1),
            looked: Cell::new(None),
            failed: RefCell::default(),
            is_looking: Cell::new(false),
        }
    }

    /// The connection to the server that has a slot.
    pub(crate) async fn find(self: &Rc<Self>, slot: u16) -> Result<Rc<Link>, Error> {
        if let Some(link) = self.known(slot) {
            return Ok(link);
        }
        // In a task of its own: whoever waits may have less time than it takes.
        let (done, looked) = oneshot::channel();
        let this = Rc::clone(self);
        weir_runtime::spawn(async move {
            let _ = done.send(this.look().await);
        });
        looked.await.unwrap_or(Err(Error::Unexpected))?;
        self.known(slot).ok_or_else(|| Error::Away(format!("no server has slot {slot}").into()))
    }

    fn known(&self, slot: u16) -> Option<Rc<Link>> {
        let ranges = self.ranges.borrow();
        let at = ranges.partition_point(|range| range.last < slot);
        let server = &ranges.get(at).filter(|range| range.first <= slot)?.server;
        self.link_to(server)
    }

    /// The connection to a server, which a redirection may have named; `None`: there are too many.
    pub(crate) fn link_to(&self, server: &Server) -> Option<Rc<Link>> {
        let mut links = self.links.borrow_mut();
        if let Some(link) = links.iter().find(|link| link.server() == server) {
            return Some(Rc::clone(link));
        }
        if links.len() >= MOST_SERVERS {
            return None;
        }
        let link = Rc::new(Link::new(server.clone(), Role::Any, &self.settings));
        links.push(Rc::clone(&link));
        Some(link)
    }

    /// A slot has moved: until the next look this is where it is.
    pub(crate) fn moved(&self, slot: u16, server: &Server) {
        let mut ranges = self.ranges.borrow_mut();
        let at = ranges.partition_point(|range| range.last < slot);
        let Some(range) = ranges.get(at).filter(|range| range.first <= slot).cloned() else { return };
        let parts = [
            Range { last: slot.wrapping_sub(1), ..range.clone() },
            Range { first: slot, last: slot, server: server.clone() },
            Range { first: slot + 1, ..range.clone() },
        ];
        let keep = [range.first < slot, true, slot < range.last];
        ranges.splice(at..=at, parts.into_iter().zip(keep).filter_map(|(part, keep)| keep.then_some(part)));
    }

    /// Looks at the slots again, beside the commands, unless that was done just now.
    pub(crate) fn look_soon(self: &Rc<Self>) {
        if self.has_looked(now_us()) || self.is_looking.replace(true) {
            return;
        }
        let this = Rc::clone(self);
        weir_runtime::spawn(async move {
            if let Err(error) = this.look().await {
                tracing::warn!(cluster = ?this.seeds, %error, "the slots of a Redis cluster are not known");
            }
            this.is_looking.set(false);
        });
    }

    /// Asks one server after the other which slots they have. Whoever asks meanwhile waits for the same answer.
    async fn look(&self) -> Result<(), Error> {
        let began = now_us();
        let Ok(_turn) = self.turn.acquire().await else { return Err(Error::Unexpected) };
        if self.has_looked(began) {
            return self.failed.borrow().clone().map_or(Ok(()), Err);
        }
        let looked = self.look_at_all().await;
        *self.failed.borrow_mut() = looked.as_ref().err().cloned();
        self.looked.set(Some(now_us()));
        looked
    }

    /// True when what was seen last is from after this time, or nearly so.
    fn has_looked(&self, since: u64) -> bool {
        self.looked.get().is_some_and(|looked| looked + PAUSE > since)
    }

    async fn look_at_all(&self) -> Result<(), Error> {
        let mut servers: Vec<Server> = self.links.borrow().iter().map(|link| link.server().clone()).collect();
        servers.extend(self.seeds.iter().filter(|seed| !servers.contains(seed)).cloned().collect::<Vec<_>>());
        let mut failure = Error::Unexpected;
        for server in servers {
            let Some(link) = self.link_to(&server) else { continue };
            let asked = match link.send(false, |out| write_words(&["CLUSTER", "SLOTS"], out)) {
                Ok(reply) => reply.await,
                Err(error) => Err(error),
            };
            match asked.map(|reply| ranges(&reply, &server)) {
                Ok(Ok(found)) => {
                    let is_used = |link: &Rc<Link>| found.iter().any(|range| range.server == *link.server());
                    self.links.borrow_mut().retain(is_used);
                    *self.ranges.borrow_mut() = found;
                    return Ok(());
                }
                Ok(Err(error)) | Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// The ranges in the reply to CLUSTER SLOTS of a server.
fn ranges(reply: &Value, asked: &Server) -> Result<Vec<Range>, Error> {
    let entries = match reply {
        Value::Array(entries) => entries,
        Value::ServerError(error) => return Err(Error::Refused(error.clone())),
        _ => return Err(Error::Unexpected),
    };
    let slot = |value: &Value| match value {
        Value::Int(slot) => u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS),
        _ => None,
    };
    let range = |entry: &Value| {
        let Value::Array(entry) = entry else { return None };
        let [first, last, Value::Array(master), ..] = entry.as_slice() else { return None };
        let [host, Value::Int(port), ..] = master.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() => std::str::from_utf8(host).ok()?.into(),
            // The server does not know how it is reached: as it was asked.
            Value::BulkString(_) | Value::Nil => asked.host.clone(),
            _ => return None,
        };
        let server = Server { host, port: u16::try_from(*port).ok().filter(|port| *port > 0)? };
        Some(Range { first: slot(first)?, last: slot(last)?, server }).filter(|range| range.first <= range.last)
    };
    let mut found = entries.iter().map(range).collect::<Option<Vec<_>>>().ok_or(Error::Unexpected)?;
    found.sort_by_key(|range| range.first);
    let overlap = found.windows(2).any(|pair| matches!(pair, [one, next] if one.last >= next.first));
    if found.is_empty() || overlap { Err(Error::Unexpected) } else { Ok(found) }
}

/// The server that a redirection names, in `3999 127.0.0.1:6381`; one without a host is the one that was asked.
pub(crate) fn redirection(details: Option<&str>, asked: &Server) -> Option<Server> {
    let (_, address) = details?.split_once(' ')?;
    match address.strip_prefix(':') {
        Some(port) => Some(Server { host: asked.host.clone(), port: port.parse().ok()? }),
        None => Server::parse(address),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use redis::{Value, parse_redis_value};
    use weir_net::Network;

    use super::{Cluster, Range, ranges, redirection, slot_of};
    use crate::settings::{Server, Settings, Topology};

    fn server(text: &str) -> Server {
        Server::parse(text).expect("an address")
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        for (key, slot) in [("123456789", 12739), ("foo", 12182), ("{user1000}.following", 3443), ("", 0)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
    }

    #[test]
    fn slots_are_read_and_changed() {
        let reply = b"*2\r\n*3\r\n:8192\r\n:16383\r\n*3\r\n$9\r\n127.0.0.2\r\n:7001\r\n$1\r\nb\r\n\
            *4\r\n:0\r\n:8191\r\n*3\r\n$0\r\n\r\n:7000\r\n$1\r\na\r\n*3\r\n$9\r\n127.0.0.3\r\n:7003\r\n$1\r\nc\r\n";
        let reply = parse_redis_value(reply).expect("a reply");
        let found = ranges(&reply, &server("127.0.0.1:7000")).expect("ranges");
        let range = |first, last, text| Range { first, last, server: server(text) };
        assert_eq!(found, [range(0, 8191, "127.0.0.1:7000"), range(8192, 16383, "127.0.0.2:7001")]);

        let topology = Topology::Cluster([server("127.0.0.1:7000")].into());
        let (second, network) = (Duration::from_secs(1), Arc::<Network>::default());
        let settings = Arc::new(Settings {
            topology,
            username: None,
            password: None,
            database: 0,
            tls: None,
            connect_timeout: second,
            timeout: second,
            keepalive: second,
            network,
        });
        let cluster = Cluster::new(&[server("127.0.0.1:7000")], &settings);
        *cluster.ranges.borrow_mut() = found;
        for (slot, to) in [(0, "127.0.0.2:7001"), (100, "127.0.0.2:7001"), (8191, "127.0.0.2:7001")] {
            cluster.moved(slot, &server(to));
            assert_eq!(cluster.known(slot).expect("a server").server(), &server(to));
        }
        assert_eq!(cluster.known(99).expect("a server").server(), &server("127.0.0.1:7000"));
        assert_eq!(cluster.ranges.borrow().len(), 6);
        cluster.moved(100, &server("127.0.0.1:7000"));
        assert_eq!(cluster.known(100).expect("a server").server(), &server("127.0.0.1:7000"));
    }

    #[test]
    fn slots_that_make_no_sense_are_refused() {
        let slots = |first, last| {
            let master = vec![Value::BulkString(b"127.0.0.1".to_vec()), Value::Int(7000)];
            Value::Array(vec![Value::Int(first), Value::Int(last), Value::Array(master)])
        };
        for reply in [
            Value::Array(Vec::new()),
            Value::Okay,
            Value::Array(vec![slots(5, 4)]),
            Value::Array(vec![slots(0, 16384)]),
            Value::Array(vec![slots(-1, 5)]),
            Value::Array(vec![slots(0, 5), slots(5, 9)]),
            Value::Array(vec![Value::Int(1)]),
        ] {
            assert!(ranges(&reply, &server("127.0.0.1:7000")).is_err(), "{reply:?}");
        }
    }

    #[test]
    fn redirections_name_a_server() {
        let asked = server("10.0.0.1:7000");
        let found = |details| redirection(Some(details), &asked).map(|server| server.to_string());
        assert_eq!(found("3999 127.0.0.1:6381").as_deref(), Some("127.0.0.1:6381"));
        assert_eq!(found("3999 :6381").as_deref(), Some("10.0.0.1:6381"));
        assert_eq!(found("3999"), None);
    }
}
