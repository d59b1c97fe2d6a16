//! Sessions and quotas in a Redis, under the keys that Tyk itself uses, so that both gateways serve the same keys.
//!
//! | key | value |
//! |---|---|
//! | `apikey-NAME` | the session as JSON |
//! | `quota-NAME`, `quota-SCOPE-NAME` | requests of the running period, which ends with the key's time to live |
//! | the names of [`super::records`] | values beside sessions, lists of their names, and tokens of clients ranked by their ends |

use std::sync::{Arc, LazyLock};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value as Json;
use tokio::sync::{mpsc, oneshot};
use weir_plugin::{BuildCx, Invalid};
use weir_redis::{Error, GET, REMOVE, Script, Value};

use super::Sessions;
use super::session::Session;
use crate::traffic::policy::Policy;
use crate::traffic::redis::{Redis, RedisConf};

/// The Redis of sessions.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(in crate::tyk) struct Conf {
    /// The form of the Redis; `local`: sessions are kept in the data directory.
    policy: Policy,
    #[serde(flatten)]
    redis: RedisConf,
    /// Seconds for which a session is used before Redis is asked again; 0: Redis is asked for each request.
    session_cache: u32,
}

/// Sets a value for so many seconds; 0: for ever.
static SET: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "\
if ARGV[2] == '0' then redis.call('SET', KEYS[1], ARGV[1]) else redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2]) end
return 1
",
    )
});
static EXISTS: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('EXISTS', KEYS[1])"));
/// Adds an element to a list in which it is once.
static LIST_ADD: LazyLock<Script> = LazyLock::new(|| {
    Script::new("redis.call('LREM', KEYS[1], 0, ARGV[1]) redis.call('RPUSH', KEYS[1], ARGV[1]) return 1")
});
static LIST_REMOVE: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('LREM', KEYS[1], 0, ARGV[1])"));
static LIST: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('LRANGE', KEYS[1], 0, ARGV[1])"));
static RANK: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])"));
static UNRANK: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('ZREM', KEYS[1], ARGV[1])"));
/// The elements from a rank on, with their ranks. Those before it are removed.
static RANKED: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "\
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1])
return redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
",
    )
});
/// A page of the names of keys that begin with the key, from a cursor.
static SCAN: LazyLock<Script> =
    LazyLock::new(|| Script::new("return redis.call('SCAN', ARGV[1], 'MATCH', KEYS[1] .. '*', 'COUNT', 500)"));
/// Counts a request in a period of seconds that begins with its first request; 0: the period never ends. Gives the requests
/// of the period and the milliseconds that it has left.
static COUNT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "\
local used, left = redis.call('INCR', KEYS[1]), redis.call('PTTL', KEYS[1])
if left < 0 and ARGV[1] ~= '0' then
    redis.call('EXPIRE', KEYS[1], ARGV[1])
    left = ARGV[1] * 1000
end
return {used, left}
",
    )
});
/// The requests of the running period, and the milliseconds that it has left.
static USED: LazyLock<Script> =
    LazyLock::new(|| Script::new("return {tonumber(redis.call('GET', KEYS[1]) or 0), redis.call('PTTL', KEYS[1])}"));

/// Beginning of the keys of sessions.
const SESSION: &str = "apikey-";
/// Beginning of the keys of quotas.
const QUOTA: &str = "quota-";

/// Milliseconds for which it is remembered whether there is a value beside sessions, as in Tyk.
const SEEN: u64 = 1000;

/// Requests of the running period of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Requests, refused ones among them.
    pub used: u64,
    /// Milliseconds until the period ends; `None`: it never ends.
    pub left: Option<u64>,
}

/// The way of the workers to the Redis of sessions.
#[derive(Clone, Debug)]
pub(in crate::tyk) struct Remote {
    redis: Redis,
    sessions: Arc<Sessions>,
    /// Milliseconds for which a session is used before Redis is asked again.
    fresh: u64,
    /// Most sessions that are remembered.
    most: usize,
    is_cluster: bool,
}

impl Conf {
    /// The way to the Redis; `None` where sessions are in the data directory.
    pub(in crate::tyk) fn build(&self, build: &BuildCx<'_>) -> Result<Option<Remote>, Invalid> {
        let Some(topology) = self.redis.topology(self.policy)? else { return Ok(None) };
        let redis = Redis::new((&self.redis, self.policy, topology), "", false, build)?;
        Ok(Some(Remote {
            redis,
            sessions: Sessions::of(build.states),
            fresh: u64::from(self.session_cache) * 1000,
            most: build.limit_keys,
            is_cluster: self.policy == Policy::RedisCluster,
        }))
    }
}

impl Remote {
    /// Reads a session; `None` where there is none, or it cannot be used. It is remembered for a while.
    pub(in crate::tyk) async fn session(&self, name: &[u8], now_ms: u64) -> Result<Option<Arc<Session>>, Error> {
        let Value::BulkString(text) = self.redis.run(&GET, &key(SESSION, name), &[]).await? else { return Ok(None) };
        let name_text = String::from_utf8_lossy(name);
        let compiled = serde_json::from_slice::<Json>(&text).map_err(|error| error.to_string());
        match compiled.and_then(|written| self.sessions.compile(&name_text, &written, 0)) {
            Ok(session) => {
                let session = Arc::new(session);
                if self.fresh > 0 {
                    self.sessions.remember(name, &session, (now_ms, self.fresh), self.most);
                }
                Ok(Some(session))
            }
            Err(error) => {
                tracing::debug!(%error, "a session in Redis cannot be used: its key is refused");
                Ok(None)
            }
        }
    }

    /// Counts a request against a quota under a name, in periods of so many seconds; 0: one that never ends.
    pub(in crate::tyk) async fn count(&self, name: &[u8], renewal: u64) -> Result<Counted, Error> {
        let mut seconds = Vec::new();
        weir_wire::push_number(&mut seconds, renewal);
        counted(&self.redis.run(&COUNT, &key(QUOTA, name), &[&seconds]).await?)
    }

    /// Asks Redis for a sign of life.
    pub(in crate::tyk) async fn ping(&self) -> Result<(), Error> {
        self.redis.run(&EXISTS, b"tyk-liveness-probe", &[]).await.map(drop)
    }

    /// True if there is a value beside sessions with this name. That is remembered for a moment.
    pub(in crate::tyk) async fn exists(&self, name: &str, now_ms: u64) -> Result<bool, Error> {
        let reply = self.redis.run(&EXISTS, name.as_bytes(), &[]).await?;
        let is_there = matches!(reply, Value::Int(number) if number > 0);
        self.sessions.seen.put(name.as_bytes(), is_there, (now_ms, SEEN), self.most);
        Ok(is_there)
    }

    /// A way for a thread that may block, and the commands that come over it.
    pub(in crate::tyk) fn open(&self) -> (RemoteSessions, mpsc::Receiver<Command>) {
        let (sender, commands) = mpsc::channel(1);
        (
            RemoteSessions { commands: sender, sessions: Arc::clone(&self.sessions), is_cluster: self.is_cluster },
            commands,
        )
    }

    /// Runs a command, and gives its reply to whoever waits.
    pub(in crate::tyk) async fn run(&self, command: Command) {
        let arguments: Vec<&[u8]> = command.arguments.iter().map(Vec::as_slice).collect();
        let reply = self.redis.run(command.script, &command.key, &arguments).await.ok();
        // Whoever has asked may have gone.
        let _ = command.reply.send(reply);
    }
}

/// Writes the name of the count of a quota: of a scope, or of the whole session where the scope is empty.
pub(in crate::tyk) fn write_quota_key(scope: &str, name: &str, out: &mut Vec<u8>) {
    if !scope.is_empty() {
        out.extend_from_slice(scope.as_bytes());
        out.push(b'-');
    }
    out.extend_from_slice(name.as_bytes());
}

/// The key of a kind with a name. Sessions of organisations have names that are keys.
fn key(kind: &str, name: &[u8]) -> Vec<u8> {
    match name.starts_with(super::ORGANISATION.as_bytes()) {
        true => name.to_vec(),
        false => [kind.as_bytes(), name].concat(),
    }
}

fn counted(reply: &Value) -> Result<Counted, Error> {
    let Value::Array(parts) = reply else { return Err(Error::Unexpected) };
    let [Value::Int(used), Value::Int(left)] = parts.as_slice() else { return Err(Error::Unexpected) };
    Ok(Counted { used: u64::try_from(*used).unwrap_or_default(), left: u64::try_from(*left).ok() })
}

/// A command for Redis from a thread that may block.
#[derive(Debug)]
pub(in crate::tyk) struct Command {
    script: &'static Script,
    key: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    /// Takes the reply; `None` where Redis does not answer, which is logged.
    reply: oneshot::Sender<Option<Value>>,
}

/// Sessions in Redis, for a thread that may block. Commands are run by the worker whose request is answered.
#[derive(Debug)]
pub struct RemoteSessions {
    commands: mpsc::Sender<Command>,
    sessions: Arc<Sessions>,
    is_cluster: bool,
}

/// Tyk's words for a Redis that does not answer.
const AWAY: &str = "storage: Redis is either down or was not configured";
/// Most names of keys that are listed.
const MOST_NAMES: usize = 100_000;

impl RemoteSessions {
    fn ask(&self, script: &'static Script, key: Vec<u8>, arguments: Vec<Vec<u8>>) -> Result<Value, String> {
        let (reply, answer) = oneshot::channel();
        let command = Command { script, key, arguments, reply };
        self.commands.blocking_send(command).map_err(|_| AWAY.to_owned())?;
        answer.blocking_recv().ok().flatten().ok_or_else(|| AWAY.to_owned())
    }

    /// A session as it is stored.
    ///
    /// # Errors
    /// Redis does not answer, or the value is no JSON.
    pub fn get(&self, name: &str) -> Result<Option<Json>, String> {
        let Value::BulkString(text) = self.ask(&GET, key(SESSION, name.as_bytes()), Vec::new())? else {
            return Ok(None);
        };
        let read = serde_json::from_slice(&text);
        read.map(Some).map_err(|error| format!("the session {name} in Redis is no JSON: {error}"))
    }

    /// Stores a session for so many seconds; 0: for ever.
    ///
    /// # Errors
    /// Its policies cannot be applied, or Redis does not answer.
    pub fn put(&self, name: &str, session: &Json, seconds: u64) -> Result<(), String> {
        self.sessions.compile(name, session, 0)?;
        let arguments = vec![session.to_string().into_bytes(), seconds.to_string().into_bytes()];
        self.ask(&SET, key(SESSION, name.as_bytes()), arguments)?;
        self.sessions.forget(name.as_bytes());
        Ok(())
    }

    /// Removes a session; false where there was none.
    ///
    /// # Errors
    /// Redis does not answer.
    pub fn remove(&self, name: &str) -> Result<bool, String> {
        let removed = self.ask(&REMOVE, key(SESSION, name.as_bytes()), Vec::new())?;
        self.sessions.forget(name.as_bytes());
        Ok(matches!(removed, Value::Int(1)))
    }

    /// Requests that count against a quota of a session: of a scope, or of the whole session where the scope is empty.
    ///
    /// # Errors
    /// Redis does not answer.
    pub fn quota(&self, scope: &str, name: &str) -> Result<Counted, String> {
        counted(&self.ask(&USED, quota_key(scope, name), Vec::new())?).map_err(|error| error.to_string())
    }

    /// Begins a quota anew.
    ///
    /// # Errors
    /// Redis does not answer.
    pub fn reset_quota(&self, scope: &str, name: &str) -> Result<(), String> {
        self.ask(&REMOVE, quota_key(scope, name), Vec::new()).map(drop)
    }

    /// A value beside sessions.
    ///
    /// # Errors
    /// Redis does not answer.
    pub fn record(&self, name: &str) -> Result<Option<String>, String> {
        Ok(match self.ask(&GET, name.into(), Vec::new())? {
            Value::BulkString(text) => Some(String::from_utf8_lossy(&text).into_owned()),
            _ => None,
        })
    }

    /// Stores a value beside sessions for so many seconds; 0: for ever.
    ///
    /// # Errors
    /// Redis does not answer.
    pub fn put_record(&self, name: &str, value: &str, seconds: u64) -> Result<(), String> {
        self.ask(&SET, name.into(), vec![value.into(), seconds.to_string().into_bytes()])?;
        self.sessions.seen.remove(name.as_bytes());
        Ok(())
    }

    /// Removes a value beside sessions.
    ///
    /// # Errors
    /// Redis does not answer.
    pub fn remove_record(&self, name: &str) -> Result<bool, String> {
        let removed = self.ask(&REMOVE, name.into(), Vec::new())?;
        self.sessions.seen.remove(name.as_bytes());
        Ok(matches!(removed, Value::Int(1)))
    }

    /// Adds an element to a list, or takes it out.
    ///
    /// # Errors
    /// Redis does not answer.
    pub fn enlist(&self, list: &str, element: &str, is_in: bool) -> Result<(), String> {
        let script = if is_in { &LIST_ADD } else { &LIST_REMOVE };
        self.ask(script, list.into(), vec![element.into()]).map(drop)
    }

    /// The elements of a list, in their order.
    ///
    /// # Errors
    /// Redis does not answer.
    pub fn list(&self, list: &str) -> Result<Vec<String>, String> {
        texts(&self.ask(&LIST, list.into(), vec![(MOST_NAMES - 1).to_string().into_bytes()])?)
    }

    /// Gives an element of a set a rank; `None` takes it out.
    ///
    /// # Errors
    /// Redis does not answer.
    pub fn rank(&self, set: &str, element: &str, rank: Option<u64>) -> Result<(), String> {
        let reply = match rank {
            Some(rank) => self.ask(&RANK, set.into(), vec![rank.to_string().into_bytes(), element.into()]),
            None => self.ask(&UNRANK, set.into(), vec![element.into()]),
        };
        reply.map(drop)
    }

    /// The elements of a set from a rank on, with their ranks.
    ///
    /// # Errors
    /// Redis does not answer.
    pub fn ranked(&self, set: &str, from: u64) -> Result<Vec<(String, u64)>, String> {
        let arguments = vec![from.to_string().into_bytes(), MOST_NAMES.to_string().into_bytes()];
        let parts = texts(&self.ask(&RANKED, set.into(), arguments)?)?;
        let pairs = parts.chunks_exact(2).filter_map(|pair| match pair {
            [element, rank] => Some((element.clone(), rank.parse::<f64>().ok()?.max(0.0) as u64)),
            _ => None,
        });
        Ok(pairs.collect())
    }

    /// Names of all sessions, in their order.
    ///
    /// # Errors
    /// Redis does not answer, is a cluster, or has too many of them.
    pub fn names(&self) -> Result<Vec<String>, String> {
        if self.is_cluster {
            return Err("the keys of a Redis cluster are not listed: each server has some of them".to_owned());
        }
        let (mut cursor, mut names) = (b"0".to_vec(), Vec::new());
        loop {
            let page = self.ask(&SCAN, SESSION.as_bytes().to_vec(), vec![cursor])?;
            let Value::Array(parts) = page else { return Err(Error::Unexpected.to_string()) };
            let [Value::BulkString(next), Value::Array(found)] = parts.as_slice() else {
                return Err(Error::Unexpected.to_string());
            };
            let found = found.iter().filter_map(|key| match key {
                Value::BulkString(key) => key.strip_prefix(SESSION.as_bytes()),
                _ => None,
            });
            names.extend(found.map(|name| String::from_utf8_lossy(name).into_owned()));
            if names.len() > MOST_NAMES {
                return Err(format!("more than {MOST_NAMES} keys are not listed"));
            }
            if next == b"0" {
                break;
            }
            cursor = next.clone();
        }
        names.sort_unstable();
        // A scan may come by a key more than once.
        names.dedup();
        Ok(names)
    }
}

/// The texts of a reply with a list.
fn texts(reply: &Value) -> Result<Vec<String>, String> {
    let Value::Array(parts) = reply else { return Err(Error::Unexpected.to_string()) };
    let text = |part: &Value| match part {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    Ok(parts.iter().filter_map(text).collect())
}

fn quota_key(scope: &str, name: &str) -> Vec<u8> {
    let mut out = QUOTA.as_bytes().to_vec();
    write_quota_key(scope, name, &mut out);
    out
}
