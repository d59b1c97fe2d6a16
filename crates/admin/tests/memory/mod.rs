//! A configuration in memory, served on a free port, and a client.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use weir_admin::{
    Api, Audience, Changed, Configuration, Gateway, Options, PluginSchema, Refused, Rest, Schemas, serve,
};
use weir_config::load::{check_item, load_node};
use weir_config::node::Mark;
use weir_config::{Code, Diagnostic, LoadOptions, Node};
use weir_store::{Answer, Change, Commit, Difference, Event, HistoryQuery, Item, Key, Kind, Listing, Recorded, Store};

/// A store in memory with a history; it takes everything unless a refusal is set.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    store: weir_store::Memory,
    /// The refusal of every change, if it is set.
    pub(crate) refuses: Mutex<Option<Refused>>,
    history: Mutex<Vec<Recorded>>,
}

impl Store for Memory {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Item>> {
        self.store.get(key)
    }

    fn list(&self, kind: Option<Kind>) -> Answer<'_, Listing> {
        self.store.list(kind)
    }

    fn commit(&self, mut commit: Commit) -> Answer<'_, u64> {
        Box::pin(async move {
            let mut changes = Vec::new();
            for Change { key, value, expires } in &mut commit.changes {
                let old = self.store.get(key).await?.map(|item| item.value);
                changes.push(Difference { key: key.clone(), old, new: value.clone() });
                // A resource with a time to live stays.
                *expires = None;
            }
            let author = Some(commit.author.clone());
            let revision = self.store.commit(commit).await?;
            let time = Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1500));
            self.history.lock().unwrap().push(Recorded { revision, time, author, changes });
            Ok(revision)
        })
    }

    fn watch(&self, after: u64) -> mpsc::Receiver<Event> {
        self.store.watch(after)
    }

    fn history(&self, query: HistoryQuery) -> Answer<'_, Vec<Recorded>> {
        let wanted = |recorded: &&Recorded| {
            query.before.is_none_or(|before| recorded.revision < before)
                && query.key.as_ref().is_none_or(|key| recorded.changes.iter().any(|change| change.key == *key))
        };
        let history = self.history.lock().unwrap();
        let found: Vec<Recorded> = history.iter().rev().filter(wanted).take(query.limit).cloned().collect();
        Box::pin(async { Ok(found) })
    }

    /// Of one resource that was changed once at most.
    fn difference(&self, from: u64, to: u64) -> Answer<'_, Vec<Difference>> {
        let (early, late) = (from.min(to), from.max(to));
        let history = self.history.lock().unwrap();
        let between = history.iter().filter(|recorded| recorded.revision > early && recorded.revision <= late);
        let mut found: Vec<Difference> = between.flat_map(|recorded| recorded.changes.clone()).collect();
        if from > to {
            found.iter_mut().for_each(|change| std::mem::swap(&mut change.old, &mut change.new));
        }
        Box::pin(async { Ok(found) })
    }
}

impl Memory {
    /// A resource that refers to a deleted one, and is not changed itself.
    fn used(commit: &Commit, listing: &Listing) -> Option<Key> {
        let references: Vec<String> = commit
            .changes
            .iter()
            .filter(|change| change.value.is_none())
            .filter_map(|change| {
                let field = match change.key.kind() {
                    Kind::Upstreams => "upstream_id",
                    Kind::Services => "service_id",
                    Kind::PluginConfigs => "plugin_config_id",
                    Kind::ConsumerGroups => "group_id",
                    _ => return None,
                };
                Some(format!("\"{field}\":\"{}\"", change.key.id()))
            })
            .collect();
        let changed = |key: &Key| commit.changes.iter().any(|change| change.key == *key);
        let refers = |item: &&Item| !changed(&item.key) && references.iter().any(|text| item.value.contains(text));
        listing.items.iter().find(refers).map(|item| item.key.clone())
    }
}

impl Configuration for Memory {
    fn store(&self) -> &dyn Store {
        self
    }

    fn change(
        &self,
        commit: Commit,
        dry_run: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Changed, Refused>> + Send + '_>> {
        Box::pin(async move {
            if let Some(refused) = self.refuses.lock().unwrap().clone() {
                return Err(refused);
            }
            let listing = self.list(None).await.map_err(Refused::Store)?;
            if let Some(key) = Self::used(&commit, &listing) {
                return Err(Refused::Invalid(vec![error(&key.to_string(), "refers to what is not there")]));
            }
            if dry_run {
                return Ok(Changed::default());
            }
            let revision = self.commit(commit).await.map_err(Refused::Store)?;
            Ok(Changed { revision, warnings: Vec::new() })
        })
    }

    fn change_by_force(&self, commit: Commit) -> Pin<Box<dyn Future<Output = Result<Changed, Refused>> + Send + '_>> {
        Box::pin(async move {
            let revision = self.commit(commit).await.map_err(Refused::Store)?;
            Ok(Changed { revision, warnings: Vec::new() })
        })
    }
}

/// A gateway with one plugin, whose `key` is secret.
#[derive(Debug)]
struct Pretended(Schemas);

impl Gateway for Pretended {
    fn schemas(&self) -> &Schemas {
        &self.0
    }

    fn check_item(&self, kind: Kind, item: Node) -> Option<Vec<Diagnostic>> {
        check_item(kind, item, &LoadOptions::PLAIN)
    }

    fn check_document(&self, root: Node) -> Vec<Diagnostic> {
        load_node("test", root, &LoadOptions::PLAIN).diagnostics
    }

    fn explain(&self, request: &str, fields: Vec<(String, String)>, remote: IpAddr) -> Result<Value, String> {
        match request {
            "GET /a" => Ok(json!({ "request": request, "fields": fields, "remote": remote })),
            other => Err(format!("no request: {other}")),
        }
    }

    fn usage(&self) -> Option<Arc<weir_usage::Usage>> {
        None
    }

    fn may_hold_secrets(&self, json: &str) -> bool {
        json.contains("key-auth")
    }

    fn conceal(&self, _: Kind, resource: &mut Value, audience: Audience) {
        if audience != Audience::Administrator
            && let Some(key) = resource.pointer_mut("/plugins/key-auth/key")
        {
            *key = "***".into();
        }
    }

    fn restore(&self, _: Kind, resource: &mut Value, before: Option<&Value>) -> Result<(), String> {
        const KEY: &str = "/plugins/key-auth/key";
        match (resource.pointer_mut(KEY).filter(|key| **key == "***"), before.and_then(|before| before.pointer(KEY))) {
            (None, _) => Ok(()),
            (Some(key), Some(stored)) => {
                *key = stored.clone();
                Ok(())
            }
            (Some(_), None) => Err("there is no secret".to_owned()),
        }
    }
}

fn schemas() -> Schemas {
    let schema = json!({ "type": "object", "properties": { "key": { "type": "string" } } });
    let plugin = |name, priority| PluginSchema {
        name,
        priority,
        auth: priority > 0,
        streams: priority < 0,
        requests: true,
        supported: true,
        schema: schema.clone(),
        consumer_schema: (priority > 0).then(|| schema.clone()),
        metadata_schema: None,
        doc: "",
        example: "",
    };
    Schemas::new(vec![plugin("echo", -1), plugin("key-auth", 2500)])
}

/// An API over a store in memory.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    pub(crate) memory: Arc<Memory>,
    /// Notified when another process serves in the place of this one.
    pub(crate) leave: watch::Sender<Option<Duration>>,
    /// Holds the server up.
    pub(crate) rest: Arc<Rest>,
}

impl Server {
    pub(crate) fn start(options: Options) -> Self {
        Self::serving(options, |api| api)
    }

    /// In API-driven standalone mode.
    pub(crate) fn standalone(options: Options) -> Self {
        Self::serving(options, Api::standalone)
    }

    fn serving(options: Options, mode: impl FnOnce(Api) -> Api) -> Self {
        let memory = Arc::new(Memory::default());
        let api = mode(Api::new(memory.clone(), Arc::new(Pretended(schemas())), options));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let (leave, leaving) = watch::channel(None);
        let rest = Arc::<Rest>::default();
        let at_rest = Arc::clone(&rest);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                serve(TcpListener::from_std(listener).unwrap(), 100, None, leaving, at_rest, api.into()).await
            });
        });
        Self { addr, memory, leave, rest }
    }

    /// The keys of what is stored, in their order.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut listing = self.memory.list(None);
        let Poll::Ready(Ok(listing)) = listing.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("what is in memory is there at once");
        };
        let mut keys: Vec<String> = listing.items.iter().map(|item| item.key.to_string()).collect();
        keys.sort_unstable();
        keys
    }

    /// Puts a resource into the store behind the API's back.
    pub(crate) fn store(&self, key: &str, value: &Value) {
        let change = Change { key: key.parse().unwrap(), value: Some(value.to_string().into()), expires: None };
        let mut commit = self.memory.commit(Commit { changes: vec![change], ..Commit::default() });
        let Poll::Ready(done) = commit.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("what is in memory is there at once");
        };
        done.unwrap();
    }

    /// Sends bytes, reads to the end.
    pub(crate) fn raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A refused body may be cut with a reset, after the answer.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Sends a request with these fields; gives status, head and body.
    pub(crate) fn send(&self, method: &str, path: &str, fields: &str, body: &str) -> (u16, String, String) {
        let length = body.len();
        let answer = self.raw(&format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
        ));
        let (head, body) =
            answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer to {method} {path}: {answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let head = head.to_ascii_lowercase();
        let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
        (status, head, body)
    }

    /// Sends a request as an administrator; gives status and JSON.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, _, body) = self.send(method, path, "X-API-KEY: admin-key\r\n", body);
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{method} {path}: {error}: {body:?}")))
    }
}

/// The content of a body in chunks (RFC 9112 section 7.1).
fn unchunked(mut body: &str) -> String {
    let mut content = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").expect("the size of a chunk");
        let size = usize::from_str_radix(size, 16).expect("a hexadecimal size");
        if size == 0 {
            return content;
        }
        content.push_str(&rest[..size]);
        body = rest[size..].strip_prefix("\r\n").expect("the end of a chunk");
    }
}

/// An error as a check gives it.
pub(crate) fn error(path: &str, message: &str) -> Diagnostic {
    Diagnostic::error(Mark::NONE, path, Code::Unreadable { reason: message.to_owned() })
}
