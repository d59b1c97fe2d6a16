//! The configuration that lives in a store: checked, kept, and served.
//!
//! ```text
//!  change ──► check (load and compile the candidate) ──► store.commit ──► workers ──► answer
//!  store.watch (ttl, other gateways) ────────────────────────────────────────┘
//! ```
//!
//! One change at a time goes this way, so each is checked against what the one before it left. When it is answered for,
//! it is kept and every worker serves with it. Those that wait meanwhile go together the next time (`together.rs`).

mod left_out;
mod state;
mod together;
mod withheld;

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::signal::unix::Signal;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard, mpsc};
use tokio::time::sleep;
use weir_admin::{Changed, Configuration, Refused};
use weir_store::{Answer, Commit, Event, Item, Key, Kind, Listing, Store, StoreError};

use crate::process::serving::Serving;
use crate::process::systemd::{self, NotifyState};
use crate::source::findings::log_findings;
use crate::source::rules::Rules;

use state::Candidate;
pub(crate) use state::{Held, State};
use together::Waiting;
use withheld::{ADVICE, Followed};
pub(crate) use withheld::{Accepted, Withheld};

/// How soon a store is watched again that has ended a watch.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// How often a change is tried that is based on what others have changed meanwhile, and how long the watch has each time
/// to tell of it.
const CATCHING_UP: u32 = 10;
const CATCH_UP: Duration = Duration::from_millis(20);

/// The live configuration.
#[derive(Clone, Debug)]
pub(crate) struct Live(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    rules: Arc<Rules>,
    serving: Serving,
    state: Arc<Mutex<State>>,
    /// Changes whose turn has not come. There are no more of them than clients of the Admin API wait.
    waiting: std::sync::Mutex<Vec<Waiting>>,
    /// Told of every change that is live.
    changed: Notify,
}

/// Nothing is changed as long as this is there: whoever asks for a change waits.
#[derive(Debug)]
pub(crate) struct Paused {
    _state: OwnedMutexGuard<State>,
}

impl Live {
    pub(crate) fn new(store: Arc<dyn Store>, rules: Arc<Rules>, serving: Serving, state: State) -> Self {
        let (state, changed) = (Arc::new(Mutex::new(state)), Notify::new());
        changed.notify_one();
        Self(Arc::new(Shared { store, rules, serving, state, waiting: Default::default(), changed }))
    }

    /// Waits for the change under way, and holds up those to come.
    pub(crate) async fn pause(&self) -> Paused {
        Paused { _state: Arc::clone(&self.0.state).lock_owned().await }
    }

    /// Follows what is committed by others, for ever.
    pub(crate) async fn follow(self) {
        loop {
            let revision = self.0.state.lock().await.known();
            let mut events = self.0.store.watch(revision);
            while let Some(event) = events.recv().await {
                self.0.followed(event, &mut events).await;
            }
            // The store is closed, or had no room for a watcher.
            sleep(WATCH_AGAIN).await;
        }
    }

    /// Reads everything anew on each SIGHUP, for ever.
    pub(crate) async fn reload_on(self, mut hangup: Signal) {
        while hangup.recv().await.is_some() {
            systemd::reloading();
            self.0.rules.secrets.expire();
            self.reload().await;
            systemd::notify(&[NotifyState::Ready]);
        }
    }

    /// Asks for secrets again that have been used for `secrets.ttl`, for ever.
    pub(crate) async fn refresh_secrets(self) {
        let secrets = &self.0.rules.secrets;
        loop {
            secrets.due().await;
            if secrets.changed().await {
                let state = Arc::clone(&self.0.state).lock_owned().await;
                self.0.serve_as_it_is(state).await;
            }
        }
    }

    /// Reads everything anew from the store, and compiles it whatever it is.
    async fn reload(&self) {
        match self.0.store.list(None).await {
            Ok(listing) => {
                let mut state = Arc::clone(&self.0.state).lock_owned().await;
                // A change that was made meanwhile is newer than what was read.
                if listing.revision >= state.known() {
                    self.0.take_over(&mut state, Event::Reset(listing));
                }
                self.0.serve_as_it_is(state).await;
            }
            Err(error) => {
                self.0.serving.metrics.config_rejected();
                tracing::error!("{error}; what is live stays live");
            }
        }
    }

    /// Serves what etcd holds although what served before is lost with it; `None` when nothing was withheld.
    pub(crate) async fn accept(&self) -> Option<Accepted> {
        let shared = Arc::clone(&self.0);
        // Whoever asked may go away; what was begun is brought to its end.
        let work = tokio::spawn(async move { shared.accept().await });
        work.await.unwrap_or_default()
    }

    /// Waits for a change, or for the beginning.
    pub(crate) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// What is live now.
    pub(crate) async fn held(&self) -> Held {
        self.0.state.lock().await.held()
    }

    async fn make(&self, commit: Commit, dry_run: bool, force: bool) -> Result<Changed, Refused> {
        let shared = Arc::clone(&self.0);
        // Whoever asked may go away; what was begun is brought to its end.
        let work = tokio::spawn(async move {
            // Others change what is in a shared store: there each commit says what it is based on.
            match dry_run || force || shared.store.is_shared() {
                true => shared.change(commit, dry_run, force).await,
                false => shared.change_in_turn(commit).await,
            }
        });
        work.await.unwrap_or_else(|panicked| {
            tracing::error!(%panicked, "a change could not be made");
            Err(unchecked())
        })
    }
}

impl Configuration for Live {
    fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    fn recent<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Item>> {
        match self.0.state.try_lock() {
            Ok(state) if !state.unsure => Box::pin(ready(Ok(state.resources.get(key).cloned()))),
            // Nobody waits for a change just to read.
            _ => self.0.store.get(key),
        }
    }

    fn listing(&self, kind: Option<Kind>) -> Answer<'_, Listing> {
        // Others write to a shared store, and what serves may be behind it.
        if !self.0.store.is_shared()
            && let Ok(state) = self.0.state.try_lock()
            && !state.unsure
        {
            let wanted = |item: &&Item| kind.is_none_or(|kind| item.key.kind() == kind);
            let items = state.resources.iter().filter(wanted).cloned().collect();
            return Box::pin(ready(Ok(Listing { cluster: 0, revision: state.revision, items })));
        }
        self.0.store.list(kind)
    }

    fn change(
        &self,
        commit: Commit,
        dry_run: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Changed, Refused>> + Send + '_>> {
        Box::pin(self.make(commit, dry_run, false))
    }

    fn change_by_force(&self, commit: Commit) -> Pin<Box<dyn Future<Output = Result<Changed, Refused>> + Send + '_>> {
        Box::pin(self.make(commit, false, true))
    }
}

impl Shared {
    async fn change(&self, commit: Commit, dry_run: bool, force: bool) -> Result<Changed, Refused> {
        let mut tries = CATCHING_UP;
        loop {
            let state = Arc::clone(&self.state).lock_owned().await;
            let outcome = self.change_once(state, commit.clone(), dry_run, force, tries > 0).await?;
            if let Some(changed) = outcome {
                return Ok(changed);
            }
            // Somebody else was first; the watch tells of it in a moment.
            tries -= 1;
            sleep(CATCH_UP).await;
        }
    }

    /// Makes a change, based on what is known now. `None` where that is not what the store has any more; without `again` that
    /// is an error.
    async fn change_once(
        &self,
        mut state: OwnedMutexGuard<State>,
        mut commit: Commit,
        dry_run: bool,
        force: bool,
        again: bool,
    ) -> Result<Option<Changed>, Refused> {
        let began = Instant::now();
        self.make_sure(&mut state).await.map_err(Refused::Store)?;
        let (rules, mut checked) = (Arc::clone(&self.rules), commit.clone());
        let shared = self.store.is_shared() && !dry_run;
        if shared {
            // The store itself knows best.
            checked.expect.clear();
        }
        // On one thread where that is possible: each that is woken costs more than what it does.
        let here = (!dry_run && !shared).then(|| Arc::clone(&self.store));
        let (mut state, checked) = blocking(state, move |state| {
            let (candidate, undo) = state.check(&rules, &checked, force)?;
            let kept = here.and_then(|store| store.commit_here(std::slice::from_ref(&checked)));
            Ok((candidate, undo, kept))
        })
        .await?;
        let (candidate, undo, kept) = checked.inspect_err(|refused| self.note(refused, dry_run))?;
        let warnings = candidate.warnings_of(&commit);
        if dry_run {
            state.resources.undo(undo);
            return Ok(Some(Changed { revision: state.revision, warnings }));
        }
        let implied = if shared { undo.expectations(&commit.expect) } else { Vec::new() };
        commit.expect.extend(implied.iter().cloned());
        let (author, keys) = (commit.author.clone(), commit.changes.iter().map(|change| change.key.clone()));
        let keys: Vec<Key> = keys.collect();
        let kept = match kept {
            Some(kept) => kept.map(|revisions| revisions.last().copied().unwrap_or_default()),
            None => self.store.commit(commit).await,
        };
        let revision = match kept {
            Ok(revision) => revision,
            Err(error) => {
                state.resources.undo(undo);
                let is_implied = |key: &Key| implied.iter().any(|expected| expected.key == *key);
                if again && matches!(&error, StoreError::Conflict { key } if is_implied(key)) {
                    return Ok(None);
                }
                let refused = Refused::Store(error);
                self.note(&refused, dry_run);
                return Err(refused);
            }
        };
        if revision == state.revision + 1 {
            state.revision = revision;
        } else {
            // Others have committed as well: the watch tells what, and this commit once more, in their order.
            let assumed = state.revision + 1;
            state.settle(&keys, assumed, revision);
        }
        // The answers of APISIX's API have no place for them.
        log_findings(&warnings);
        self.serve(state, candidate, began, &author).await;
        Ok(Some(Changed { revision, warnings }))
    }

    /// Takes over what the store tells, and what else it has to tell already.
    async fn followed(&self, event: Event, events: &mut mpsc::Receiver<Event>) {
        let mut state = Arc::clone(&self.state).lock_owned().await;
        let mut news = self.take_over(&mut state, event);
        while let Ok(event) = events.try_recv() {
            news |= self.take_over(&mut state, event);
        }
        if news {
            self.serve_as_it_is(state).await;
        }
    }

    /// Takes over what the store tells; whether that was news. A shared store that has lost what serves is not followed.
    fn take_over(&self, state: &mut State, event: Event) -> bool {
        if !self.store.is_shared() {
            return state.follow(event);
        }
        let was_withheld = state.withheld.is_some();
        let followed = state.follow_shared(event);
        if let Followed::Withheld(loss) = &followed {
            self.serving.metrics.config_rejected();
            tracing::error!("{loss}; {ADVICE}");
        }
        if was_withheld && state.withheld.is_none() {
            tracing::info!(revision = state.revision, "etcd holds again what serves, and is followed again");
        }
        self.serving.metrics.set_config_withheld(state.withheld.is_some());
        followed == Followed::News
    }

    /// Serves what was withheld.
    async fn accept(&self) -> Option<Accepted> {
        let mut state = Arc::clone(&self.state).lock_owned().await;
        let was_vacant = self.serving.vacant.swap(false, Ordering::Relaxed);
        let Some(accepted) = state.accept() else {
            return was_vacant.then_some(Accepted { revision: state.revision, resources: 0 });
        };
        self.serving.metrics.set_config_withheld(false);
        let Accepted { revision, resources } = accepted;
        tracing::warn!(revision, resources, "what etcd holds is accepted in the place of what served");
        self.serve_as_it_is(state).await;
        Some(accepted)
    }

    /// Compiles what is there and serves it, if it can be.
    async fn serve_as_it_is(&self, state: OwnedMutexGuard<State>) {
        let (began, rules) = (Instant::now(), Arc::clone(&self.rules));
        let Ok((state, compiled)) = blocking(state, move |state| {
            let compiled = state.compile(&rules);
            if compiled.is_err() {
                rules.compiler.sweep();
            }
            compiled
        })
        .await
        else {
            self.serving.metrics.config_rejected();
            return;
        };
        match compiled {
            Ok(candidate) => {
                log_findings(&candidate.ready.findings);
                self.serve(state, candidate, began, "the store").await;
            }
            Err(findings) => {
                self.serving.metrics.config_rejected();
                log_findings(&findings);
                tracing::error!(
                    revision = state.revision,
                    "the store's state cannot be served; what is live stays live"
                );
            }
        }
    }

    async fn serve(&self, mut state: OwnedMutexGuard<State>, candidate: Candidate, began: Instant, author: &str) {
        self.serving.metrics.set_config_left_out(candidate.broken.len() as u64);
        if !state.is_empty() {
            self.serving.vacant.store(false, Ordering::Relaxed);
        }
        let routes = candidate.ready.snapshot.route_count();
        self.serving.take(Arc::clone(&candidate.ready.snapshot)).await;
        let (changes, ready) = state.took(&self.rules, candidate);
        self.changed.notify_one();
        tracing::info!(
            revision = state.revision,
            author,
            routes,
            %changes,
            left_out = ready.left_out,
            kept = state.good.len(),
            took_ms = began.elapsed().as_millis() as u64,
            "a change is live"
        );
    }

    /// Reads the resources anew when it is not certain that those in memory are those of the store.
    async fn make_sure(&self, state: &mut State) -> Result<(), StoreError> {
        if state.unsure {
            let listing = self.store.list(None).await?;
            self.take_over(state, Event::Reset(listing));
            state.unsure = false;
        }
        state.may_be_changed()
    }

    fn note(&self, refused: &Refused, dry_run: bool) {
        if dry_run {
            return;
        }
        self.serving.metrics.config_rejected();
        match refused {
            // The words go to whoever asked; they may hold what nobody else should see.
            Refused::Invalid(findings) => tracing::info!(findings = findings.len(), "a change is refused"),
            Refused::Store(StoreError::Conflict { key }) => tracing::info!(%key, "a change is refused: a conflict"),
            Refused::Store(error) => tracing::error!(%error, "a change cannot be kept; what is live stays live"),
            Refused::ReadOnly(_) => {}
        }
    }
}

/// Works on the state on a thread that may block.
async fn blocking<T: Send + 'static>(
    mut state: OwnedMutexGuard<State>,
    work: impl FnOnce(&mut State) -> T + Send + 'static,
) -> Result<(OwnedMutexGuard<State>, T), Refused> {
    let done = tokio::task::spawn_blocking(move || {
        // Should the work panic, nobody knows what it left.
        state.unsure = true;
        let result = work(&mut state);
        state.unsure = false;
        (state, result)
    });
    done.await.map_err(|panicked| {
        tracing::error!(%panicked, "a configuration could not be compiled; what is live stays live");
        unchecked()
    })
}

fn unchecked() -> Refused {
    Refused::Store(StoreError::Unavailable("the change could not be checked: the log tells why".to_owned()))
}
