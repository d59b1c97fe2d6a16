//! The store that needs nothing beside the gateway: a database in a folder. Who wants something of it takes turns, each on
//! a thread that may block; one more thread sees to what is due at some time.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::database::{Committed, Database, History, Lost};
use crate::folder::{Folder, Lock, OpenError};
use crate::seal::Seal;
use crate::watchers::{ROOM, Watchers, events};
use crate::{
    Answer, Change, Commit, Difference, Event, HistoryQuery, Item, Key, Kind, Listing, Recorded, Store, StoreError,
};

/// How long a commit waits for the process before this one to let go of the store.
const HANDOVER_LIMIT: Duration = Duration::from_secs(10);

/// How long the thread of what is due rests at most.
const REST: Duration = Duration::from_secs(60);

/// How soon it is tried again to delete what has expired, and to tell a watcher that has no room.
const AGAIN: Duration = Duration::from_secs(1);
const CATCH_UP: Duration = Duration::from_millis(20);

/// Who has expired resources deleted, in the history.
const EXPIRY: &str = "ttl";

/// The embedded store. Its thread ends with it.
#[derive(Debug)]
pub struct Embedded {
    folder: Folder,
    writer: Arc<Mutex<Writer>>,
    access: watch::Receiver<Access>,
    health: SharedHealth,
}

type SharedHealth = Arc<std::sync::Mutex<Health>>;

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it lies.
    pub folder: Folder,
    /// Encrypts its secrets.
    pub seal: Arc<Seal>,
    /// How much the history keeps.
    pub history: History,
    /// Whether another process may still write, and will soon let go: commits wait until then.
    pub succeeds: bool,
}

/// How a store is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The revision of the last commit.
    pub revision: u64,
    /// What went wrong the last time something was read or written; `None` when nothing did.
    pub fault: Option<String>,
}

/// Whether this process may write.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Access {
    /// Another process does.
    Waiting,
    Granted,
    /// Not any more, and why.
    Ended(String),
}

/// What is worked on in turn.
#[derive(Debug)]
struct Writer {
    /// Until the store is closed.
    database: Option<Database>,
    lock: Option<Lock>,
    watchers: Watchers,
    access: watch::Sender<Access>,
    health: SharedHealth,
    /// What watchers know.
    revision: u64,
    /// When the next resource expires.
    expiry: Option<SystemTime>,
    /// When the thread of what is due looks next by itself, and what wakes it before.
    alarm: SystemTime,
    bell: SyncSender<()>,
}

impl Embedded {
    /// Opens the store, or makes it, and gives all that is in it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: Options) -> Result<(Self, Listing), OpenError> {
        let Options { folder, seal, history, succeeds } = options;
        let lock = if succeeds { None } else { Some(folder.try_lock()?) };
        let database = Database::open(&folder.database(), seal, history)?;
        let listing = database.list(None)?;
        let expiry = database.next_expiry()?;
        let fault = database.is_read_only()?.then(|| format!("{} is read-only", folder.database().display()));
        let granted = if lock.is_some() { Access::Granted } else { Access::Waiting };
        let (grant, access) = watch::channel(granted);
        let health = SharedHealth::new(Health { revision: listing.revision, fault }.into());
        let waits = lock.is_none();
        let (bell, rung) = sync_channel(1);
        let writer = Arc::new(Mutex::new(Writer {
            database: Some(database),
            lock,
            watchers: Watchers::default(),
            access: grant,
            health: Arc::clone(&health),
            revision: listing.revision,
            expiry,
            alarm: SystemTime::now(),
            bell,
        }));
        let of_thread = Arc::downgrade(&writer);
        let spawned = thread::Builder::new().name("weir-store".to_owned()).spawn(move || see_to_it(&of_thread, &rung));
        spawned.map_err(|error| OpenError::Broken(format!("cannot start the thread of the store: {error}")))?;
        if waits {
            wait_for_lock(folder.clone(), Arc::downgrade(&writer));
        }
        Ok((Self { folder, writer, access, health }, listing))
    }

    /// How it is.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets another process write. This one can read, and its commits wait.
    pub async fn release(&self) {
        let release = self.ask(|writer| {
            writer.access.send_replace(Access::Waiting);
            writer.lock = None;
            Ok(())
        });
        // Closed is released.
        let _ = release.await;
    }

    /// Writes again, as soon as nobody else does.
    pub fn resume(&self) {
        wait_for_lock(self.folder.clone(), Arc::downgrade(&self.writer));
    }

    /// Waits until this process may write.
    ///
    /// # Errors
    /// Another process does, and goes on; or the store is closed.
    pub async fn settled(&self) -> Result<(), StoreError> {
        self.granted().await
    }

    /// Ends all work and lets go of the store, for `reason`. What is under way is finished.
    pub async fn close(&self, reason: &str) {
        let reason = reason.to_owned();
        let close = self.ask(move |writer| {
            writer.end(reason);
            Ok(())
        });
        // It was closed before.
        let _ = close.await;
    }

    /// Does something when its turn comes.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        in_turn(Arc::clone(&self.writer), work).await
    }

    /// Waits until this process may write.
    async fn granted(&self) -> Result<(), StoreError> {
        let mut access = self.access.clone();
        let settled = timeout(HANDOVER_LIMIT, access.wait_for(|access| *access != Access::Waiting)).await;
        let Ok(settled) = settled.map(|access| access.map(|access| access.clone())) else {
            let message = "the process before this one still writes to the store";
            return Err(StoreError::Unavailable(message.to_owned()));
        };
        match settled {
            Ok(Access::Granted) => Ok(()),
            Ok(Access::Ended(reason)) => Err(ended(&reason)),
            Ok(Access::Waiting) | Err(_) => Err(ended("its thread has ended")),
        }
    }
}

impl Store for Embedded {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Item>> {
        let key = key.clone();
        Box::pin(self.ask(move |writer| writer.read(|database| database.get(&key))))
    }

    fn list(&self, kind: Option<Kind>) -> Answer<'_, Listing> {
        Box::pin(self.ask(move |writer| writer.read(|database| database.list(kind))))
    }

    fn revision(&self) -> Answer<'_, u64> {
        Box::pin(self.ask(move |writer| writer.read(Database::revision)))
    }

    fn commit(&self, commit: Commit) -> Answer<'_, u64> {
        Box::pin(async move {
            self.granted().await?;
            let commits = [commit];
            let revisions = self.ask(move |writer| writer.commit_all(&commits)).await?;
            Ok(revisions.last().copied().unwrap_or_default())
        })
    }

    fn commit_here(&self, commits: &[Commit]) -> Option<Result<Vec<u64>, StoreError>> {
        if *self.access.borrow() != Access::Granted {
            return None;
        }
        let mut writer = self.writer.blocking_lock();
        let done = writer.commit_all(commits);
        writer.see_to_alarm();
        Some(done)
    }

    fn watch(&self, after: u64) -> mpsc::Receiver<Event> {
        let (sender, receiver) = events();
        // Where it fails the sender is gone, and the receiver ends: its reader asks again.
        tokio::spawn(in_turn(Arc::clone(&self.writer), move |writer| {
            writer.add_watcher(sender, after);
            Ok(())
        }));
        receiver
    }

    fn history(&self, query: HistoryQuery) -> Answer<'_, Vec<Recorded>> {
        Box::pin(self.ask(move |writer| writer.read(|database| database.history(&query))))
    }

    fn difference(&self, from: u64, to: u64) -> Answer<'_, Vec<Difference>> {
        Box::pin(self.ask(move |writer| writer.database()?.difference(from, to)))
    }
}

/// Does something when its turn comes.
async fn in_turn<T: Send + 'static>(
    writer: Arc<Mutex<Writer>>,
    work: impl FnOnce(&mut Writer) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    // Those that wait hold no thread.
    let mut writer = writer.lock_owned().await;
    let done = spawn_blocking(move || {
        let done = work(&mut writer);
        writer.see_to_alarm();
        done
    });
    done.await.unwrap_or_else(|failed| Err(StoreError::Unavailable(format!("the store failed: {failed}"))))
}

/// Takes over when the process before this one has let go.
fn wait_for_lock(folder: Folder, writer: Weak<Mutex<Writer>>) {
    thread::spawn(move || {
        let locked = folder.lock();
        // The store was closed before its turn came.
        let Some(writer) = writer.upgrade() else { return };
        let mut writer = writer.blocking_lock();
        writer.take_over(locked);
        writer.see_to_alarm();
    });
}

/// Does what is due, when it is, as long as there is a store.
fn see_to_it(writer: &Weak<Mutex<Writer>>, rung: &Receiver<()>) {
    loop {
        let Some(rest) = writer.upgrade().map(|writer| writer.blocking_lock().do_what_is_due()) else { return };
        if rung.recv_timeout(rest) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

fn ended(reason: &str) -> StoreError {
    StoreError::Unavailable(format!("the store is closed: {reason}"))
}

impl Writer {
    /// Does it, and tells how long there is nothing to do.
    fn do_what_is_due(&mut self) -> Duration {
        self.expire();
        let Self { watchers, database, .. } = self;
        if watchers.any_behind() {
            let all = || database.as_ref()?.list(None).ok().map(Event::Reset);
            watchers.catch_up(all);
        }
        self.alarm = self.due();
        self.alarm.duration_since(SystemTime::now()).unwrap_or_default()
    }

    /// Wakes the thread of what is due, if that would be too late by itself.
    fn see_to_alarm(&mut self) {
        if self.due() < self.alarm {
            // When it is awake already it looks at everything.
            let _ = self.bell.try_send(());
        }
    }

    /// When there is something to do next; a moment that has been set does not move with the clock.
    fn due(&self) -> SystemTime {
        let now = SystemTime::now();
        let rest = if self.watchers.any_behind() { CATCH_UP } else { REST };
        self.expiry.filter(|_| self.may_write()).map_or(now + rest, |expiry| expiry.min(now + rest))
    }

    fn may_write(&self) -> bool {
        *self.access.borrow() == Access::Granted
    }

    fn database(&mut self) -> Result<&mut Database, StoreError> {
        match &mut self.database {
            Some(database) => Ok(database),
            None => match &*self.access.borrow() {
                Access::Ended(reason) => Err(ended(reason)),
                _ => Err(ended("it was never opened")),
            },
        }
    }

    fn read<T>(&mut self, read: impl FnOnce(&Database) -> Result<T, Lost>) -> Result<T, StoreError> {
        let found = read(self.database()?);
        if let Err(lost) = &found {
            self.note(Some(lost.to_string()));
        }
        Ok(found?)
    }

    fn commit_all(&mut self, commits: &[Commit]) -> Result<Vec<u64>, StoreError> {
        if !self.may_write() {
            return Err(ended("another process writes to it"));
        }
        match self.database()?.commit_all(commits) {
            Ok(committed) => Ok(self.committed(committed)),
            Err(lost @ Lost::Conflict(_)) => Err(lost.into()),
            Err(lost) => {
                self.note(Some(lost.to_string()));
                Err(lost.into())
            }
        }
    }

    /// Tells what was committed, and gives the revisions.
    fn committed(&mut self, all: Vec<Committed>) -> Vec<u64> {
        let revisions: Vec<u64> = all.iter().map(|committed| committed.revision).collect();
        self.revision = revisions.last().copied().unwrap_or(self.revision);
        self.note(None);
        for Committed { revision, changes, .. } in all.into_iter().filter(|committed| !committed.changes.is_empty()) {
            self.watchers.tell(&Event::Committed { revision, changes });
        }
        self.expiry = self.database.as_ref().and_then(|database| database.next_expiry().ok().flatten());
        revisions
    }

    fn note(&mut self, fault: Option<String>) {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        *health = Health { revision: self.revision, fault };
    }

    fn add_watcher(&mut self, sender: mpsc::Sender<Event>, after: u64) {
        let mut missed =
            self.database.as_ref().and_then(|database| database.events_after(after, ROOM / 2).ok().flatten());
        // What the process before this one has done meanwhile everybody is told when it has let go.
        let known = |event: &Event| !matches!(event, Event::Committed { revision, .. } if *revision > self.revision);
        missed.iter_mut().for_each(|missed| missed.retain(known));
        if self.database.is_some() {
            self.watchers.add(sender, missed);
        }
    }

    /// Deletes what has expired, as a commit like any other.
    fn expire(&mut self) {
        let now = SystemTime::now();
        if self.expiry.is_none_or(|due| due > now) || !self.may_write() {
            return;
        }
        let Some(database) = &mut self.database else { return };
        let expired = database.expired(now).and_then(|keys| {
            let changes = keys.into_iter().map(|key| Change { key, value: None, expires: None }).collect();
            database.commit_all(&[Commit { changes, author: EXPIRY.to_owned(), expect: Vec::new() }])
        });
        match expired {
            Ok(committed) => {
                self.committed(committed);
            }
            Err(lost) => {
                self.note(Some(lost.to_string()));
                self.expiry = Some(now + AGAIN);
            }
        }
    }

    /// The process before this one has let go; what it did last is told.
    fn take_over(&mut self, locked: Result<Lock, OpenError>) {
        let Some(database) = &self.database else { return };
        let caught_up = locked.map_err(|error| Lost::Unavailable(error.to_string())).and_then(|lock| {
            database.migrate()?;
            Ok((lock, database.events_after(self.revision, ROOM / 2)?, database.revision()?, database.next_expiry()?))
        });
        match caught_up {
            Ok((lock, missed, revision, expiry)) => {
                self.lock = Some(lock);
                (self.revision, self.expiry) = (revision, expiry);
                match missed {
                    Some(missed) => missed.iter().for_each(|event| self.watchers.tell(event)),
                    None => self.watchers.all_behind(),
                }
                self.note(None);
                self.access.send_replace(Access::Granted);
            }
            Err(lost) => {
                self.note(Some(lost.to_string()));
                self.access.send_replace(Access::Ended(lost.to_string()));
            }
        }
    }

    /// Closes the database, and only then lets another process write.
    fn end(&mut self, reason: String) {
        self.access.send_replace(Access::Ended(reason));
        self.database = None;
        self.lock = None;
        self.watchers = Watchers::default();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end("the gateway ends".to_owned());
    }
}
