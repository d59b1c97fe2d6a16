//! The store that needs nothing beside the gateway: a database in a folder, and one thread that works on it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::database::{Committed, Database, Lost};
use crate::folder::{Folder, Lock, OpenError};
use crate::seal::Seal;
use crate::watchers::{ROOM, Watchers, events};
use crate::{
    Answer, Change, Commit, Difference, Event, HistoryQuery, Item, Key, Kind, Listing, Recorded, Store, StoreError,
};

/// Work that may wait for the thread. More is refused.
const QUEUE: usize = 256;

/// How long a commit waits for the process before this one to let go of the store.
const HANDOVER_LIMIT: Duration = Duration::from_secs(10);

/// How long the thread rests when nothing is due.
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
    jobs: SyncSender<Job>,
    access: watch::Receiver<Access>,
    health: Arc<Mutex<Health>>,
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it lies.
    pub folder: Folder,
    /// Encrypts its secrets.
    pub seal: Arc<Seal>,
    /// How many changes the history keeps.
    pub history: u64,
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

type Job = Box<dyn FnOnce(&mut Writer) + Send>;

/// What the thread works on.
struct Writer {
    /// Until the store is closed.
    database: Option<Database>,
    lock: Option<Lock>,
    watchers: Watchers,
    access: watch::Sender<Access>,
    health: Arc<Mutex<Health>>,
    /// What watchers know.
    revision: u64,
    /// When something is due.
    expiry: Option<SystemTime>,
}

impl Embedded {
    /// Opens the store, or makes it, and gives all that is in it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: Options) -> Result<(Self, Listing), OpenError> {
        let Options { folder, seal, history, succeeds } = options;
        let lock = if succeeds { None } else { Some(folder.try_lock()?) };
        folder.prepare_database()?;
        let database = Database::open(&folder.database(), seal, history)?;
        let listing = database.list(None)?;
        let expiry = database.next_expiry()?;
        let fault = database.is_read_only()?.then(|| format!("{} is read-only", folder.database().display()));
        let granted = if lock.is_some() { Access::Granted } else { Access::Waiting };
        let (grant, access) = watch::channel(granted);
        let health = Arc::new(Mutex::new(Health { revision: listing.revision, fault }));
        let waits = lock.is_none();
        let mut writer = Writer {
            database: Some(database),
            lock,
            watchers: Watchers::default(),
            access: grant,
            health: Arc::clone(&health),
            revision: listing.revision,
            expiry,
        };
        let (jobs, queue) = sync_channel::<Job>(QUEUE);
        let spawned = thread::Builder::new().name("weir-store".to_owned()).spawn(move || writer.run(&queue));
        spawned.map_err(|error| OpenError::Broken(format!("cannot start the thread of the store: {error}")))?;
        if waits {
            wait_for_lock(folder.clone(), jobs.clone());
        }
        Ok((Self { folder, jobs, access, health }, listing))
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
        wait_for_lock(self.folder.clone(), self.jobs.clone());
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

    /// Has the thread do something.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move |writer: &mut Writer| {
            // Whoever asked may not wait any more.
            let _ = answer.send(work(writer));
        });
        self.jobs.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(_) => StoreError::Unavailable("the store has too much to do".to_owned()),
            TrySendError::Disconnected(_) => ended("its thread has ended"),
        })?;
        answered.await.unwrap_or_else(|_| Err(ended("its thread has ended")))
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

    fn commit_all(&self, commits: Vec<Commit>) -> Option<Answer<'_, Vec<u64>>> {
        Some(Box::pin(async move {
            self.granted().await?;
            self.ask(move |writer| writer.commit_all(&commits)).await
        }))
    }

    fn watch(&self, after: u64) -> mpsc::Receiver<Event> {
        let (sender, receiver) = events();
        let job: Job = Box::new(move |writer| writer.add_watcher(sender, after));
        // Without room the sender is dropped, and the receiver ends at once: its reader asks again.
        let _ = self.jobs.try_send(job);
        receiver
    }

    fn history(&self, query: HistoryQuery) -> Answer<'_, Vec<Recorded>> {
        Box::pin(self.ask(move |writer| writer.read(|database| database.history(&query))))
    }

    fn difference(&self, from: u64, to: u64) -> Answer<'_, Vec<Difference>> {
        Box::pin(self.ask(move |writer| writer.database()?.difference(from, to)))
    }
}

/// Tells the store's thread when the process before this one has let go.
fn wait_for_lock(folder: Folder, jobs: SyncSender<Job>) {
    thread::spawn(move || {
        let locked = folder.lock();
        let job: Job = Box::new(move |writer| writer.take_over(locked));
        // The store was closed before its turn came.
        let _ = jobs.send(job);
    });
}

fn ended(reason: &str) -> StoreError {
    StoreError::Unavailable(format!("the store is closed: {reason}"))
}

impl Writer {
    fn run(&mut self, queue: &Receiver<Job>) {
        loop {
            match queue.recv_timeout(self.rest()) {
                Ok(job) => job(self),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.expire();
            let Self { watchers, database, .. } = self;
            if watchers.any_behind() {
                let all = || database.as_ref()?.list(None).ok().map(Event::Reset);
                watchers.catch_up(all);
            }
        }
    }

    /// How long there is nothing to do.
    fn rest(&self) -> Duration {
        let due = self.expiry.filter(|_| self.may_write()).map(|due| due.duration_since(SystemTime::now()));
        let due = due.map_or(REST, |left| left.unwrap_or_default().min(REST));
        if self.watchers.any_behind() { due.min(CATCH_UP) } else { due }
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
        for Committed { revision, changes } in all.into_iter().filter(|committed| !committed.changes.is_empty()) {
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
        let missed = self.database.as_ref().and_then(|database| database.events_after(after, ROOM / 2).ok().flatten());
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
