//! Rotation of log files: they are moved away at their time or their size, opened anew, compressed, and removed when
//! there are too many.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use weir_config::Settings;
use weir_config::settings::{AccessLogPath, ErrorLogPath, LogRotation};
use weir_telemetry::access_log::AccessLogs;

use crate::process::error_log::ErrorLog;
use crate::process::log_file;

/// Interval of looks at times and sizes.
const LOOK: Duration = Duration::from_secs(1);
/// Name in the setting `plugins` that turns the rotation on, as in APISIX.
const PLUGIN: &str = "log-rotate";
/// Text between the time and the name of a file that was moved.
const BETWEEN: &str = "__";
/// End of the name of a file that was compressed.
const COMPRESSED: &str = ".gz";

/// True if the settings ask for it, and there are files.
pub(crate) fn is_on(settings: &Settings) -> bool {
    let is_wanted = settings.log_rotation.enabled || settings.plugins.iter().any(|name| name == PLUGIN);
    is_wanted && !files(settings).is_empty()
}

/// Rotates the files for as long as the process serves.
pub(crate) async fn keep(settings: Settings, access_logs: AccessLogs, error_log: Arc<ErrorLog>) {
    let files = files(&settings);
    let conf = settings.log_rotation.clone();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next = after(unix_ms(), &conf);
    loop {
        looks.tick().await;
        let now = unix_ms();
        let is_due = now >= next;
        if is_due {
            next = after(now, &conf);
        }
        let least = if is_due { 1 } else { conf.max_size.bytes() };
        if least == 0 {
            continue;
        }
        let (all, name) = (files.clone(), name_of(now));
        let moved = spawn_blocking(move || move_away(&all, &name, least)).await.unwrap_or_default();
        if moved.is_empty() {
            continue;
        }
        log_file::reopen(&access_logs, &error_log).await;
        let (all, conf) = (files.clone(), conf.clone());
        let worked = spawn_blocking(move || {
            if conf.compress {
                moved.iter().for_each(|path| report(path, "compress", compress(path)));
            }
            all.iter().for_each(|path| report(path, "remove old files of", remove_oldest(path, conf.max_kept)));
        });
        if let Err(panicked) = worked.await {
            tracing::error!(%panicked, "log files were not compressed, or old ones not removed");
        }
    }
}

/// The files of all logs.
fn files(settings: &Settings) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in [&settings.access_log.path, &settings.stream_access_log.path] {
        if let AccessLogPath::File(path) = path {
            files.push(path.clone());
        }
    }
    if let ErrorLogPath::File(path) = &settings.error_log.path {
        files.push(path.clone());
    }
    // Several logs may go to one file.
    files.sort();
    files.dedup();
    files
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// The first multiple of the interval after a time.
fn after(now_ms: u64, conf: &LogRotation) -> u64 {
    let interval = u64::try_from(conf.interval.duration().as_millis()).unwrap_or(u64::MAX).max(1);
    now_ms - now_ms % interval + interval
}

/// The time in the names of files that are moved at it.
fn name_of(now_ms: u64) -> String {
    let now = jiff::Timestamp::from_millisecond(i64::try_from(now_ms).unwrap_or_default()).unwrap_or_default();
    now.strftime("%Y-%m-%d_%H-%M-%S").to_string()
}

/// Moves the files that have so many bytes; gives the new places.
fn move_away(files: &[PathBuf], time: &str, least: u64) -> Vec<PathBuf> {
    let mut moved = Vec::new();
    for path in files {
        let is_due = fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() >= least);
        let Some(place) = beside(path, time).filter(|_| is_due) else { continue };
        // One of this second is there already: the next look is for this one.
        if place.exists() || with_end(&place).exists() {
            continue;
        }
        match fs::rename(path, &place) {
            Ok(()) => moved.push(place),
            Err(error) => report(path, "move", Err(error)),
        }
    }
    moved
}

fn beside(path: &Path, time: &str) -> Option<PathBuf> {
    Some(path.with_file_name(format!("{time}{BETWEEN}{}", path.file_name()?.to_str()?)))
}

fn with_end(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(COMPRESSED);
    name.into()
}

/// Compresses a file, which has the old permissions and goes when the whole one is there.
fn compress(path: &Path) -> io::Result<()> {
    let (mut from, end) = (File::open(path)?, with_end(path));
    let part = path.with_extension("part");
    let compressed = (|| {
        let to = File::create(&part)?;
        to.set_permissions(from.metadata()?.permissions())?;
        let mut encoder = GzEncoder::new(to, Compression::default());
        io::copy(&mut from, &mut encoder)?;
        encoder.finish()?.sync_all()
    })();
    if let Err(error) = compressed.and_then(|()| fs::rename(&part, end)) {
        // Whatever is there is no whole file.
        let _ = fs::remove_file(part);
        return Err(error);
    }
    fs::remove_file(path)
}

/// Removes the oldest files of a log that were moved, but for so many.
fn remove_oldest(path: &Path, most: u32) -> io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut old = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let found = entry.file_name();
        let time = found.to_str().and_then(|found| {
            let found = found.strip_suffix(COMPRESSED).unwrap_or(found);
            found.strip_suffix(name)?.strip_suffix(BETWEEN).filter(|time| is_time(time)).map(str::to_owned)
        });
        old.extend(time.map(|time| (time, entry.path())));
    }
    old.sort();
    let count = old.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX));
    old.into_iter().take(count).try_for_each(|(_, path)| fs::remove_file(path))
}

/// True for the time in a name: digits where `name_of` writes digits.
fn is_time(text: &str) -> bool {
    let form = "0000-00-00_00-00-00";
    let fits = |(found, form): (u8, u8)| if form == b'0' { found.is_ascii_digit() } else { found == form };
    text.len() == form.len() && text.bytes().zip(form.bytes()).all(fits)
}

fn report(path: &Path, what: &str, done: io::Result<()>) {
    if let Err(error) = done {
        tracing::error!(path = %path.display(), %error, "cannot {what} this log file");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use weir_config::settings::LogRotation;

    use super::{after, compress, is_time, move_away, name_of, remove_oldest};

    #[test]
    fn times_are_multiples_of_the_interval() {
        let conf = LogRotation::default();
        for (now, next) in [(0, 3_600_000), (3_599_999, 3_600_000), (3_600_000, 7_200_000)] {
            assert_eq!(after(now, &conf), next, "{now}");
        }
        assert_eq!(name_of(1_584_424_800_999), "2020-03-17_06-00-00");
        assert!(is_time("2020-03-17_06-00-00") && !is_time("2020-03-17_06-00-0x") && !is_time("old"));
    }

    #[test]
    fn files_are_moved_compressed_and_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, other) = (folder.path().join("a.log"), folder.path().join("other__a.log"));
        fs::write(&other, "no file of ours").expect("write");
        for day in 1..=5 {
            fs::write(&log, format!("day {day}")).expect("write");
            let time = format!("2026-01-0{day}_00-00-00");
            let files = [log.clone(), folder.path().join("none.log")];
            assert_eq!(move_away(&files, &time, 100), Vec::<std::path::PathBuf>::new(), "too small");
            let moved = move_away(&files, &time, 1);
            assert_eq!((moved.len(), log.exists()), (1, false));
            if day % 2 == 0 {
                compress(&moved[0]).expect("compress");
            }
            fs::write(&log, "of the same second").expect("write");
            assert_eq!(move_away(&files, &time, 1).len(), 0, "nothing is overwritten");
            remove_oldest(&log, 3).expect("remove");
        }
        let mut names: Vec<_> =
            fs::read_dir(&folder).expect("read").map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        let kept = ["2026-01-03_00-00-00__a.log", "2026-01-04_00-00-00__a.log.gz", "2026-01-05_00-00-00__a.log"];
        assert_eq!(names, [&kept[..], &["a.log", "other__a.log"]].concat());
        let gz = fs::File::open(folder.path().join(kept[1])).expect("open");
        assert_eq!(std::io::read_to_string(flate2::read::GzDecoder::new(gz)).expect("read"), "day 4");
    }
}
