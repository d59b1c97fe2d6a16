//! Counts of quotas in SQLite, so that they outlive the process.
//!
//! A thread asks twice a second for the counts that have changed and writes them in one transaction. The database is in
//! WAL mode with `synchronous=FULL`: what was written survives a crash of the process and of the machine.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, TransactionBehavior, params};

use crate::database::{UsageError, open_file};

/// `application_id` of the database: the letters `WeCo`.
const APPLICATION: i32 = 0x5765_436f;
const VERSION: i32 = 1;
const TABLES: &str = "
    CREATE TABLE counts (
        name BLOB PRIMARY KEY,
        ends INTEGER NOT NULL,   -- milliseconds since 1970
        count INTEGER NOT NULL,  -- in this window
        before INTEGER NOT NULL, -- in the one before
        linger INTEGER NOT NULL  -- milliseconds for which the row is needed after its end
    ) STRICT, WITHOUT ROWID;
";
/// Two processes may write during an upgrade: the later window holds, and in the same one the larger count.
const PUT: &str = "
    INSERT INTO counts (name, ends, count, before, linger) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET
        ends = excluded.ends, count = excluded.count, before = excluded.before, linger = excluded.linger
    WHERE excluded.ends > ends OR (excluded.ends = ends AND excluded.count > count)";

/// Pause between two writes.
const PAUSE: Duration = Duration::from_millis(500);
/// Pause between two times at which counts that are over are deleted.
const TIDY: Duration = Duration::from_secs(600);
/// Counts written in one transaction.
const BATCH: usize = 10_000;

/// One count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// Name of the counter.
    pub name: Box<[u8]>,
    /// End of its window, in milliseconds since 1970.
    pub ends: u64,
    /// Units counted in the window.
    pub count: u64,
    /// Units counted in the window before.
    pub before: u64,
    /// Milliseconds for which it is needed after its end.
    pub linger: u64,
}

/// Storage of counts.
pub trait Counting: Send + Sync {
    /// Puts back a count of an earlier process. False without room for it.
    fn restore(&self, count: Count) -> bool;

    /// Hands over up to `most` counts that have changed since they were handed over.
    fn take_changed(&self, most: usize, out: &mut Vec<Count>);
}

/// Makes the data directory and gives the path of the database in it, when there is something to write.
pub type Place = Box<dyn Fn() -> Result<PathBuf, String> + Send>;

/// The thread that keeps counts.
#[derive(Debug)]
pub struct KeptCounts {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct Shared {
    closing: AtomicBool,
    failures: Arc<AtomicU64>,
    finished: Mutex<bool>,
    finish: Condvar,
}

impl KeptCounts {
    /// Puts back what the database at `path` has, if there is one, and starts the thread that writes. A database is made
    /// when there is something to write.
    ///
    /// # Errors
    /// The database cannot be read, or the thread not be started.
    pub fn start(
        path: &Path,
        place: Place,
        counting: Arc<dyn Counting>,
        at_start: Box<dyn FnOnce() + Send>,
    ) -> Result<Self, UsageError> {
        let mut database = None;
        if path.exists() {
            let opened = Database::open(path)?;
            let without_room = opened.restore(&*counting)?;
            if without_room > 0 {
                tracing::error!(without_room, "there is no room for all counts of plans (limits.limit_keys)");
            }
            database = Some(opened);
        }
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let keeper = Keeper { database, place, counting, batch: Vec::new(), failing: false };
        let started = thread::Builder::new().name("weir-counts".to_owned()).spawn(move || {
            at_start();
            keeper.run(&of_thread);
        });
        let thread = started.map_err(|error| UsageError::Thread(error.to_string()))?.thread().clone();
        Ok(Self { shared, thread })
    }

    /// Attempts to write that have failed.
    #[must_use]
    pub fn failures(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.failures)
    }

    /// Writes what has changed before this call and ends the thread. Returns false if that takes longer than `limit`.
    pub fn close(&self, limit: Duration) -> bool {
        self.shared.closing.store(true, Ordering::Release);
        self.thread.unpark();
        let finished = self.shared.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.shared.finish.wait_timeout_while(finished, limit, |finished| !*finished);
        *wait.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// State of the thread.
struct Keeper {
    database: Option<Database>,
    place: Place,
    counting: Arc<dyn Counting>,
    /// Counts that are to be written.
    batch: Vec<Count>,
    /// True if the last attempt failed, which is logged once.
    failing: bool,
}

impl Keeper {
    fn run(mut self, shared: &Shared) {
        let mut tidied = Instant::now();
        loop {
            // Read before the counts: those before the close are among them by now.
            let closing = shared.closing.load(Ordering::Acquire);
            let mut outcome = self.write();
            if tidied.elapsed() >= TIDY && outcome.is_ok() {
                tidied = Instant::now();
                outcome = self.database.as_ref().map_or(Ok(()), Database::tidy);
            }
            if let Err(error) = &outcome {
                shared.failures.fetch_add(1, Ordering::Relaxed);
                if !self.failing {
                    tracing::error!(%error, "counts of plans cannot be written; that is tried again");
                }
            } else if self.failing {
                tracing::info!("counts of plans can be written again");
            }
            self.failing = outcome.is_err();
            if closing {
                break;
            }
            thread::park_timeout(PAUSE);
        }
        *shared.finished.lock().unwrap_or_else(PoisonError::into_inner) = true;
        shared.finish.notify_all();
    }

    /// Writes what has changed. What cannot be written stays for the next time.
    fn write(&mut self) -> Result<(), UsageError> {
        loop {
            if self.batch.is_empty() {
                self.counting.take_changed(BATCH, &mut self.batch);
            }
            if self.batch.is_empty() {
                return Ok(());
            }
            let taken = self.batch.len();
            let database = match &mut self.database {
                Some(database) => database,
                none => {
                    let path = (self.place)().map_err(UsageError::Database)?;
                    none.insert(Database::open(&path)?)
                }
            };
            database.put(&self.batch)?;
            self.batch.clear();
            // Changes made meanwhile are for the next time.
            if taken < BATCH {
                return Ok(());
            }
        }
    }
}

#[derive(Debug)]
struct Database {
    connection: Connection,
}

impl Database {
    fn open(path: &Path) -> Result<Self, UsageError> {
        let connection = open_file(path, (APPLICATION, VERSION, "counts"), TABLES)?;
        Ok(Self { connection })
    }

    /// Puts back what is not over. Returns the counts without room.
    fn restore(&self, counting: &dyn Counting) -> Result<u64, UsageError> {
        self.tidy()?;
        let mut statement = self.connection.prepare("SELECT name, ends, count, before, linger FROM counts")?;
        let mut rows = statement.query([])?;
        let mut without_room = 0;
        while let Some(row) = rows.next()? {
            let name: Vec<u8> = row.get(0)?;
            let (ends, count, before, linger) = (row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
            without_room += u64::from(!counting.restore(Count { name: name.into(), ends, count, before, linger }));
        }
        Ok(without_room)
    }

    fn put(&mut self, counts: &[Count]) -> Result<(), UsageError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut statement = transaction.prepare_cached(PUT)?;
        for Count { name, ends, count, before, linger } in counts {
            statement.execute(params![name, ends, count, before, linger])?;
        }
        drop(statement);
        Ok(transaction.commit()?)
    }

    /// Deletes what is over.
    fn tidy(&self) -> Result<(), UsageError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let gone = self.connection.execute("DELETE FROM counts WHERE ends + linger < ?", [now])?;
        if gone > 0 {
            self.connection.execute_batch("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{BATCH, Count, Counting, KeptCounts};
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    #[derive(Debug, Default)]
    struct Memory {
        changed: Mutex<Vec<Count>>,
        restored: Mutex<Vec<Count>>,
    }

    impl Counting for Memory {
        fn restore(&self, count: Count) -> bool {
            self.restored.lock().expect("restored").push(count);
            true
        }

        fn take_changed(&self, most: usize, out: &mut Vec<Count>) {
            let mut changed = self.changed.lock().expect("changed");
            let rest = changed.len().saturating_sub(most);
            out.extend(changed.drain(rest..));
        }
    }

    fn count(name: &str, ends: u64, count: u64) -> Count {
        Count { name: name.as_bytes().into(), ends, count, before: 1, linger: 0 }
    }

    const LATER: u64 = 1 << 47;

    /// Runs a process in which these change, and gives what it got back.
    fn process(folder: &Path, changed: Vec<Count>) -> Vec<Count> {
        let counting = Arc::new(Memory { changed: Mutex::new(changed), ..Memory::default() });
        let path = folder.join("plans.db");
        let place = path.clone();
        let dynamic: Arc<dyn Counting> = counting.clone();
        let kept = KeptCounts::start(&path, Box::new(move || Ok(place.clone())), dynamic, Box::new(|| {}));
        assert!(kept.expect("start").close(Duration::from_secs(10)));
        let mut restored = std::mem::take(&mut *counting.restored.lock().expect("restored"));
        restored.sort_by(|a, b| a.name.cmp(&b.name));
        restored
    }

    #[test]
    fn counts_outlive_a_process() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(process(folder.path(), Vec::new()), []);
        assert!(!folder.path().join("plans.db").exists(), "there was nothing to write");
        process(folder.path(), vec![count("a", LATER, 5), count("b", LATER, 1), count("over", 1000, 1)]);
        // Of an older process that ends late.
        process(folder.path(), vec![count("a", LATER, 4), count("b", LATER + 1, 0)]);
        assert_eq!(process(folder.path(), Vec::new()), [count("a", LATER, 5), count("b", LATER + 1, 0)]);
    }

    #[test]
    fn many_counts_are_written_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let many: Vec<_> = (0..BATCH as u64 + 10).map(|n| count(&format!("{n:09}"), LATER, n)).collect();
        process(folder.path(), many.clone());
        assert_eq!(process(folder.path(), Vec::new()), many);
    }

    #[test]
    fn what_is_no_database_of_counts_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("plans.db");
        std::fs::write(&path, "a text where a database should be, longer than its head would be, as long as a page")
            .expect("write");
        let counting: Arc<dyn Counting> = Arc::new(Memory::default());
        let refused = KeptCounts::start(&path, Box::new(|| Err(String::new())), counting, Box::new(|| {}));
        assert!(refused.is_err());
    }
}
