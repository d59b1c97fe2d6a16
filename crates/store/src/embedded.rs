//! The embedded store: a database in a folder, without any other service. Operations run one at a time on threads
//! that may block; one more thread does the timed work (expiry, watchers that fell behind).

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::database::{Committed, Database, DatabaseError, History};
use crate::folder::{Folder, Lock, OpenError};
use crate::seal::Seal;
use crate::watchers::{QUEUE_CAPACITY, Watchers, events};
use crate::{
    Answer, Change, Commit, Difference, Event, HistoryQuery, Item, Key, Kind, Listing, Recorded, Store, StoreError,
};

/// Longest wait of a commit for the previous process to release the store.
const HANDOVER_LIMIT: Duration = Duration::from_secs(10);

/// Longest sleep of the timer thread.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// Delays before the timer thread retries a failed expiry, and before it retries a watcher whose queue is full.
const EXPIRY_RETRY: Duration = Duration::from_secs(1);
const WATCHER_RETRY: Duration = Duration::from_millis(20);

/// Author of the commits in the history that delete expired resources.
const EXPIRY_AUTHOR: &str = "ttl";

/// The embedded store. Its timer thread ends when the store is dropped.
#[derive(Debug)]
pub struct Embedded {
    folder: Folder,
    writer: Arc<Mutex<Writer>>,
    access: watch::Receiver<Access>,
    health: SharedHealth,
}

type SharedHealth = Arc<std::sync::Mutex<Health>>;

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the store.
    pub folder: Folder,
    /// Encrypts and decrypts secrets.
    pub seal: Arc<Seal>,
    /// Bounds of the history.
    pub history: History,
    /// True if another process may still be writing and will release the store soon: commits wait until then.
    pub succeeds: bool,
}

/// Health of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Revision of the last commit.
    pub revision: u64,
    /// Error of the last read or write; `None` if it succeeded.
    pub fault: Option<String>,
}

/// Write access of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Access {
    /// Another process holds it.
    Waiting,
    Granted,
    /// Access ended, with the reason.
    Ended(String),
}

/// State behind the store's mutex.
#[derive(Debug)]
struct Writer {
    /// `None` once the store is closed.
    database: Option<Database>,
    lock: Option<Lock>,
    watchers: Watchers,
    access: watch::Sender<Access>,
    health: SharedHealth,
    /// Revision that the watchers have been notified of.
    revision: u64,
    /// Time at which the next resource expires.
    expiry: Option<SystemTime>,
    /// Time at which the timer thread wakes up, and the channel that wakes it earlier.
    alarm: SystemTime,
    wake: SyncSender<()>,
}

impl Embedded {
    /// Opens or creates the store, and lists its resources.
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
        let (wake, woken) = sync_channel(1);
        let writer = Arc::new(Mutex::new(Writer {
            database: Some(database),
            lock,
            watchers: Watchers::default(),
            access: grant,
            health: Arc::clone(&health),
            revision: listing.revision,
            expiry,
            alarm: SystemTime::now(),
            wake,
        }));
        let of_thread = Arc::downgrade(&writer);
        let spawned = thread::Builder::new().name("weir-store".to_owned()).spawn(move || run_timer(&of_thread, &woken));
        spawned.map_err(|error| OpenError::Broken(format!("cannot start the thread of the store: {error}")))?;
        if waits {
            wait_for_lock(folder.clone(), Arc::downgrade(&writer));
        }
        Ok((Self { folder, writer, access, health }, listing))
    }

    /// Current health of the store.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Releases write access to another process. This process can still read, and its commits wait.
    pub async fn release(&self) {
        let release = self.ask(|writer| {
            writer.access.send_replace(Access::Waiting);
            writer.lock = None;
            Ok(())
        });
        // A closed store has released access already.
        let _ = release.await;
    }

    /// Takes write access back as soon as no other process holds it.
    pub fn resume(&self) {
        wait_for_lock(self.folder.clone(), Arc::downgrade(&self.writer));
    }

    /// Waits until this process has write access.
    ///
    /// # Errors
    /// Another process keeps write access, or the store is closed.
    pub async fn settled(&self) -> Result<(), StoreError> {
        self.granted().await
    }

    /// Closes the store with `reason` as its reason, and releases access. Operations under way are finished first.
    pub async fn close(&self, reason: &str) {
        let reason = reason.to_owned();
        let close = self.ask(move |writer| {
            writer.end(reason);
            Ok(())
        });
        // An error means that the store was closed already.
        let _ = close.await;
    }

    /// Runs an operation on the store once the operations before it are done.
    async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        with_lock(Arc::clone(&self.writer), work).await
    }

    /// Waits until this process has write access.
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
        writer.wake_timer();
        Some(done)
    }

    fn watch(&self, after: u64) -> mpsc::Receiver<Event> {
        let (sender, receiver) = events();
        // If this fails, the sender is dropped and the receiver ends; its reader subscribes again.
        tokio::spawn(with_lock(Arc::clone(&self.writer), move |writer| {
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

/// Runs an operation once it holds the mutex.
async fn with_lock<T: Send + 'static>(
    writer: Arc<Mutex<Writer>>,
    work: impl FnOnce(&mut Writer) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    // Operations that wait for the mutex occupy no thread.
    let mut writer = writer.lock_owned().await;
    let done = spawn_blocking(move || {
        let done = work(&mut writer);
        writer.wake_timer();
        done
    });
    done.await.unwrap_or_else(|failed| Err(StoreError::Unavailable(format!("the store failed: {failed}"))))
}

/// Takes over when the previous process has released the lock.
fn wait_for_lock(folder: Folder, writer: Weak<Mutex<Writer>>) {
    thread::spawn(move || {
        let locked = folder.lock();
        // The store was closed before the lock was free.
        let Some(writer) = writer.upgrade() else { return };
        let mut writer = writer.blocking_lock();
        writer.take_over(locked);
        writer.wake_timer();
    });
}

/// Runs the timed work whenever it is due, until the store is dropped.
fn run_timer(writer: &Weak<Mutex<Writer>>, woken: &Receiver<()>) {
    loop {
        let Some(rest) = writer.upgrade().map(|writer| writer.blocking_lock().do_due_work()) else { return };
        if woken.recv_timeout(rest) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

fn ended(reason: &str) -> StoreError {
    StoreError::Unavailable(format!("the store is closed: {reason}"))
}

impl Writer {
    /// Does the work that is due, and returns the time until the next.
    fn do_due_work(&mut self) -> Duration {
        self.expire();
        let Self { watchers, database, .. } = self;
        if watchers.any_behind() {
            let all = || database.as_ref()?.list(None).ok().map(Event::Reset);
            watchers.catch_up(all);
        }
        self.alarm = self.due();
        self.alarm.duration_since(SystemTime::now()).unwrap_or_default()
    }

    /// Wakes the timer thread if its alarm is later than the next work.
    fn wake_timer(&mut self) {
        if self.due() < self.alarm {
            // A full channel means that the thread is being woken already; it checks all work then.
            let _ = self.wake.try_send(());
        }
    }

    /// Time of the next work. An alarm that is already set does not follow changes of the system clock.
    fn due(&self) -> SystemTime {
        let now = SystemTime::now();
        let rest = if self.watchers.any_behind() { WATCHER_RETRY } else { MAX_SLEEP };
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

    fn read<T>(&mut self, read: impl FnOnce(&Database) -> Result<T, DatabaseError>) -> Result<T, StoreError> {
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
            Err(lost @ DatabaseError::Conflict(_)) => Err(lost.into()),
            Err(lost) => {
                self.note(Some(lost.to_string()));
                Err(lost.into())
            }
        }
    }

    /// Notifies the watchers of the commits, and returns their revisions.
    fn committed(&mut self, all: Vec<Committed>) -> Vec<u64> {
        let revisions: Vec<u64> = all.iter().map(|committed| committed.revision).collect();
        self.revision = revisions.last().copied().unwrap_or(self.revision);
        self.note(None);
        for Committed { revision, changes, .. } in all.into_iter().filter(|committed| !committed.changes.is_empty()) {
            self.watchers.notify(&Event::Committed { revision, changes });
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
            self.database.as_ref().and_then(|database| database.events_after(after, QUEUE_CAPACITY / 2).ok().flatten());
        // Commits that the previous process still makes reach all watchers at the takeover.
        let known = |event: &Event| !matches!(event, Event::Committed { revision, .. } if *revision > self.revision);
        missed.iter_mut().for_each(|missed| missed.retain(known));
        if self.database.is_some() {
            self.watchers.add(sender, missed);
        }
    }

    /// Deletes expired resources with an ordinary commit.
    fn expire(&mut self) {
        let now = SystemTime::now();
        if self.expiry.is_none_or(|due| due > now) || !self.may_write() {
            return;
        }
        let Some(database) = &mut self.database else { return };
        let expired = database.expired(now).and_then(|keys| {
            let changes = keys.into_iter().map(|key| Change { key, value: None, expires: None }).collect();
            database.commit_all(&[Commit { changes, author: EXPIRY_AUTHOR.to_owned(), expect: Vec::new() }])
        });
        match expired {
            Ok(committed) => {
                self.committed(committed);
            }
            Err(lost) => {
                self.note(Some(lost.to_string()));
                self.expiry = Some(now + EXPIRY_RETRY);
            }
        }
    }

    /// Takes over after the previous process has released the lock, and notifies the watchers of its last commits.
    fn take_over(&mut self, locked: Result<Lock, OpenError>) {
        let Some(database) = &self.database else { return };
        let taken_over = locked.map_err(|error| DatabaseError::Unavailable(error.to_string())).and_then(|lock| {
            database.migrate()?;
            Ok((
                lock,
                database.events_after(self.revision, QUEUE_CAPACITY / 2)?,
                database.revision()?,
                database.next_expiry()?,
            ))
        });
        match taken_over {
            Ok((lock, missed, revision, expiry)) => {
                self.lock = Some(lock);
                (self.revision, self.expiry) = (revision, expiry);
                match missed {
                    Some(missed) => missed.iter().for_each(|event| self.watchers.notify(event)),
                    None => self.watchers.mark_all_behind(),
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

    /// Closes the database, and releases the lock only after that.
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
