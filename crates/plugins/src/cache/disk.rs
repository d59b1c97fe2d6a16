//! The folder of a zone on a disk: a file for each response, with its key and fields ahead of its body.
//!
//! Keys and fields of responses stay in memory; bodies do as long as somebody uses them. Files are read by one thread and
//! written, removed and found by another, so that no worker waits for a disk. A file has its name when it is whole. A
//! response that was removed from the tables meanwhile is not there for a reader, who goes on as if there had been nothing.

#![allow(clippy::disallowed_types, reason = "held for a look at one response, with nothing that waits")]

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak, mpsc};
use std::time::Duration;
use std::{fs, thread};

use tokio::sync::oneshot;

use super::head::{Found, Head, now_ms};
use super::zone::{Stored, Zone};

/// The first line of each file.
const MAGIC: &str = "weir cache 1";
/// Most bodies that wait to be read, and most responses that wait to be written.
const MOST_WAITING: usize = 4096;
/// Time for which a request waits for a body; then it goes to the upstream.
const LONGEST_READ: Duration = Duration::from_secs(5);
/// Bytes of the longest head of a file.
const LONGEST_HEAD: u64 = 1 << 20;

/// The body of a response in a file.
#[derive(Debug)]
pub(crate) struct OnDisk {
    name: String,
    len: usize,
    body: Mutex<Kept>,
}

/// The body in memory.
#[derive(Debug)]
enum Kept {
    /// Not yet written.
    New(Arc<Body>),
    /// Written; in memory while somebody uses it.
    Written(Weak<Body>),
}

/// A body in memory, counted as long as it is there.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Box<[u8]>,
    room: Arc<Room>,
}

impl std::ops::Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes.len(), Relaxed);
    }
}

/// Memory for bodies.
#[derive(Debug)]
struct Room {
    most: usize,
    taken: AtomicUsize,
}

impl Room {
    /// Takes room for a body of so many bytes, which are had then.
    fn body(self: &Arc<Self>, len: usize, bytes: impl FnOnce() -> Option<Box<[u8]>>) -> Result<Arc<Body>, Unread> {
        let before = self.taken.fetch_add(len, Relaxed);
        let bytes = if before + len > self.most { Err(Unread::NoRoom) } else { bytes().ok_or(Unread::Gone) };
        match bytes {
            Ok(bytes) => Ok(Arc::new(Body { bytes, room: Arc::clone(self) })),
            Err(reason) => {
                self.taken.fetch_sub(len, Relaxed);
                Err(reason)
            }
        }
    }
}

/// A folder with the threads that use it.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: Arc<Path>,
    room: Arc<Room>,
    reads: mpsc::SyncSender<Reading>,
    writes: mpsc::SyncSender<Writing>,
    /// Names of files to remove, as many as there were responses.
    removed: Arc<Mutex<Vec<String>>>,
    started: Once,
    /// The threads' ends, until they are started.
    ends: Mutex<Option<(mpsc::Receiver<Reading>, mpsc::Receiver<Writing>)>>,
}

#[derive(Debug)]
struct Reading {
    stored: Arc<Stored>,
    answer: oneshot::Sender<Result<Arc<Body>, Unread>>,
}

/// Reason for which a body cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The file is not there any more, or is another one.
    Gone,
    /// There is no memory for it, too many wait for others, or the disk takes too long.
    NoRoom,
}

#[derive(Debug)]
enum Writing {
    Store {
        key: Box<[u8]>,
        vary: Vec<Box<str>>,
        values: Box<[u8]>,
        stored: Arc<Stored>,
    },
    /// A look at the names of files to remove, which is had after each response as well.
    Removal,
}

impl OnDisk {
    /// Bytes of the body.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The body, where it is in memory.
    pub(crate) fn body(&self) -> Option<Arc<Body>> {
        match &*self.body.lock().unwrap_or_else(PoisonError::into_inner) {
            Kept::New(body) => Some(Arc::clone(body)),
            Kept::Written(body) => body.upgrade(),
        }
    }

    fn set(&self, body: &Arc<Body>) {
        *self.body.lock().unwrap_or_else(PoisonError::into_inner) = Kept::Written(Arc::downgrade(body));
    }
}

impl Disk {
    /// Opens a folder, and makes it. Bodies in memory take no more than so many bytes.
    ///
    /// # Errors
    /// The folder cannot be made or written to.
    pub(crate) fn open(folder: &Path, memory: usize) -> io::Result<Self> {
        make(folder)?;
        let probe = folder.join(format!("probe.{}", std::process::id()));
        File::create(&probe)?;
        fs::remove_file(probe)?;
        let (reads, reading) = mpsc::sync_channel(MOST_WAITING);
        let (writes, writing) = mpsc::sync_channel(MOST_WAITING);
        let room = Arc::new(Room { most: memory, taken: AtomicUsize::new(0) });
        let ends = Mutex::new(Some((reading, writing)));
        Ok(Self { folder: folder.into(), room, reads, writes, removed: Arc::default(), started: Once::new(), ends })
    }

    /// Starts the threads for a zone, one of which finds what is there from before. A configuration that is only checked does
    /// not come here. Without threads nothing is read or written.
    pub(crate) fn start(&self, zone: &Arc<Zone>) {
        self.started.call_once(|| {
            if let Err(error) = self.spawn(zone) {
                tracing::error!(folder = %self.folder.display(), %error, "no thread for a cache on a disk");
            }
        });
    }

    fn spawn(&self, zone: &Arc<Zone>) -> io::Result<()> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((reading, writing)) = ends else { return Ok(()) };
        let (folder, room) = (Arc::clone(&self.folder), Arc::clone(&self.room));
        thread::Builder::new().name("weir-cache-read".to_owned()).spawn(move || {
            for Reading { stored, answer } in reading {
                if !answer.is_closed() {
                    // One who goes away now needs nothing.
                    let _ = answer.send(read_body(&folder, &room, &stored));
                }
            }
        })?;
        let (folder, zone, removed) = (Arc::clone(&self.folder), Arc::downgrade(zone), Arc::clone(&self.removed));
        thread::Builder::new().name("weir-cache-write".to_owned()).spawn(move || {
            find(&folder, &zone);
            for writing in writing {
                if let Writing::Store { key, vary, values, stored } = writing {
                    keep(&folder, &zone, (&key, &vary, &values), &stored);
                }
                for name in std::mem::take(&mut *removed.lock().unwrap_or_else(PoisonError::into_inner)) {
                    let _ = fs::remove_file(path(&folder, &name));
                }
            }
        })?;
        Ok(())
    }

    /// The place for a body; `None`: there is no memory to hold it until it is written.
    pub(crate) fn place(&self, bytes: Box<[u8]>) -> Option<OnDisk> {
        let len = bytes.len();
        let body = self.room.body(len, || Some(bytes)).ok()?;
        Some(OnDisk { name: format!("{:016x}", fastrand::u64(..)), len, body: Mutex::new(Kept::New(body)) })
    }

    /// Has a response written that is in the tables; false where too many wait for that already.
    pub(crate) fn write(&self, key: &[u8], vary: &[Box<str>], values: &[u8], stored: &Arc<Stored>) -> bool {
        let (key, vary, values, stored) = (key.into(), vary.to_vec(), values.into(), Arc::clone(stored));
        self.writes.try_send(Writing::Store { key, vary, values, stored }).is_ok()
    }

    /// Has files removed.
    pub(crate) fn remove<'d>(&self, files: impl Iterator<Item = &'d OnDisk>) {
        let names: Vec<String> = files.map(|file| file.name.clone()).collect();
        if !names.is_empty() {
            self.removed.lock().unwrap_or_else(PoisonError::into_inner).extend(names);
            // A thread whose jobs are all taken has something to do anyway.
            let _ = self.writes.try_send(Writing::Removal);
        }
    }

    /// The body of a response.
    pub(crate) async fn read(&self, stored: &Arc<Stored>) -> Result<Arc<Body>, Unread> {
        let (answer, answered) = oneshot::channel();
        self.reads.try_send(Reading { stored: Arc::clone(stored), answer }).map_err(|_| Unread::NoRoom)?;
        let answer = weir_runtime::timeout(LONGEST_READ, answered).await;
        answer.map_or(Err(Unread::NoRoom), |answer| answer.unwrap_or(Err(Unread::Gone)))
    }
}

/// Makes a folder, for this user alone.
fn make(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn path(folder: &Path, name: &str) -> PathBuf {
    folder.join(name.get(..2).unwrap_or_default()).join(name)
}

fn read_body(folder: &Path, room: &Arc<Room>, stored: &Stored) -> Result<Arc<Body>, Unread> {
    let on_disk = stored.on_disk.as_ref().ok_or(Unread::Gone)?;
    if let Some(body) = on_disk.body() {
        return Ok(body);
    }
    let read = || {
        let mut file = File::open(path(folder, &on_disk.name)).ok()?;
        let from = file.metadata().ok()?.len().checked_sub(on_disk.len as u64)?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(from)).ok()?;
        let mut bytes = vec![0; on_disk.len];
        file.read_exact(&mut bytes).ok()?;
        Some(bytes.into())
    };
    let body = room.body(on_disk.len, read)?;
    on_disk.set(&body);
    Ok(body)
}

/// Writes a response that is still in the tables.
fn keep(folder: &Path, zone: &Weak<Zone>, place: (&[u8], &[Box<str>], &[u8]), stored: &Arc<Stored>) {
    let (key, vary, values) = place;
    let Some(zone) = zone.upgrade().filter(|zone| zone.has(key, values, stored)) else { return };
    if let Err(error) = write(folder, key, vary, values, stored) {
        tracing::error!(folder = %folder.display(), %error, "a response cannot be kept on the disk");
        zone.forget_one(key, values, stored);
    }
}

fn write(folder: &Path, key: &[u8], vary: &[Box<str>], values: &[u8], stored: &Stored) -> io::Result<()> {
    let Some((on_disk, body)) = stored.on_disk.as_ref().and_then(|on_disk| Some((on_disk, on_disk.body()?))) else {
        return Ok(());
    };
    let head = Head::of(key, vary, values, stored, body.len());
    let whole = path(folder, &on_disk.name);
    make(whole.parent().unwrap_or(folder))?;
    let part = whole.with_extension("part");
    let mut options = File::options();
    let written = options.write(true).create(true).truncate(true).mode(0o600).open(&part).and_then(|mut file| {
        file.write_all(format!("{MAGIC}\n{}\n", serde_json::to_string(&head)?).as_bytes())?;
        file.write_all(&body)
    });
    if let Err(error) = written.and_then(|()| fs::rename(&part, &whole)) {
        let _ = fs::remove_file(&part);
        return Err(error);
    }
    on_disk.set(&body);
    Ok(())
}

/// Calls a function with each file of responses.
fn each_file(folder: &Path, mut each: impl FnMut(&Path)) {
    let inner = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_hex = |path: &Path, len: usize| {
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        name.len() == len && name.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    for below in inner(folder).filter(|path| is_hex(path, 2)) {
        inner(&below).filter(|path| is_hex(path, 16)).for_each(|file| each(&file));
    }
}

/// Finds the responses that are on the disk, and removes what is none.
fn find(folder: &Path, zone: &Weak<Zone>) {
    let mut found = 0_usize;
    each_file(folder, |file| {
        let Some(zone) = zone.upgrade() else { return };
        let is_kept = read_head(file).is_some_and(|(key, vary, values, stored)| {
            is_useful(&stored) && zone.restore(&key, &vary, &values, stored)
        });
        if is_kept {
            found += 1;
        } else if !is_being_written(file) {
            let _ = fs::remove_file(file);
        }
    });
    if found > 0 {
        tracing::info!(folder = %folder.display(), responses = found, "responses are on the disk from before");
    }
}

/// True for a file without its name yet, which another process may be writing.
fn is_being_written(file: &Path) -> bool {
    let changed = fs::metadata(file).and_then(|about| about.modified());
    let age = changed.ok().and_then(|changed| changed.elapsed().ok());
    file.extension().is_some() && age.is_none_or(|age| age < Duration::from_secs(60))
}

/// True for a response that may still be given.
fn is_useful(stored: &Stored) -> bool {
    let beyond = stored.stale_if_error_ms.max(stored.revalidate_ms);
    stored.age_ms(now_ms()) <= stored.lifetime_ms.saturating_add(beyond)
}

fn read_head(file: &Path) -> Option<Found> {
    let name = file.file_name()?.to_str().filter(|name| name.len() == 16)?.to_owned();
    let opened = File::open(file).ok()?;
    let size = opened.metadata().ok()?.len();
    let mut lines = BufReader::new(opened.take(LONGEST_HEAD)).lines();
    lines.next()?.ok().filter(|line| line == MAGIC)?;
    let line = lines.next()?.ok()?;
    let head: Head = serde_json::from_str(&line).ok()?;
    if size != (MAGIC.len() + 1 + line.len() + 1 + head.len) as u64 {
        return None;
    }
    let (key, vary, values, mut stored) = head.read()?;
    stored.on_disk = Some(OnDisk { name, len: head.len, body: Mutex::new(Kept::Written(Weak::new())) });
    Some((key, vary, values, stored))
}
