//! The live configuration of a store: checked, committed, and served.
//!
//! ```text
//!  change ──► check (load and compile the candidate) ──► store.commit ──► workers ──► answer
//!  store.watch (ttl, other gateways) ────────────────────────────────────────┘
//! ```
//!
//! Changes are made one at a time, so that each is checked against the result of the one before. A change is answered when
//! it is committed and every worker serves with it. Changes that arrive meanwhile are committed as a group
//! (`together.rs`).

mod candidate;
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

use candidate::Candidate;
pub(crate) use state::{Held, State};
use together::Waiting;
use withheld::{ADVICE, Followed};
pub(crate) use withheld::{Accepted, Withheld};

/// Pause before a store that has ended a watch is watched again.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// Maximum attempts of a change that conflicts with concurrent changes of others. Before each further attempt, the watch
/// gets [`CATCH_UP`] to report those changes.
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
    /// Queued changes, at most one per connection of the Admin API.
    waiting: std::sync::Mutex<Vec<Waiting>>,
    /// Notified of every change that is live.
    changed: Notify,
}

/// Guard that pauses changes: requests for a change wait until the guard is dropped.
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

    /// Waits for the change in progress, and pauses later ones.
    pub(crate) async fn pause(&self) -> Paused {
        Paused { _state: Arc::clone(&self.0.state).lock_owned().await }
    }

    /// Follows the commits of others, for ever.
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

    /// Reads the whole store again on each SIGHUP, for ever.
    pub(crate) async fn reload_on(self, mut hangup: Signal) {
        while hangup.recv().await.is_some() {
            systemd::reloading();
            self.0.rules.secrets.expire();
            self.reload().await;
            systemd::notify(&[NotifyState::Ready]);
        }
    }

    /// Fetches secrets again that are older than `secrets.ttl`, for ever.
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

    /// Reads the whole store again, and compiles it even if nothing has changed.
    async fn reload(&self) {
        match self.0.store.list(None).await {
            Ok(listing) => {
                let mut state = Arc::clone(&self.0.state).lock_owned().await;
                // A change made meanwhile is newer than this listing.
                if listing.revision >= state.known() {
                    self.0.take_over(&mut state, Event::Reset(listing));
                }
                self.0.serve_as_it_is(state).await;
            }
            Err(error) => {
                self.0.serving.metrics.config_rejected();
                tracing::error!("{error}; the live configuration stays in force");
            }
        }
    }

    /// Accepts the state of etcd, although it lacks resources in force. Returns `None` if no state was withheld.
    pub(crate) async fn accept(&self) -> Option<Accepted> {
        let shared = Arc::clone(&self.0);
        // A task of its own, so that the work completes even if the requester goes away.
        let work = tokio::spawn(async move { shared.accept().await });
        work.await.unwrap_or_default()
    }

    /// Waits for the next change, or for the first configuration.
    pub(crate) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// The resources in force.
    pub(crate) async fn held(&self) -> Held {
        self.0.state.lock().await.held()
    }

    async fn make(&self, commit: Commit, dry_run: bool, force: bool) -> Result<Changed, Refused> {
        let shared = Arc::clone(&self.0);
        // A task of its own, so that the work completes even if the requester goes away.
        let work = tokio::spawn(async move {
            // A shared store has other writers, so each commit states the revisions that it is based on.
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
            // Reads do not wait for a change in progress.
            _ => self.0.store.get(key),
        }
    }

    fn listing(&self, kind: Option<Kind>) -> Answer<'_, Listing> {
        // A shared store has other writers, so the configuration in force may be behind.
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
            // Another writer was first; the watch reports its change in a moment.
            tries -= 1;
            sleep(CATCH_UP).await;
        }
    }

    /// Makes a change, based on the known state. Returns `None` if the store has changed since; without `again` that is an
    /// error.
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
            // The store checks the expectations itself.
            checked.expect.clear();
        }
        // One thread does all the work where possible, because waking another one costs more than the work.
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
            // Others have committed as well. The watch reports their commits, and this one again, in order.
            let assumed = state.revision + 1;
            state.settle(&keys, assumed, revision);
        }
        // The answers of APISIX's API have no place for them.
        log_findings(&warnings);
        self.serve(state, candidate, began, &author).await;
        Ok(Some(Changed { revision, warnings }))
    }

    /// Applies an event of the store, and all further events that are queued already.
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

    /// Applies an event of the store. Returns true if it changed the state. A shared store that has lost resources in force
    /// is not followed.
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
            tracing::info!(revision = state.revision, "etcd holds the resources in force again, and is followed again");
        }
        self.serving.metrics.set_config_withheld(state.withheld.is_some());
        followed == Followed::News
    }

    /// Accepts the withheld state, or the resources without those because of which every request is refused.
    async fn accept(&self) -> Option<Accepted> {
        let mut state = Arc::clone(&self.state).lock_owned().await;
        let was_vacant = self.serving.vacant.swap(false, Ordering::Relaxed);
        let refused_all = state.serve_without_placeless();
        let Some(accepted) = state.accept() else {
            let resources = state.resources.len() - state.left_out();
            let here = Accepted { revision: state.revision, resources };
            if refused_all {
                tracing::warn!(
                    revision = here.revision,
                    resources,
                    "the resources are accepted without the invalid ones"
                );
                self.serve_as_it_is(state).await;
            }
            return (was_vacant || refused_all).then_some(here);
        };
        self.serving.metrics.set_config_withheld(false);
        let Accepted { revision, resources } = accepted;
        tracing::warn!(revision, resources, "the state of etcd is accepted in place of the resources that served");
        self.serve_as_it_is(state).await;
        Some(accepted)
    }

    /// Compiles the state and serves it, if it is valid.
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
                    "the state of the store cannot be served; the live configuration stays in force"
                );
            }
        }
    }

    async fn serve(&self, mut state: OwnedMutexGuard<State>, candidate: Candidate, began: Instant, author: &str) {
        self.serving.invalid.set(candidate.broken.iter().map(Key::to_string));
        if !state.is_empty() {
            self.serving.vacant.store(false, Ordering::Relaxed);
        }
        let routes = candidate.ready.snapshot.route_count();
        self.serving.take(Arc::clone(&candidate.ready.snapshot)).await;
        let (changes, ready) = state.record_served(&self.rules, candidate);
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

    /// Reads the resources again if those in memory may differ from those in the store.
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
            // The findings go only to the requester, because they may quote secrets.
            Refused::Invalid(findings) => tracing::info!(findings = findings.len(), "a change is refused"),
            Refused::Store(StoreError::Conflict { key }) => tracing::info!(%key, "a change is refused: a conflict"),
            Refused::Store(error) => {
                tracing::error!(%error, "a change cannot be committed; the live configuration stays in force")
            }
            Refused::ReadOnly(_) | Refused::NotAllowed(_) => {}
        }
    }
}

/// Runs work on the state on a thread that may block.
async fn blocking<T: Send + 'static>(
    mut state: OwnedMutexGuard<State>,
    work: impl FnOnce(&mut State) -> T + Send + 'static,
) -> Result<(OwnedMutexGuard<State>, T), Refused> {
    let done = tokio::task::spawn_blocking(move || {
        // Work that panics leaves the state undefined, so the store is read again then.
        state.unsure = true;
        let result = work(&mut state);
        state.unsure = false;
        (state, result)
    });
    done.await.map_err(|panicked| {
        tracing::error!(%panicked, "a configuration could not be compiled; the live configuration stays in force");
        unchecked()
    })
}

fn unchecked() -> Refused {
    Refused::Store(StoreError::Unavailable("the change could not be checked: see the error log".to_owned()))
}
