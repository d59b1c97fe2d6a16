//! Detection of changes of the rules file.
//!
//! A file is identified by the device, inode, size and times at the end of its path. Editors and Kubernetes replace files
//! by rename or by switching a symbolic link, so the directories on the path are watched, not the file. A notification
//! only triggers an immediate check. Without notifications (network file systems, some container mounts), a poll every
//! [`poll_interval`](weir_config::settings::ConfigWork) finds the change.
//!
//! [`REST`] is long enough for a text with an end marker. A text without one has to stay unchanged for longer, which
//! [`reload`](crate::source::reload) checks by another [`look`].

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::future::{pending, poll_fn};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use futures_core::Stream;
use inotify::{EventStream, Inotify, WatchMask};
use tokio::time::sleep;
use weir_config::settings::ConfigWork;

/// Time for which a file has to stay unchanged before it is read, so that a program that writes it in pieces is done.
/// Longer than the granularity of file times (10 ms at most), so that no change goes unnoticed because of equal times.
const REST: Duration = Duration::from_millis(25);

/// Number of checks after which a file that keeps changing is read nevertheless.
const LOOKS: u32 = 40;

/// Watches one file.
#[derive(Debug)]
pub(crate) struct Watch {
    path: PathBuf,
    poll: Option<Duration>,
    seen: Seen,
    subscribe: fn(&Path) -> Notices,
    notices: Option<Notices>,
}

/// Result of a check of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A file written so recently that another change might not show in its times.
    Fresh,
    /// No file, or one that cannot be accessed.
    Nothing,
    File(Identity),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Kind of a change of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The file has new content.
    Content,
    /// The file does not exist or cannot be accessed any more.
    Vanished,
}

impl Watch {
    /// Starts to watch a file, from its current state. Must be called before the file is read for the first time.
    pub(crate) fn new(path: &Path, options: &ConfigWork) -> Self {
        let seen = match look(path) {
            Seen::File(identity) if identity.is_fresh() => Seen::Fresh,
            seen => seen,
        };
        let poll = options.watch.then(|| options.poll_interval.duration());
        Self { path: path.to_owned(), poll, seen, subscribe: Notices::watch, notices: None }
    }

    /// Waits until the file has changed and has been stable for a while. Cancel-safe: the future may be dropped at any
    /// time, and the function called again.
    pub(crate) async fn changed(&mut self) -> Change {
        let Some(poll) = self.poll else { return pending().await };
        loop {
            // A check comes first, because changes before the new subscription were not notified.
            let subscribe = self.subscribe;
            let notices = self.notices.get_or_insert_with(|| subscribe(&self.path));
            if look_aside(&self.path).await != self.seen {
                break;
            }
            tokio::select! {
                () = notices.next() => {}
                () = sleep(poll) => {}
            }
        }
        // The path may pass through other directories now.
        self.notices = None;
        self.seen = self.come_to_rest().await;
        match self.seen {
            Seen::Nothing => Change::Vanished,
            _ => Change::Content,
        }
    }

    async fn come_to_rest(&self) -> Seen {
        let mut seen = look_aside(&self.path).await;
        for _ in 0..LOOKS {
            sleep(REST).await;
            let now = look_aside(&self.path).await;
            if now == seen {
                break;
            }
            seen = now;
        }
        seen
    }
}

/// Checks the path on another thread, because a file system that hangs must not block signals and status.
async fn look_aside(path: &Path) -> Seen {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || look(&path)).await.unwrap_or(Seen::Nothing)
}

/// Checks the path. Must run on a thread that may block.
pub(crate) fn look(path: &Path) -> Seen {
    match fs::metadata(path) {
        Ok(found) => Seen::File(Identity {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }),
        Err(_) => Seen::Nothing,
    }
}

impl Identity {
    /// True if the file was written so recently that another write could leave the same times.
    fn is_fresh(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (seconds, nanoseconds) = self.modified;
        let modified = Duration::new(seconds.max(0) as u64, nanoseconds.clamp(0, 999_999_999) as u32);
        now.saturating_sub(modified) < REST
    }
}

/// Notifications of the system (inotify) about some directories. Without them, for example because the limit of a user is
/// reached, only polling finds changes.
struct Notices(Option<EventStream<[u8; 1024]>>);

impl Notices {
    fn watch(path: &Path) -> Self {
        let watched = Inotify::init().and_then(|queue| {
            // Single writes are excluded, because a log in the same directory would wake the gateway all the time.
            let events = WatchMask::CLOSE_WRITE
                | WatchMask::CREATE
                | WatchMask::DELETE
                | WatchMask::MOVED_FROM
                | WatchMask::MOVED_TO
                | WatchMask::ONLYDIR;
            for directory in directories(path) {
                // The next poll notices a directory that has been removed again.
                let _ = queue.watches().add(directory, events);
            }
            queue.into_event_stream([0; 1024])
        });
        if let Err(error) = &watched {
            tracing::warn!(%error, "no notifications for changes of the rules file; changes are found by polling (config.poll_interval)");
        }
        Self(watched.ok())
    }

    /// Waits for a notification.
    async fn next(&mut self) {
        let Some(stream) = &mut self.0 else { return pending().await };
        match poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await {
            Some(Ok(_)) => {}
            Some(Err(_)) | None => self.0 = None,
        }
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Notices").field(&self.0.is_some()).finish()
    }
}

/// The directories in which a change can make the path resolve to another file: those of the file and of all symbolic
/// links on the path.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    const LINKS: usize = 40;
    let mut found = BTreeSet::new();
    let mut ways = vec![std::path::absolute(path).unwrap_or_else(|_| path.to_owned())];
    let mut links = 0;
    while let Some(way) = ways.pop() {
        found.extend(way.parent().map(Path::to_owned));
        for part in way.ancestors() {
            let (Some(parent), Ok(target)) = (part.parent(), fs::read_link(part)) else { continue };
            links += 1;
            if links > LINKS {
                return found;
            }
            found.insert(parent.to_owned());
            ways.push(parent.join(target));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Change, Watch, directories};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::time::Duration;
    use weir_config::settings::{ConfigWork, Seconds};

    fn options(poll_ms: u64) -> ConfigWork {
        let poll_interval = if poll_ms == 10 { Seconds::constant(10) } else { Seconds::constant(3_600_000) };
        ConfigWork { poll_interval, ..ConfigWork::default() }
    }

    /// Longer than a check takes.
    const QUIET: Duration = Duration::from_millis(100);

    async fn next(watch: &mut Watch) -> Change {
        tokio::time::timeout(Duration::from_secs(10), watch.changed()).await.expect("the change was not noticed")
    }

    /// Every way in which people and programs replace a file is found by notifications alone and by polling alone.
    #[tokio::test]
    async fn all_ways_to_replace_a_file_are_noticed() {
        type Step = fn(&Path);
        let steps: &[(&str, Step, Change)] = &[
            ("written in place", |d| fs::write(d.join("file"), "b").unwrap(), Change::Content),
            (
                "renamed over",
                |d| {
                    fs::write(d.join("new"), "c").unwrap();
                    fs::rename(d.join("new"), d.join("file")).unwrap();
                },
                Change::Content,
            ),
            ("removed", |d| fs::remove_file(d.join("file")).unwrap(), Change::Vanished),
            ("back again", |d| fs::write(d.join("file"), "d").unwrap(), Change::Content),
            (
                "replaced by a link through a linked directory",
                |d| {
                    fs::create_dir(d.join("v1")).unwrap();
                    fs::write(d.join("v1/file"), "e").unwrap();
                    symlink("v1", d.join("data")).unwrap();
                    symlink("data/file", d.join("link")).unwrap();
                    fs::rename(d.join("link"), d.join("file")).unwrap();
                },
                Change::Content,
            ),
            (
                "the linked directory switched, as for a ConfigMap",
                |d| {
                    fs::create_dir(d.join("v2")).unwrap();
                    fs::write(d.join("v2/file"), "f").unwrap();
                    symlink("v2", d.join("data2")).unwrap();
                    fs::rename(d.join("data2"), d.join("data")).unwrap();
                },
                Change::Content,
            ),
            ("written behind the links", |d| fs::write(d.join("v2/file"), "gg").unwrap(), Change::Content),
        ];
        for poll in [10, 3_600_000] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("file"), "a").unwrap();
            let mut watch = Watch::new(&dir.path().join("file"), &options(poll));
            if poll == 10 {
                watch.subscribe = |_| super::Notices(None);
            }
            // A file that was just written is checked twice.
            while tokio::time::timeout(QUIET, watch.changed()).await.is_ok() {}
            for (name, step, change) in steps {
                step(dir.path());
                assert_eq!(next(&mut watch).await, *change, "{name}, poll {poll}");
            }
        }
    }

    #[test]
    fn directories_of_all_links_are_watched() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(root.join("v1")).unwrap();
        fs::write(root.join("v1/file"), "").unwrap();
        symlink("../v1", root.join("etc/data")).unwrap();
        symlink("data/file", root.join("etc/file")).unwrap();
        let found = directories(&root.join("etc/file"));
        let resolved: Vec<_> = found.iter().filter_map(|d| d.canonicalize().ok()).collect();
        assert!(resolved.contains(&root.join("etc")), "{found:?}");
        assert!(resolved.contains(&root.join("v1")), "{found:?}");
        // A loop of links does not loop for ever.
        symlink("loop", root.join("loop")).unwrap();
        assert!(directories(&root.join("loop")).len() < 50);
    }
}
