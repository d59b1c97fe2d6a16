//! Tokens of Kong's `oauth2`, kept in a store of their own beside that of the configuration.
//!
//! Workers hand each change to a thread, which writes what has come together in one commit. So a token that is granted
//! is written some milliseconds later: a gateway that is killed loses the last of them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use weir_config::{ResourceKey, ResourceKind, Settings};
use weir_plugins::kong::{Token, TokenChange, Tokens};
use weir_store::{Change, Commit, Embedded, Event, Folder, History, Item, Kind, Listing, Options, Secrets, Store};

use crate::process::priority::stand_back;
use crate::source::rules::Rules;
use crate::stored::data_dir;

/// Folder of the tokens in the data directory.
const FOLDER: &str = "oauth2";
/// Changes that may wait for the thread; beyond them no token is granted.
const WAITING: usize = 16_384;
/// Changes of one commit.
const BATCH: usize = 1024;
/// Pause between two times at which tokens that have ended are removed.
const TIDY: Duration = Duration::from_secs(10);
/// Pause before a commit that has failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The thread that writes tokens.
#[derive(Debug)]
pub(crate) struct KeptTokens {
    changes: SyncSender<Step>,
    closing: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// A step of the thread.
#[derive(Debug)]
enum Step {
    Write(TokenChange),
    Close,
}

/// Puts stored tokens back, and keeps those that are granted from now on. `succeeds`: another process may still hold
/// the store.
///
/// # Errors
/// The store cannot be opened, or the thread not be started.
pub(crate) fn start(
    settings: &Settings,
    rules: &Rules,
    runtime: &Handle,
    succeeds: bool,
) -> anyhow::Result<KeptTokens> {
    let tokens = Tokens::of(rules.compiler.states());
    let folder = Folder::create(Path::new(&settings.store.data_dir)).map_err(anyhow::Error::msg)?;
    let folder = Folder::create(&folder.path().join(FOLDER)).map_err(anyhow::Error::msg)?;
    let seal =
        data_dir::seal_of(&folder, settings, Arc::new(Texts)).map_err(|failure| anyhow::Error::msg(failure.text()))?;
    // Tokens are no configuration: nobody goes back to an earlier state of them.
    let history = History { changes: 1, bytes: 1 };
    let (store, listing) =
        Embedded::open(Options { folder, seal: Arc::new(seal), history, succeeds }).map_err(anyhow::Error::msg)?;
    let revision = listing.revision;
    take(&tokens, Event::Reset(listing));
    let events = {
        let _entered = runtime.enter();
        store.watch(revision)
    };
    let owns = Arc::new(AtomicBool::new(!succeeds));
    runtime.spawn(follow(events, Arc::clone(&tokens), Arc::clone(&owns)));

    let (changes, received) = sync_channel(WAITING);
    let closing = Arc::<AtomicBool>::default();
    let (tokens_of_thread, closing_of_thread) = (Arc::clone(&tokens), Arc::clone(&closing));
    let writer = Writer { store, runtime: runtime.clone(), tokens: tokens_of_thread, closing: closing_of_thread, owns };
    let nice = settings.config.nice;
    let started = thread::Builder::new().name("weir-tokens".to_owned()).spawn(move || {
        stand_back(nice);
        writer.run(&received);
    });
    let thread = started.context("cannot start a thread")?;
    let of_workers = changes.clone();
    tokens.keep(move |change| of_workers.try_send(Step::Write(change)).is_ok());
    Ok(KeptTokens { changes, closing, thread })
}

impl KeptTokens {
    /// Writes what has changed before this call, and closes the store.
    pub(crate) fn close(self) {
        self.closing.store(true, Ordering::Release);
        // Without a receiver the thread has ended.
        let _ = self.changes.send(Step::Close);
        let _ = self.thread.join();
    }
}

/// The texts that clients carry.
#[derive(Debug)]
struct Texts;

impl Secrets for Texts {
    fn visit(&self, _: Kind, value: &mut Value, each: &mut dyn FnMut(&mut String)) {
        for field in ["access_token", "refresh_token"] {
            if let Some(Value::String(text)) = value.get_mut(field) {
                each(text);
            }
        }
    }
}

/// Takes in what another process writes during an upgrade, and what ends.
async fn follow(mut events: mpsc::Receiver<Event>, tokens: Arc<Tokens>, owns: Arc<AtomicBool>) {
    while let Some(mut event) = events.recv().await {
        // An echo of what this process has written may come after the token has gone.
        if let (Event::Committed { changes, .. }, true) = (&mut event, owns.load(Ordering::Acquire)) {
            changes.retain(|(_, item)| item.is_none());
        }
        take(&tokens, event);
    }
}

fn take(tokens: &Tokens, event: Event) {
    let put = |item: &Item| match serde_json::from_str(&item.value).map(|read| Token::read(&read, None, 0)) {
        Ok(Ok(token)) => tokens.restore(token),
        Ok(Err(field)) => tracing::error!("{}: {field} is missing, the token is left out", item.key),
        Err(error) => tracing::error!("{}: {error}, the token is left out", item.key),
    };
    match event {
        Event::Reset(Listing { items, .. }) => items.iter().for_each(put),
        Event::Committed { changes, .. } => {
            for (key, item) in &changes {
                match item {
                    Some(item) => put(item),
                    None => tokens.forget(key.id().rsplit('/').next().unwrap_or_default()),
                }
            }
        }
    }
}

/// State of the thread.
struct Writer {
    store: Embedded,
    runtime: Handle,
    tokens: Arc<Tokens>,
    closing: Arc<AtomicBool>,
    /// True once no other process writes.
    owns: Arc<AtomicBool>,
}

impl Writer {
    fn run(self, steps: &Receiver<Step>) {
        loop {
            let mut batch = Vec::new();
            let mut closes = match steps.recv_timeout(TIDY) {
                Ok(Step::Write(change)) => {
                    batch.push(change);
                    false
                }
                Ok(Step::Close) | Err(RecvTimeoutError::Disconnected) => true,
                Err(RecvTimeoutError::Timeout) => {
                    self.tokens.sweep(now());
                    false
                }
            };
            while batch.len() < BATCH {
                match steps.try_recv() {
                    Ok(Step::Write(change)) => batch.push(change),
                    Ok(Step::Close) => closes = true,
                    Err(_) => break,
                }
            }
            self.write(&batch);
            if closes {
                return self.runtime.block_on(self.store.close("the gateway stops"));
            }
        }
    }

    /// Writes changes; tries again for as long as the gateway runs.
    fn write(&self, batch: &[TokenChange]) {
        if !batch.is_empty() && !self.owns.load(Ordering::Acquire) {
            let _ = self.runtime.block_on(self.store.settled());
            self.owns.store(true, Ordering::Release);
        }
        let mut is_told = false;
        while !batch.is_empty() {
            let changes = batch.iter().map(|change| Change {
                key: ResourceKey::new(ResourceKind::Entities, &format!("oauth2_tokens/{}", change.id)),
                value: change.token.as_ref().map(|token| token.written().into()),
                expires: change.token.as_ref().and_then(|token| token.ends).map(at),
            });
            let commit = Commit { changes: changes.collect(), author: "oauth2".to_owned(), expect: Vec::new() };
            let Err(error) = self.runtime.block_on(self.store.commit(commit)) else { return };
            if !is_told {
                tracing::error!("tokens of oauth2 cannot be written, and are lost if the gateway ends: {error}");
                is_told = true;
            }
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            thread::sleep(AGAIN);
        }
    }
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or_else(SystemTime::now)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
